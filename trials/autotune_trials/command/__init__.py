"""The command trial program: anybody's launcher, whose output has Megatron's log lines."""
