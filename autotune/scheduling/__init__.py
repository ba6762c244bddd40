"""Where trials run: what the nodes can do, and the gangs of processes on them."""
