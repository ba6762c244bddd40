"""``autotune completion``."""

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell; e.g. in ~/.bashrc: eval "$(autotune completion bash)"."""
    completion = get_completion_class(shell)
    assert completion is not None
    print(completion(context.find_root().command, {}, "autotune", "_AUTOTUNE_COMPLETE").source())
