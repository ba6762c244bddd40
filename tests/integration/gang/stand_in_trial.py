"""A rank that claims to have trained: enough events for a judge, at once. Standard library only."""

import json
import os
import sys
import time
from pathlib import Path

RANK = int(os.environ["RANK"])
SPEC = json.loads(Path(os.environ["AUTOTUNE_EVENTS"]).with_name("spec.json").read_text())
TOKENS = SPEC["contract"]["global_batch_size"] * SPEC["contract"]["seq_length"]


def emit(event: str, **fields: object) -> None:
    with open(os.environ["AUTOTUNE_EVENTS"], "a", encoding="utf-8") as file:
        file.write(json.dumps({"event": event, "time_s": time.time(), **fields}) + "\n")


sys.stdout.write(f"rank {RANK} of trial {SPEC['trial']}\n")
emit("started", pid=os.getpid())
emit("imported", rss_bytes=1)
resolved = {"settings": SPEC["settings"], "world_size": int(os.environ["WORLD_SIZE"]), "dispatcher_class": "none"}
claim = {"settings": SPEC["settings"], "environment": {}}
emit("built", build_s=0.0, claim=claim, **({"resolved": resolved} if RANK == 0 else {}))
for step in range(1, SPEC["contract"]["steps"] + 1):
    fields = {"loss": 3.0, "grad_norm": 1.0, "tokens": TOKENS} if RANK == 0 else {}
    emit("step", step=step, step_time_s=0.01, **fields)
    if SPEC["settings"]["micro_batch_size"] == 2 and RANK == 1 and step == 2:
        sys.exit(5)
emit("finished", steps=SPEC["contract"]["steps"], peak_memory_bytes=1 << 20, peak_memory_kind="rss_over_imports")
