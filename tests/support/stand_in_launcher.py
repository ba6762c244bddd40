"""A launcher that trains nothing and prints what Megatron-LM prints: it obeys its arguments, or misbehaves as told.

Rank 0 prints the arguments and its memory, the last rank the steps, each line in upstream's own shape. A behaviour may
say which rank alone has it and in which step: ``hang@1:4``.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time

from autotune_policies.megatron_lm_flags import defaults_of, flags_of, split_words

RELEASE = os.environ["STAND_IN_RELEASE"]
RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ.get("STAND_IN_WORLD_SIZE", os.environ["WORLD_SIZE"]))
MEMORY_MIB = 1000.0


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("train-iters", "seq-length", "global-batch-size"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--moe-router-force-load-balancing", action="store_true")
    parser.add_argument("--behaviour", default="honest")
    own, others = parser.parse_known_args()
    fields = fields_of(others)
    behaviour, _, where = own.behaviour.partition("@")
    at_rank, _, at_step = where.partition(":")
    if at_rank and int(at_rank) != RANK:
        behaviour = "honest"
    if behaviour.startswith(("import_", "abi_", "missing_")):
        __import__("deep_ep")
    if behaviour == "lie_about_allgather":
        behaviour = "lie" if fields["moe_token_dispatcher_type"] == "allgather" else "honest"
    if behaviour == "lie":
        fields["moe_token_dispatcher_type"] = "alltoall"
    if RANK == 0 and behaviour != "silent":
        other = {"num_layers": 1, "hidden_size": 8} if behaviour == "other_model" else {}
        print_arguments({**fields, **vars(own), **other, "world_size": int(os.environ["WORLD_SIZE"])})
    if RANK == 0 and behaviour == "leave_behind":
        quiet = subprocess.DEVNULL
        left = subprocess.Popen(
            ["sleep", "600"], env={}, start_new_session=True, stdin=quiet, stdout=quiet, stderr=quiet
        )
        say(f"left behind: {left.pid}")
    meet()
    for step in range(1, own.train_iters + 1):
        time.sleep(0.01)
        if behaviour == "die" and step == 4 and RANK == 1:
            raise RuntimeError("an expert has left the building")
        if behaviour == "out_of_memory" and step == int(at_step or 2):
            sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
        if behaviour == "segfault" and step == int(at_step):
            os.kill(os.getpid(), signal.SIGSEGV)
        if behaviour == "hang" and step == int(at_step or 4):
            wait_for_ever()
        if behaviour == "short" and step == 6:
            break
        if behaviour == "other_model" and step == own.train_iters:
            time.sleep(3600)
        nan = behaviour == "nan" and step == int(at_step or 5)
        wrong = 0.9 * step if behaviour == "corrupted_loss" else 0.0
        print_step(step, own, 10.0 * fields["micro_batch_size"], nan, wrong)
    if behaviour == "exit_3" and RANK == WORLD_SIZE - 1:
        sys.exit(3)


def meet() -> None:
    """Ranks begin together, as those of a real launcher do; else one of a busy machine ends before another begins."""
    place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if RANK == 0:
        with socket.create_server(place) as server:
            met = [server.accept()[0] for _ in range(WORLD_SIZE - 1)]
            for peer in met:
                peer.close()
        return
    while True:
        try:
            with socket.create_connection(place) as waiting:
                waiting.recv(1)
            return
        except OSError:
            time.sleep(0.02)


def wait_for_ever() -> None:
    time.sleep(3600)


def fields_of(words: list[str]) -> dict[str, object]:
    fields: dict[str, object] = dict.fromkeys(defaults_of(RELEASE)) | dict(defaults_of(RELEASE))
    for word, values in split_words(words, RELEASE):
        flag = flags_of(RELEASE)[word]
        convert = {"int": int, "float": float, "str": str}[flag.plain]
        found = [convert(value) for value in values]
        fields[flag.field] = True if flag.arity == "switch" else found if flag.arity == "many" else found[0]
    return fields


def print_arguments(fields: dict[str, object]) -> None:
    printed = {flag.field: flag.printed for flag in flags_of(RELEASE).values()}
    say("------------------------ arguments ------------------------")
    for name, value in sorted((printed.get(field, field), value) for field, value in fields.items()):
        say(f"  {name} {'.' * (48 - len(name))} {value}")
    say("-------------------- end of arguments ---------------------")


def print_step(step: int, own: argparse.Namespace, step_time_ms: float, nan: bool, wrong: float) -> None:
    if RANK == 0 and step <= 2:
        memory = MEMORY_MIB * step
        peaks = f"allocated: {memory / 2:.2f} | max allocated: {memory:.2f} | reserved: {2 * memory:.2f}"
        say(f"[Rank 0] (after {step} iterations) memory (MB) | {peaks} | max reserved: {2 * memory:.2f}")
    if RANK == WORLD_SIZE - 1:
        loss = "" if nan else f" lm loss: {7.0 - 0.1 * step + wrong:.6E} |"
        say(f" [2026-01-02 03:04:05.678901] iteration {step:8d}/{own.train_iters:8d} |"
              f" consumed samples: {step * own.global_batch_size:12d} |"
              f" elapsed time per iteration (ms): {step_time_ms if step > 1 else 5e3:.1f} |"
              f" learning rate: 1.000000E-03 | global batch size: {own.global_batch_size:5d} |{loss}"
              f" loss scale: 1.0 | grad norm: 1.234 | number of skipped iterations:   0 |"
              f" number of nan iterations: {int(nan):3d} |")  # fmt: skip


main()
