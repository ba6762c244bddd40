"""One rank of a bridge trial: ``python -m autotune_trials.bridge --spec spec.json``.

Events and exit status are the native program's: 0 finished, 2 the configuration was rejected, 1 anything else.
"""

import os
from typing import NoReturn

from autotune_policies.errors import PolicyError
from autotune_trials.beginning import begin
from autotune_trials.ending import fail, leave
from autotune_trials.native.failures import kind_of
from autotune_trials.native.refusal import Rejected
from autotune_trials.spec import SpecError, TrialSpec


def main() -> NoReturn:
    """Run the rank; does not return."""
    path, events = begin("autotune_trials.bridge", __doc__)
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
