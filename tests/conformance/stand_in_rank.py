"""A rank that trains nothing: it speaks the event protocol and misbehaves on request. Standard library only.

``STAND_IN`` says how, as a JSON mapping of global rank to behaviour; the default is ``finish``.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

RANK = int(os.environ["RANK"])
STEPS = 5
SLEEPER = [sys.executable, "-I", "-S", "-c", f"import time; time.sleep(300)  # {os.environ.get('TEST_MARKER')}"]


def emit(event: str, **fields: object) -> None:
    with open(os.environ["AUTOTUNE_EVENTS"], "a", encoding="utf-8") as file:
        file.write(json.dumps({"event": event, "time_s": time.time(), **fields}) + "\n")


def hang() -> None:
    while True:
        time.sleep(60)


def train(steps: int, pause_s: float = 0.01) -> None:
    emit("started", pid=os.getpid())
    emit("imported", rss_bytes=1 << 20)
    emit("built", build_s=0.1, **({"resolved": {"world_size": int(os.environ["WORLD_SIZE"])}} if RANK == 0 else {}))
    for step in range(1, steps + 1):
        time.sleep(pause_s)
        extra = {"loss": 4.0 / step, "grad_norm": 1.0, "tokens": 128} if RANK == 0 else {}
        emit("step", step=step, step_time_s=pause_s, **extra)


def finish() -> None:
    train(STEPS)
    emit("finished", steps=STEPS, peak_memory_bytes=1000 + RANK, peak_memory_kind="rss_over_imports")


def behave(behaviour: str) -> None:
    sys.stdout.write(f"rank {RANK} will {behaviour}\n")
    sys.stdout.flush()
    match behaviour:
        case "finish":
            finish()
        case "exit_3":
            train(2)
            emit("failed", kind="exception", error="ValueError", message="asked to fail")
            sys.exit(3)
        case "segv":
            train(2)
            os.kill(os.getpid(), signal.SIGSEGV)
        case "hang_at_once":
            hang()
        case "stall_after_3":
            train(3)
            hang()
        case "ignore_sigterm":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            train(1)
            hang()
        case "garbage":
            os.write(1, bytes(range(256)) * 4)
            junk = b'\xff\x00 not json\n{"event": 7}\n[1]\n{"event": "step"}\n'
            Path(os.environ["AUTOTUNE_EVENTS"]).write_bytes(junk)
            finish()
        case "grandchildren":
            subprocess.Popen(SLEEPER)
            subprocess.Popen(SLEEPER, start_new_session=True)
            train(1)
            hang()
        case "hidden_grandchild":
            subprocess.Popen(SLEEPER, start_new_session=True, env={})
            train(1)
            hang()
        case "orphan":
            subprocess.Popen(SLEEPER, start_new_session=True)
            finish()
        case "run_on":
            train(10_000, pause_s=0.05)
        case _:
            raise SystemExit(f"unknown behaviour {behaviour!r}")


if __name__ == "__main__":
    behave(json.loads(os.environ.get("STAND_IN", "{}")).get(str(RANK), "finish"))
