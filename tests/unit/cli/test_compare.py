"""``autotune compare``: the sentence, the JSON document, and files that are no series."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.cli.main import main
from autotune.measure import series


def write(path: Path, times: Sequence[float], first: int = 1) -> str:
    lines = [json.dumps({"step": first + at, "step_time_s": value, "loss": 1.5}) for at, value in enumerate(times)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def steady(level: float, count: int = 40) -> list[float]:
    return [level * (1.0 + 0.001 * (7 * place % 5)) for place in range(count)]


def test_the_contract_of_the_json_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = steady(1.05)
    slow[20] = 9.0
    a, b = write(tmp_path / "a.jsonl", steady(1.0)), write(tmp_path / "b.jsonl", slow)
    assert main(["compare", a, b, "--json"]) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    assert err == ""
    document = json.loads(out)
    assert document["verdict"] == "a_faster"
    assert document["ratio"] == pytest.approx(1 / 1.05, rel=2e-3)
    assert document["ci95"][0] <= document["ratio"] <= document["ci95"][1] < 1.0
    assert document["steps_used"] == [40, 39]
    assert document["contaminated"] == [0, 1]
    assert document["set_aside"] == [{}, {"pause": 1}]
    assert (document["reason"], document["unsteady"]) == ("", ["", ""])


def test_why_there_is_no_winner_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slowing = [*steady(1.0, 27), *steady(1.2, 33)]
    a, b = write(tmp_path / "a.jsonl", slowing), write(tmp_path / "b.jsonl", steady(1.05, 60))
    assert main(["compare", a, b]) == 0
    assert capsys.readouterr().out.startswith("tie: A is unsteady: 33 of 60 steps after warm-up are on another level")
    assert main(["compare", a, b, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["verdict"], document["contaminated"]) == ("tie", [0, 0])
    assert document["reason"] == f"A is unsteady: {document['unsteady'][0]}"
    assert document["unsteady"][1] == ""


@pytest.mark.parametrize(
    ("level", "arguments", "sentence"),
    [
        (1.05, [], "A is faster: its steps take 4.8% less time (time of A / time of B = 0.9524, 95 % interval 0."),
        (0.95, [], "B is faster: its steps take 5.0% less time (time of A / time of B = 1.0526, 95 % interval 1."),
        (1.00, [], "tie: A and B take the same time within 1 % (time of A / time of B = 1.0000, "),
        (1.03, ["--tie-within", "4"], "tie: the difference is below 4 % (time of A / time of B = 0.9709, "),
    ],
)
def test_the_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], level: float, arguments: list[str], sentence: str
) -> None:
    a, b = write(tmp_path / "a.jsonl", steady(1.0)), write(tmp_path / "b.jsonl", steady(level))
    assert main(["compare", a, b, *arguments]) == 0
    assert capsys.readouterr().out.startswith(sentence)


def test_noise_that_hides_the_difference_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = ([level * (1.0 + 0.1 * (3 * at % 7)) for at in range(8)] for level in (1.0, 1.03))
    assert main(["compare", write(tmp_path / "a.jsonl", a), write(tmp_path / "b.jsonl", b)]) == 0
    assert capsys.readouterr().out.startswith("tie: these steps do not tell A and B apart, more might (")


def test_what_was_set_aside_is_named_by_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = steady(1.0)
    times[0:2] = [30.0, 5.0]
    times[12] = times[33] = 4.0
    times[20:28] = [1.4 * value for value in times[20:28]]
    a, b = write(tmp_path / "a.jsonl", times, first=101), write(tmp_path / "b.jsonl", steady(1.0))
    assert main(["compare", a, b]) == 0
    _, of_a, of_b = capsys.readouterr().out.splitlines()
    assert of_a == (
        "A: median 1.002 s of 28 steps; 12 set aside: warm-up steps 101-102, pause steps 113 and 134, "
        f"disturbed steps 121-128   {a}"
    )
    assert of_b == f"B: median 1.002 s of 40 steps; 0 set aside   {b}"


GOOD = '{"step": 1, "step_time_s": 0.5}\n'

WRONG: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "a.jsonl: 0 steps, but at least 4 are needed"),
    "one step": (GOOD.encode(), "a.jsonl: 1 step, but at least 4 are needed"),
    "cut off": (GOOD.encode() + b'{"step": 2, "step_ti', "a.jsonl:2: not JSON"),
    "not an object": (b"[1, 0.5]\n", "a.jsonl:1: not a JSON object"),
    "deep": (b"[" * 100_000, "a.jsonl:1: not JSON"),
    "binary": (b"\x00\xff\xfe\n", "a.jsonl:1: not JSON"),
    "no step": (b'{"step_time_s": 0.5}\n', "a.jsonl:1: no step"),
    "no time": (b'{"step": 1, "step_time_ms": 0.5}\n', "a.jsonl:1: no step_time_s"),
    "NaN": (GOOD.encode() + b'\n{"step": 2, "step_time_s": NaN}\n', "a.jsonl:3: step_time_s = nan must be a positive"),
    "nan in quotes": (b'{"step": 1, "step_time_s": "nan"}\n', "a.jsonl:1: step_time_s = 'nan' must be"),
    "negative": (b'{"step": 1, "step_time_s": -0.5}\n', "a.jsonl:1: step_time_s = -0.5 must be a positive"),
    "zero": (b'{"step": 1, "step_time_s": 0}\n', "a.jsonl:1: step_time_s = 0 must be a positive"),
    "infinite": (b'{"step": 1, "step_time_s": 1e999}\n', "a.jsonl:1: step_time_s = inf must be"),
    "huge": (b'{"step": 1, "step_time_s": 1' + b"0" * 400 + b"}\n", "a.jsonl:1: step_time_s = 1000"),
    "true": (b'{"step": 1, "step_time_s": true}\n', "a.jsonl:1: step_time_s = True must be"),
    "text": (b'{"step": "1", "step_time_s": 0.5}\n', "a.jsonl:1: step = '1' must be a whole number"),
    "half": (b'{"step": 1.5, "step_time_s": 0.5}\n', "a.jsonl:1: step = 1.5 must be a whole number"),
    "same step": (GOOD.encode() * 2, "a.jsonl:2: step = 1 must be above the step before, 1"),
    "long line": (b" " * ((1 << 20) + 1), "a.jsonl:1: longer than 1,048,576 bytes"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_series_is_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    content, message = WRONG[name]
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    assert main(["compare", str(path), write(tmp_path / "b.jsonl", steady(1.0)), "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    error, *hints = err.splitlines()
    assert error.startswith("error: ")
    assert message in error
    assert len(error) < 300
    assert all(hint.startswith("hint: ") for hint in hints)


def test_paths_that_are_no_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write(tmp_path / "b.jsonl", steady(1.0))
    assert main(["compare", good, str(tmp_path)]) == 2
    assert "cannot be read: Is a directory" in capsys.readouterr().err
    assert main(["compare", str(tmp_path / "none.jsonl"), good]) == 2
    assert "none.jsonl: cannot be read: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("percent", ["-1", "51", "nan", "inf"])
def test_a_margin_that_is_none_is_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str], percent: str) -> None:
    good = write(tmp_path / "b.jsonl", steady(1.0))
    assert main(["compare", good, good, "--tie-within", percent]) == 2
    assert f"--tie-within {percent} must be from 0 to 50 percent" in capsys.readouterr().err


def test_too_many_steps_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series, "MOST_STEPS", 10)
    good = write(tmp_path / "b.jsonl", steady(1.0))
    assert main(["compare", good, good]) == 2
    assert "b.jsonl:11: more than 10 steps" in capsys.readouterr().err


@given(st.binary(max_size=200))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_file_ends_in_a_traceback(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any.jsonl"
    path.write_bytes(content)
    assert main(["compare", str(path), str(path)]) == 2
