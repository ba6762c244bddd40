"""``autotune preflight``: what it prints, its JSON document, its exit status."""

import json
from collections.abc import Iterator

import pytest

from autotune.cli import preflight as module
from autotune.cli.main import main
from autotune.scheduling.preflight import Preflight
from autotune_trials.preflight.devices import Finding
from autotune_trials.preflight.node import NodeReport
from autotune_trials.preflight.verdict import verdict

FACTS = {"cpu_count": 8, "gpus": ["NVIDIA H100"], "versions": {"torch": "2.13"}}
ALLTOALL = verdict("alltoall", 1.0, level="exchange")
MISSING = verdict(
    "deepep", 0.1, level="import", error="MissingLibrary", reason="libnvshmem_host.so.3: cannot open",
    fix="install it", provider="DeepEP V1 (deep-ep 1.2.1, /x/deep_ep/__init__.py)",
)  # fmt: skip
FUSION = verdict("permute_fusion", 0.1, level="permute", error="RuntimeError", reason="Triton cannot compile")
IMEX = Finding("imex", "warn", "no IMEX channel", "start it")


def node(host: str, *verdicts: dict, **facts: object) -> NodeReport:
    return NodeReport({"host": host, **FACTS, **facts}, {each["backend"]: each for each in verdicts}, (IMEX,))


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict]:
    """What the preflight is to find, and how it was asked."""
    asked: dict = {}

    def look(kind: str) -> object:
        def answer(*arguments: object, **options: object) -> Preflight:
            asked.update(kind=kind, arguments=arguments, options=options)
            return asked["answer"]

        return answer

    monkeypatch.setattr(module, "preflight_local", look("local"))
    monkeypatch.setattr(module, "preflight_address", look("address"))
    return asked


def test_reason_fix_and_provider_are_printed_by_node(found: dict, capsys: pytest.CaptureFixture[str]) -> None:
    found["answer"] = Preflight((node("a", ALLTOALL, MISSING), node("b", ALLTOALL, MISSING)))
    assert main(["preflight", "--address", "auto", "--cluster", "gb300", "--fresh"]) == 0
    assert (found["kind"], found["arguments"][0], found["options"]) == ("address", "auto", {"cached": False})
    out = capsys.readouterr().out
    for host in "ab":
        assert f"node {host}: 8 cores, GPUs: NVIDIA H100\n" in out
    for line in (
        "  deepep         no, at level import: MissingLibrary: libnvshmem_host.so.3: cannot open\n",
        "                 fix: install it\n",
        "                 is DeepEP V1 (deep-ep 1.2.1, /x/deep_ep/__init__.py)\n",
        "  imex        warn      no IMEX channel\n",
    ):
        assert out.count(line) == 2
    assert "usable on all 2 nodes: alltoall, allgather, hybridep, ncclep\n" in out


def test_the_json_document(found: dict, capsys: pytest.CaptureFixture[str]) -> None:
    found["answer"] = Preflight((node("a", ALLTOALL, MISSING, FUSION),))
    assert main(["preflight", "--json"]) == 0
    assert (found["kind"], found["options"]) == ("local", {"cached": True})
    out, err = capsys.readouterr()
    assert (out.count("\n"), err) == (1, "")
    document = json.loads(out)
    assert document["unavailable"]["deepep"] == "MissingLibrary: libnvshmem_host.so.3: cannot open"
    assert document["pinned"] == {"permute_fusion": False}
    assert document["difference"] is None
    assert len(document["fingerprint"]) == 12
    [told] = document["nodes"]
    assert (told["host"], told["verdicts"]["deepep"]["fix"]) == ("a", "install it")
    assert told["findings"][0] == {"name": "imex", "state": "warn", "says": "no IMEX channel", "fix": "start it"}


def test_what_could_not_be_tried_is_no_promise(found: dict, capsys: pytest.CaptureFixture[str]) -> None:
    why = "GPUs that can be used here: 0, needed: 1"
    untried = verdict("permute_fusion", 0.1, level="import") | {"untried": {"permute": why}}
    missing = MISSING | {"untried": {"exchange": why}}
    found["answer"] = Preflight((node("a", ALLTOALL, missing, untried), node("b", ALLTOALL, untried)))
    assert main(["preflight"]) == 0
    out = capsys.readouterr().out
    assert out.count(f"  permute_fusion available up to level import; not tried: permute: {why}\n") == 2
    assert "  alltoall       available\n" in out
    assert main(["preflight", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["untried"] == {"permute_fusion": f"permute: {why}"}
    assert document["nodes"][0]["verdicts"]["permute_fusion"]["untried"] == {"permute": why}
    assert document["pinned"] == {}


def test_nodes_that_differ_and_nodes_that_run_nothing_are_a_failure(
    found: dict, capsys: pytest.CaptureFixture[str]
) -> None:
    found["answer"] = Preflight((node("a", ALLTOALL), node("b", ALLTOALL, versions={"torch": "2.12"})))
    assert main(["preflight"]) == 1
    assert "no study can run on these nodes together: nodes differ in versions" in capsys.readouterr().out
    assert main(["preflight", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["fingerprint"] is None
    nothing = [verdict(name, 0.0, error="Crash", reason="died") for name in module.DISPATCHERS]
    found["answer"] = Preflight((node("a", *nothing),))
    assert main(["preflight"]) == 1
    assert "usable on this node: nothing" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "error: no Ray cluster answers at --address 127.0.0.1:1: Connection refused\nhint: "),
        ("nonsense", "error: --address 'nonsense' is neither HOST:PORT nor auto nor local\nhint: "),
    ],
)
def test_a_cluster_that_does_not_answer_is_one_line(
    capsys: pytest.CaptureFixture[str], address: str, message: str
) -> None:
    pytest.importorskip("ray")
    assert main(["preflight", "--address", address]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(message)
    assert len(err.splitlines()) == 2
