"""``autotune policy``: only ``check`` runs here; ``main`` hands all else on before click is imported."""

import importlib

import click


class _Policy(click.Group):
    """Knows the one command that needs the head side."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ["check"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name != "check":
            return None
        command = importlib.import_module("autotune.cli.policy_check").command
        assert isinstance(command, click.Command)
        return command


command = _Policy("policy", help="Show, render, run under, verify, compare, find, import and check policies.")
