"""``python -m autotune_policies``: validate, show, render and run under a policy; needs no extra.

stdout is data, stderr is talk; exit status 0 = done, 1 = what is printed reaches nobody, 2 = the request or the
policy is wrong.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from autotune_policies.apply import detect_stack
from autotune_policies.errors import PolicyError
from autotune_policies.launch import execute
from autotune_policies.megatron_core import release_of, render
from autotune_policies.policy import Policy, load_policy
from autotune_policies.show import policy_text
from autotune_policies.streams import discard

TARGETS = ("env", "json", "megatron-core")


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
        options = _parser(prog).parse_args(words)
        if command is not None and options.run is not _exec:
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
        return _complain(_reason(error), None)
    except SystemExit as stop:  # argparse ends --help this way
        return int(stop.code or 0)
    return status


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise PolicyError(message, hint=f"{self.prog} --help")


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = _Parser(prog=prog, description="Read, check and use policies (autotune.policy/v1).")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, run: Callable[[Any], int | None], text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("file", metavar="FILE", help="policy YAML")
        command.set_defaults(run=run)
        return command

    for name, run, text in (
        ("validate", _validate, "check a policy file"),
        ("show", _show, "print a policy for people"),
    ):
        add(name, run, text).add_argument("--json", action="store_true", help="print JSON")
    renderer = add("render", _render, "write a policy in the words of another program")
    renderer.add_argument(
        "--for", dest="target", required=True, choices=TARGETS,
        help="env: shell exports; json: settings, env and launch; megatron-core: fields of one release",
    )  # fmt: skip
    renderer.add_argument("--megatron-core", metavar="RELEASE", help="such as 0.19; default: the installed")
    add("exec", _exec, "run a command under the policy's env and launch settings: exec FILE -- COMMAND")
    return parser


def _validate(options: Any) -> int:
    try:
        policy = load_policy(options.file)
    except (PolicyError, OSError) as error:
        if not options.json:
            raise
        message, hint = (error.message, error.hint) if isinstance(error, PolicyError) else (_reason(error), None)
        _print_line({"valid": False, "error": message, "hint": hint})
        return 2
    if options.json:
        _print_line({"valid": True, "file": options.file, "evidence": policy.evidence["kind"]})
    else:
        print(f"{options.file}: ok, a {policy.evidence['kind']} policy for {_subject(policy)}")
    return 0


def _show(options: Any) -> None:
    policy = load_policy(options.file)
    if options.json:
        _print_line(policy.to_dict())
    else:
        print(policy_text(policy), end="")


def _render(options: Any) -> None:
    if options.megatron_core is not None and options.target != "megatron-core":
        raise PolicyError(f"--megatron-core means nothing to --for {options.target}")
    policy = load_policy(options.file)
    if options.target == "env":
        for name, value in policy.env.items():
            print(f"export {name}={shlex.quote(value)}")
    elif options.target == "json":
        document = policy.to_dict()
        _print_json({name: document[name] for name in ("settings", "env", "launch")})
    else:
        release = release_of(options.megatron_core or _release_here())
        fields = render(policy.settings, release)
        homes = {"transformer": fields.transformer, "ddp": fields.ddp, "training": fields.training}
        _print_json({"megatron_core": release, **homes})


def _exec(options: Any) -> None:
    usage = f"{options.prog} exec FILE -- COMMAND"
    if not options.command:
        raise PolicyError("exec needs '--' and a command", hint=usage)
    execute(load_policy(options.file), options.file, options.command, _say)


def _release_here() -> str:
    version = detect_stack().get("megatron_core")
    if version is None:
        raise PolicyError("no megatron-core is installed here", hint="name the release: --megatron-core 0.19")
    return version


def _subject(policy: Policy) -> str:
    model, cluster = (policy.applies_to[name] for name in ("model", "cluster"))
    return " on ".join(item["exact"] if isinstance(item, dict) else item for item in (model, cluster))


def _print_line(document: object) -> None:
    print(json.dumps(document))


def _print_json(document: object) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=False))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _reason(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}"


def _complain(message: str, hint: str | None, status: int = 2) -> int:
    _say(f"error: {message}")
    if hint:
        _say(f"hint: {hint}")
    return status


if __name__ == "__main__":
    sys.exit(main())
