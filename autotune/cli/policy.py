"""``autotune policy`` for shell completion; ``main`` hands the command itself on before click is imported."""

import click

from autotune_policies.__main__ import main


@click.command(
    "policy", add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def command(words: tuple[str, ...]) -> int:
    """Validate, show, render and run exported policies."""
    return main(list(words), prog="autotune policy")
