"""One rank of a command trial: ``python -m autotune_trials.command --spec spec.json``.

It starts the command, passes its output on, turns the log lines into events, and ends as the command ended. Exit
status: the command's own; 2 also where the words cannot be filled in, 1 where the command ended too early.
"""

import os
from typing import NoReturn

from autotune_policies.errors import PolicyError
from autotune_trials.beginning import begin
from autotune_trials.command.supervise import follow_lead, supervise
from autotune_trials.command.words import CannotFill, command_line
from autotune_trials.ending import fail, leave
from autotune_trials.spec import SpecError, TrialSpec


def main() -> NoReturn:
    """Run the rank; does not return."""
    path, events = begin("autotune_trials.command", __doc__)
    try:
        spec = TrialSpec.from_json(path.read_text(encoding="utf-8"))
        assert spec.command is not None, "the specification has been checked"
        if spec.command.per == "node" and os.environ["LOCAL_RANK"] != "0":
            leave(follow_lead(path.parent, int(os.environ["RANK"]) - int(os.environ["LOCAL_RANK"]), events))
        argv = command_line(spec, path.parent, os.environ)
    except (SpecError, CannotFill, PolicyError) as error:
        fail(events, "rejected", error)
    except Exception as error:
        fail(events, "exception", error)
    leave(supervise(spec, argv, path.parent, events))


if __name__ == "__main__":
    main()
