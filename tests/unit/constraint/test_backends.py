"""The table of backends is the one place: a new row is a legal value, is rendered, probed, and held to its limits."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
TABLE = ROOT / "policies" / "autotune_policies" / "backends.py"

PROGRAM = """
import importlib.util
import json
import sys

# The table is changed before anybody reads it, as an edit of its file would.
spec = importlib.util.spec_from_file_location("autotune_policies.backends", sys.argv[1])
backends = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = backends
spec.loader.exec_module(backends)

row = backends.Backend(
    "newep", library="new_ep", imports=(("new_ep", ("Buffer",)),), flag="HAVE_NEW_EP", since=(0, 19),
    fields=(("moe_newep_fast", (0, 19), False),),
    limits=backends.Limits(min_group=2, group_sizes=(2, 8), sm_multiple=4, hidden_multiple=512),
)
backends.BACKENDS = {**backends.BACKENDS, "newep": row}
backends.DISPATCHERS += ("newep",)
backends.FLEX_DISPATCHERS += ("newep",)

from autotune.constraint.check import check
from autotune.constraint.rule import Candidate
from autotune.export.policy import stack_conditions
from autotune_policies.errors import PolicyError
from autotune_policies.megatron_core import render
from autotune_policies.settings import resolve
from autotune_trials.probe import probe
from autotune_trials.spec import Contract, GangShape, ModelShape

shape = ModelShape("m", 4, 512, 8, 512, 512, num_experts=16, moe_ffn_hidden_size=64)
settings = resolve({"dispatcher": "newep", "num_sms": 24, "expert_parallel": 8})
stack = {"megatron_core": "0.19.2", "torch": "2.9", "new_ep": "3.1"}

def broken(**changes):
    changed = resolve({**settings, **changes})
    judged = Candidate(changed, shape, Contract(128, 16), GangShape(2, 8), 8, stack)
    return [violation.rule for violation in check(judged)]

fields = render(settings, "0.19").transformer
try:
    render(settings, "0.18")
    refusal = ""
except PolicyError as error:
    refusal = error.message
print(json.dumps({
    "type": fields["moe_token_dispatcher_type"],
    "backend": fields["moe_flex_dispatcher_backend"],
    "sms": fields["moe_flex_dispatcher_num_sms"],
    "others": render({}, "0.19").transformer["moe_newep_fast"],
    "refusal": refusal,
    "probe": probe("newep")["reason"],
    "pinned": stack_conditions(stack, settings)["new_ep"],
    "legal": broken(),
    "illegal": broken(num_sms=22, expert_parallel=4),
    "without_sms": broken(num_sms=None),
}))
"""


def test_a_new_backend_is_one_row() -> None:
    path = ":".join(str(ROOT / folder) for folder in (".", "trials", "policies"))
    argv = [sys.executable, "-c", PROGRAM, str(TABLE)]
    done = subprocess.run(argv, env={"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    assert (found["type"], found["backend"], found["sms"], found["others"]) == ("flex", "newep", 24, False)
    assert "dispatcher=newep cannot be expressed in Megatron-Core 0.18" in found["refusal"]
    assert found["probe"] == "No module named 'new_ep'"
    assert found["pinned"] == {"exact": "3.1"}
    assert found["legal"] == []
    assert found["illegal"] == ["MC067", "MC068"]
    assert found["without_sms"] == ["AT001"]
