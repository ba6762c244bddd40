"""The native trial program: our own Megatron-Core trainer, one process per rank."""
