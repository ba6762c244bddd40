"""A rank with a planted fault: it speaks the event protocol with the product's own modules, and trains nothing.

``PLANTED`` says which fault, as a JSON mapping of global rank to its name; a rank without one is sound. ``name@4`` is
one that comes in step 4.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from autotune_trials.ending import fail, leave
from autotune_trials.events import EventWriter
from autotune_trials.native.failures import kind_of
from autotune_trials.processes import adopt_orphans
from autotune_trials.spec import TrialSpec
from autotune_trials.stacks import register

RANK = int(os.environ["RANK"])
FAULT, _, STEP = json.loads(os.environ["PLANTED"]).get(str(RANK), "none").partition("@")
SPEC = TrialSpec.from_json(Path(os.environ["AUTOTUNE_EVENTS"]).with_name("spec.json").read_text())
DAEMON = Path(os.environ["AUTOTUNE_EVENTS"]).parents[1] / "daemon.pid"  # seen by the ranks of all nodes
TOKENS = SPEC.contract.global_batch_size * SPEC.contract.seq_length


class NumericsError(ArithmeticError):
    """As the native program's."""


class OutOfMemoryError(RuntimeError):
    """As torch's."""


def shown(at_end: bool) -> dict[str, object]:
    settings = dict(SPEC.settings)
    if FAULT == "downgraded_dispatcher":
        settings |= {"dispatcher": "alltoall", "num_sms": None}
    if FAULT == "ignored_sms" and at_end:
        settings["num_sms"] = 24
    claim = {"settings": settings, "dispatcher_class": settings["dispatcher"], "environment": {}}
    if at_end:
        graphs = 8 if settings["cuda_graph_impl"] != "none" else 0
        claim |= {"graphs_captured": graphs, "graph_replays": 0 if FAULT == "graph_never_replayed" else 2 * graphs}
    return claim


def loss_of(step: int) -> float:
    sound = 6.0 - 0.05 * step
    if FAULT == "nan_loss" and step == int(STEP or 3):
        return float("nan")
    return sound + (0.9 * step if FAULT == "corrupted_loss" else 0.0)


def train(events: EventWriter) -> None:
    events.write("started", pid=os.getpid())
    if FAULT.startswith(("import_", "abi_", "missing_")):
        __import__("deep_ep")
    events.write("imported", rss_bytes=1)
    resolved = {"settings": dict(SPEC.settings), "world_size": SPEC.gang.world_size}
    events.write("built", build_s=0.0, claim=shown(False), **({"resolved": resolved} if RANK == 0 else {}))
    for step in range(1, SPEC.contract.steps + 1):
        if FAULT == "oom_after_daemon" and step == int(STEP):
            while not DAEMON.exists():
                time.sleep(0.01)
        if FAULT.startswith("oom") and step == int(STEP):
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if FAULT.startswith("daemon") and step == int(STEP):
            leave_a_daemon()
            if FAULT == "daemon_hang":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                wait_for_ever()
        if FAULT == "hang" and step == int(STEP):
            wait_for_ever()
        if FAULT == "dead_rank" and step == int(STEP or 3):
            os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(0.01)
        loss = loss_of(step)
        full = {"loss": loss, "grad_norm": 1.0, "tokens": TOKENS} if RANK == 0 else {}
        events.write("step", step=step, step_time_s=0.01 + 1e-5 * (step % 3), **full)
        if loss != loss:
            raise NumericsError(f"loss is nan in step {step}")
    events.write(
        "finished", steps=SPEC.contract.steps, peak_memory_bytes=1000, peak_memory_kind="rss", claim=shown(True)
    )


def leave_a_daemon() -> None:
    """A process that nobody would find: child of a dead parent, in a session and with an environment of its own."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(write_end, str(os.getpid()).encode())
            os.closerange(0, 256)
            os.execve("/bin/sleep", ["sleep", "600"], {})
        os._exit(0)
    os.waitpid(child, 0)
    pid = os.read(read_end, 20)
    DAEMON.with_suffix(".part").write_bytes(pid)
    DAEMON.with_suffix(".part").rename(DAEMON)


def wait_for_ever() -> None:
    while True:
        time.sleep(60)


def main() -> None:
    register()
    adopt_orphans()
    events = EventWriter()
    try:
        train(events)
    except BaseException as error:
        fail(events, kind_of(error), error)
    leave(0)


if __name__ == "__main__":
    sys.exit(main())
