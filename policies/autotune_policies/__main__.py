"""``python -m autotune_policies``: validate, show, render, verify and run under a policy; needs no extra.

stdout is data, stderr is talk; exit status 0 = done, 1 = the answer is no, or what is printed reaches nobody, 2 = the
request or the policy is wrong.
"""

import argparse
import importlib
import keyword
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from autotune_policies.errors import PolicyError
from autotune_policies.streams import discard, reason, say

_COMMANDS = {
    "validate": "check a policy file",
    "show": "print a policy for people",
    "render": "write a policy in the words of another program",
    "verify": "did training run with what a policy says: its resolved configuration, field by field",
    "diff": "what two policies do differently",
    "find": "the policy in a folder that holds for a run, or the nearest",
    "check": "is a policy still right: against a stored study, or measured again; `autotune policy check --help`",
    "import": "a recipe or saved configuration as a policy without numbers",
    "exec": "run a command under the policy's env and launch settings: exec FILE -- COMMAND",
}
"""Each is a module of :mod:`autotune_policies.commands`; ``import`` cannot be one and is ``import_``."""


def main(argv: list[str] | None = None, prog: str = "python -m autotune_policies") -> int:
    """Run one command and return its exit status.

    Args:
        argv: Arguments without the program name; None = those of this process.
        prog: How the user called this, for usage lines.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    command: list[str] | None = None
    if "--" in words:
        split = words.index("--")
        words, command = words[:split], words[split + 1 :]
    try:
        options = _parser(prog, words[0] if words else "").parse_args(words)
        if command is not None and words[0] != "exec":
            raise PolicyError("'--' and a command belong to exec", hint=f"{prog} exec FILE -- COMMAND")
        options.command, options.prog = command, prog
        run: Callable[[Any], int | None] = options.run
        status = run(options) or 0
        if sys.stdout is None:  # closed by the caller
            return _complain("standard output is closed, so nothing was printed", None, 1)
        sys.stdout.flush()
    except PolicyError as error:
        return _complain(error.message, error.hint)
    except BrokenPipeError:  # the reader has seen enough; the interpreter must not complain of it at its end
        discard(sys.stdout)
        return 1
    except OSError as error:
        if error.filename is None:
            discard(sys.stdout)
            return _complain(f"standard output cannot be written: {error.strerror}", None, 1)
        return _complain(reason(error), None)
    except SystemExit as stop:  # argparse ends --help this way
        return int(stop.code or 0)
    return status


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise PolicyError(message, hint=f"{self.prog} --help")


def _parser(prog: str, named: str) -> argparse.ArgumentParser:
    """The parser of all commands; only the named one's module is imported, the others show their line of help."""
    parser = _Parser(prog=prog, description="Read, check and use policies (autotune.policy/v1).")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, text in _COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        if name == named:
            module = importlib.import_module("autotune_policies.commands." + name + "_" * keyword.iskeyword(name))
            module.add(command)
            command.set_defaults(run=module.run)
    return parser


def _complain(message: str, hint: str | None, status: int = 2) -> int:
    say(f"error: {message}")
    if hint:
        say(f"hint: {hint}")
    return status


if __name__ == "__main__":
    sys.exit(main())
