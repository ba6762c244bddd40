"""The bridge trial program: the user's own Megatron-Bridge recipe, with a trial's settings and contract applied."""
