"""Whether a node can run a dispatcher, found out level by level before any trial; standard library only."""
