"""Entry point of ``autotune``: finds the command, prints expected errors as one line and a hint.

The policy commands but ``policy check`` need PyYAML only and are handed on before anything else is imported, so that
they work in a training container; every other command says which extra it misses.
"""

import errno
import sys
from collections.abc import Sequence

_SERVICE = {"click", "rich", "pydantic", "pydantic_core", "optuna", "ray", "pyarrow", "sqlalchemy"}
_TRIAL = {"torch", "megatron", "numpy"}
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}
_PATH = {errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP}
"""With a file name: the machine refuses a path. Without one they say nothing to a person, so they are bugs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0 = ok, 1 = the run failed, 2 = the request is wrong."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if argv[:1] == ["policy"] and argv[1:2] != ["check"]:
        from autotune_policies.__main__ import main as policy_main

        return policy_main(argv[1:], prog="autotune policy")
    if argv == ["--version"]:
        from autotune import __version__

        print(f"autotune {__version__}")
        return 0
    try:
        return _run(argv)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        extra = "service" if missing in _SERVICE else "trial" if missing in _TRIAL else None
        if extra is None:
            raise
        return _complain(f"{missing} is not installed", f"pip install 'moe-autotune[{extra}]'", 2)


def _run(argv: list[str]) -> int:
    import click

    from autotune.cli.commands import autotune
    from autotune.errors import AutotuneError
    from autotune_policies.errors import PolicyError
    from autotune_policies.streams import discard

    try:
        result = autotune.main(args=argv, prog_name="autotune", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()  # a full disk shows here, where it can still be told
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        return 0
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "autotune"
        return _complain(_one_line(error.format_message()), f"{command} --help", 2)
    except click.Abort:
        return _complain("interrupted", "the same command goes on where it stopped", 1)
    except AutotuneError as error:
        return _complain(error.message, error.hint, error.exit_status)
    except PolicyError as error:
        return _complain(error.message, error.hint, 2)
    except BrokenPipeError:
        discard(sys.stdout)  # the reader of our output is gone
        return 1
    except OSError as error:
        if error.errno not in _DISK and not (error.errno in _PATH and error.filename):
            raise
        if not error.filename and sys.stdout is not None:
            discard(sys.stdout)
        return _complain(f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror), None, 1)


def _complain(message: str, hint: str | None, status: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    return status


def _one_line(message: str) -> str:
    text = " ".join(message.split()).rstrip(".")
    return text[:1].lower() + text[1:]


if __name__ == "__main__":
    sys.exit(main())
