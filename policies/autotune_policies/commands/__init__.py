"""One module per subcommand of ``python -m autotune_policies``; only the one that is named is imported.

Each has ``add(parser) -> None``, which adds the arguments, and ``run(options) -> int | None``, which does the work and
returns the exit status (None = 0). Its name and its line of help stand in ``autotune_policies.__main__``.
"""
