"""One rank of the native trial program: ``python -m autotune_trials.native --spec spec.json``.

The launcher sets RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and AUTOTUNE_EVENTS to the rank's event
file. Exit status: 0 finished, 2 the configuration was rejected, 1 anything else. The process always ends by
``os._exit``: peers that still wait in a collective must not keep a failed rank alive.
"""

import gc
import importlib.metadata
import os
from typing import NoReturn

from autotune_trials.beginning import begin
from autotune_trials.ending import fail, leave
from autotune_trials.native import refusal
from autotune_trials.native.failures import kind_of
from autotune_trials.spec import SpecError, TrialSpec


def main() -> NoReturn:
    """Run the rank; does not return."""
    path, events = begin("autotune_trials.native", __doc__)
    try:
        spec = TrialSpec.from_json(path.read_text(encoding="utf-8"))
        refusal.check(spec, int(os.environ["WORLD_SIZE"]), importlib.metadata.version("megatron-core"))
        os.environ.update(spec.env)
        # Imports torch and Megatron, so the environment comes first. They create a million objects that live to the
        # end; looking for garbage among them would take a tenth of the start.
        gc.disable()
        from autotune_trials.native.rank import run

        run(spec, events)
    except (SpecError, refusal.Rejected) as error:
        fail(events, "rejected", error)
    except BaseException as error:
        fail(events, kind_of(error), error)
    leave(0)


if __name__ == "__main__":
    main()
