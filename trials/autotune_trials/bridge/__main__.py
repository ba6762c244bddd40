"""One rank of a bridge trial: ``python -m autotune_trials.bridge --spec spec.json``.

Events and exit status are the native program's: 0 finished, 2 the configuration was rejected, 1 anything else.
"""

import argparse
import os
from pathlib import Path
from typing import NoReturn

from autotune_policies.errors import PolicyError
from autotune_trials.ending import fail, leave
from autotune_trials.events import EventWriter
from autotune_trials.native.failures import kind_of
from autotune_trials.native.refusal import Rejected
from autotune_trials.spec import SpecError, TrialSpec
from autotune_trials.stacks import register


def main() -> NoReturn:
    """Run the rank; does not return."""
    parser = argparse.ArgumentParser(
        prog="python -m autotune_trials.bridge", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--spec", type=Path, required=True, help="trial specification (JSON)")
    path = parser.parse_args().spec
    register()
    events = EventWriter()
    events.write("started", pid=os.getpid())
    try:
        spec = TrialSpec.from_json(path.read_text(encoding="utf-8"))
        os.environ.update(spec.env)
        from autotune_trials.bridge.rank import run  # imports torch, so the environment comes first

        run(spec, path, events)
    except (SpecError, PolicyError, Rejected) as error:
        fail(events, "rejected", error)
    except BaseException as error:
        fail(events, kind_of(error), error)
    leave(0)


if __name__ == "__main__":
    main()
