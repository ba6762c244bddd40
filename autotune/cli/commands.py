"""The command group; a command's own file is imported when it is run."""

import difflib
import importlib
from typing import Any

import click

_COMMANDS = {
    "start": "tune a model on a cluster: run trials, find the best settings, write a policy",
    "status": "how a study stands: trials by state, the front, the winner",
    "list": "the studies on this machine",
    "export": "write the policy of a study again, by throughput, memory or balance",
    "check": "whether settings are legal for a model on a cluster, whether they fit, and why not",
    "plan": "the fastest legal configurations as predicted, with time and memory by part, without hardware",
    "predict": "how good predictions are: a table's measured rows against predicted ones",
    "compare": "which of two runs has the faster steps, or a tie: step-time series with interval and contamination",
    "preflight": "what each node can run, and why not",
    "policy": "show, render, run under, verify, compare, find, import and check policies",
    "spaces": "the models and clusters that are known",
    "completion": "print the completion script of a shell",
}


class _Commands(click.Group):
    """Loads each command from ``autotune.cli.<name>`` when it is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(f"autotune.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args[0] not in _COMMANDS:
            near = difflib.get_close_matches(args[0], _COMMANDS, n=2, cutoff=0.65)
            hint = f"did you mean {' or '.join(near)}?" if near else f"legal: {', '.join(_COMMANDS)}"
            raise click.UsageError(f"unknown command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="moe-autotune", prog_name="autotune", message="%(prog)s %(version)s")
def autotune() -> None:
    """Tune Mixture-of-Experts training on a cluster, and export the winning settings as a policy.

    \b
    autotune start --model tiny-moe --cluster local     on this machine's CPU, for real
    autotune start --model dsv3 --cluster gb300         on a GB300 cluster
    """  # noqa: D301 - click reads the backspace as "do not wrap"
