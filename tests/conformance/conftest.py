"""Gangs of every kind, running a stand-in rank program, and a look at what they leave behind."""

import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune.scheduling.environment import prepare
from autotune.scheduling.gang import Gang
from autotune.scheduling.local_gang import LocalGang
from autotune_trials.spec import Contract, GangShape, ModelShape, TrialSpec

prepare()  # Ray reads its variables when it is imported

ROOT = Path(__file__).parents[2]
STAND_IN = [sys.executable, str(Path(__file__).with_name("stand_in_rank.py"))]
MODEL = ModelShape(name="none", num_layers=1, hidden_size=8, num_attention_heads=1, vocab_size=16, ffn_hidden_size=8)

OpenGang = Callable[..., Gang]
MakeSpec = Callable[..., TrialSpec]


class Family:
    """The processes of one test, found by a word in their environment or their arguments."""

    def __init__(self) -> None:
        self.marker = uuid.uuid4().hex

    def pids(self, *also: str) -> list[int]:
        """Living members; with further ``NAME=value`` words, only those that have these in their environment."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                environ = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
                if (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                    continue
            except OSError:
                continue
            ours = f"TEST_MARKER={self.marker}" in environ or self.marker in command
            if ours and all(word in environ for word in also):
                found.append(int(entry.name))
        return found

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Whether the condition came true in time."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True

    def gone(self, seconds: float = 5.0) -> bool:
        return self.wait(lambda: not self.pids(), seconds)


@pytest.fixture
def family() -> Iterator[Family]:
    members = Family()
    yield members
    assert members.gone(), f"left behind: {members.pids()}"


@pytest.fixture
def make_spec(family: Family) -> MakeSpec:
    """A specification whose ranks behave as told: ``make_spec({1: "segv"}, nodes=2, deadline_s=5)``."""

    def make(
        behaviours: dict[int, str] | None = None,
        *,
        nodes: int = 1,
        ranks: int = 2,
        deadline_s: float = 20.0,
        stall_s: float = 20.0,
        trial: int = 0,
    ) -> TrialSpec:
        return TrialSpec(
            study=f"test-{family.marker[:8]}",
            trial=trial,
            model=MODEL,
            contract=Contract(seq_length=8, global_batch_size=2),
            settings={},
            gang=GangShape(num_nodes=nodes, ranks_per_node=ranks, device="cpu"),
            env={"STAND_IN": json.dumps(behaviours or {}), "TEST_MARKER": family.marker},
            deadline_s=deadline_s,
            stall_s=stall_s,
        )

    return make


@pytest.fixture(scope="module")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Ray of our own on loopback, with room for four ranks."""
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        folders = [str(ROOT), str(ROOT / "trials"), str(ROOT / "policies")]
        patch.setenv("PYTHONPATH", os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")]))
        patch.setenv("AUTOTUNE_SCRATCH", str(tmp_path_factory.mktemp("scratch")))
        ray.init(
            address="local",
            num_cpus=2,
            resources={"rank": 4},
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=80 << 20,
            _node_ip_address="127.0.0.1",
        )
        yield
        ray.shutdown()


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.service)])
def open_gang(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenGang]:
    """Opens a gang of each kind for a specification; closed after the test."""
    opened: list[Gang] = []
    if request.param == "local":

        def open_local(spec: TrialSpec, *, fence_s: float | None = None, argv: list[str] = STAND_IN) -> Gang:
            opened.append(LocalGang(tmp_path, argv=argv, fence_s=fence_s))
            return opened[-1]

        yield open_local
        for gang in opened:
            gang.close()
        return

    request.getfixturevalue("ray_cluster")
    from ray.util import placement_group, remove_placement_group

    from autotune.scheduling.ray_gang import FENCE_S, RayGang, node_bundle

    groups = []

    def open_ray(spec: TrialSpec, *, fence_s: float | None = None, argv: list[str] = STAND_IN) -> Gang:
        groups.append(placement_group([node_bundle(spec)] * spec.gang.num_nodes, strategy="PACK"))
        opened.append(RayGang(argv=argv, fence_s=fence_s or FENCE_S, placement_group=groups[-1]))
        return opened[-1]

    yield open_ray
    for gang in opened:
        gang.close()
    for group in groups:
        remove_placement_group(group)
