"""Whatever stands in a file: a policy or one refusal, and whatever is applied: all of it or nothing."""

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune_policies import Policy, PolicyError, PolicyFormatError, dump_policy, load_policy, parse_policy
from autotune_policies.megatron_bridge import apply_container, read_container
from autotune_policies.megatron_core import render
from tests.support.resolved_containers import document_of, fields_of

EXAMPLE_FILE = Path(__file__).parent / "example.yaml"
TEXT = EXAMPLE_FILE.read_text(encoding="utf-8")
DOCUMENT: dict[str, Any] = yaml.safe_load(TEXT)
FAST: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
EXAMPLE = load_policy(EXAMPLE_FILE)
RUN: dict[str, Any] = {
    "model": "example-moe", "cluster": "example-cluster", "num_gpus": 32, "precision": "bf16", "seq_length": 4096,
    "global_batch_size": 256, "stack": {"megatron_core": "0.19.2", "torch": "2.8", "deep_ep": "1.2.1"},
}  # fmt: skip

FEW = settings(
    max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
MANY = settings(FEW, max_examples=5000)

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=8) | st.dates()
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | SCALARS, inner, max_size=4),
    max_leaves=10,
)
WORDS = st.sampled_from([
    *DOCUMENT, *DOCUMENT["settings"], *DOCUMENT["applies_to"], "{", "}", "[", "]", ": ", "- ", "\n", "  ", "\t", "&a ",
    "*a", "!!int ", "!!python/object:os.system ", "<<: ", "|", ">", "'", '"', "#", "%YAML 9.9\n", "---\n", "...\n",
    "? ", "~", "null", "1e999", ".nan", "0x1f", "1:30", "2026-01-01", "\x00", "\ufeff", "\u2028", "\ud800",
])  # fmt: skip


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(deeper for key, item in items for deeper in paths_of(item, (*path, key)))]


SMALL = {**DOCUMENT, "alternatives": [], "fallback": None}
PATHS = paths_of(SMALL)[1:]


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """The example with one to three places replaced, deleted or added to."""
    document = copy.deepcopy(SMALL)
    for path in draw(st.lists(st.sampled_from(PATHS), min_size=1, max_size=3)):
        holder: Any = document
        try:
            for key in path[:-1]:
                holder = holder[key]
            action = draw(st.sampled_from(["replace", "delete", "add", "swap"]))
            if action == "delete":
                del holder[path[-1]]
            elif action == "add":
                holder[draw(st.text(max_size=8))] = draw(TREES)
            elif action == "swap":
                other = draw(st.sampled_from(PATHS))
                holder[path[-1]] = copy.deepcopy(_at(other))
            else:
                holder[path[-1]] = draw(TREES)
        except (KeyError, IndexError, TypeError):  # an earlier change took the place away
            continue
    return document


def _at(path: tuple[Any, ...]) -> Any:
    value: Any = SMALL
    for key in path:
        value = value[key]
    return value


@st.composite
def edited(draw: st.DrawFn) -> str:
    """The example's text with pieces cut, doubled or put in."""
    text = TEXT
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 40)))
        text = (
            text[:start] + draw(st.just("") | st.just(text[start:end] * 2) | WORDS | st.text(max_size=5)) + text[end:]
        )
    return text


def written(document: Any) -> str:
    return str(yaml.dump(document, Dumper=FAST, allow_unicode=True))


TEXTS = mutated().map(written) | edited() | TREES.map(written) | st.lists(WORDS, max_size=30).map("".join) | st.text()


def check_text(text: str) -> None:
    policy = read(lambda: parse_policy(text, "p.yaml"), "p.yaml")
    if policy is not None:
        assert dump_policy(policy)  # reads its own text back
        check_application(policy)


def read(load: Callable[[], Policy], name: str) -> Policy | None:
    """The policy; None where it was refused as it should be. Anything else that is raised fails the test."""
    try:
        return load()
    except PolicyFormatError as error:
        message = error.message
    assert message.startswith(name), message
    assert "\n" not in message
    return None


def check_application(policy: Policy) -> None:
    """Applied whole, or refused with nothing changed."""
    try:
        rendered = render(policy.settings, "0.19").transformer
    except PolicyError:
        rendered = {}
    names = rendered or render(EXAMPLE.settings, "0.19").transformer
    config = SimpleNamespace(**dict.fromkeys(names, "before"))
    before = dict(vars(config))
    try:
        applied = policy.apply(config, **RUN)
    except PolicyError:
        assert vars(config) == before
    else:
        assert applied.fields == rendered
        assert vars(config) == rendered
    container = SimpleNamespace(**{
        name: dict(value) if name == "env_vars" else SimpleNamespace(**value)
        for name, value in document_of(fields_of(EXAMPLE), model__num_layers=8, train__manual_gc=True).items()
    })  # fmt: skip
    unchanged = copy.deepcopy(container)
    releases = {"megatron_core": "0.19.2", "megatron_bridge": "0.6.2"}
    try:
        apply_container(container, policy.settings, policy.env, **releases)
    except PolicyError:
        assert container == unchanged
    else:
        found = read_container(container, **releases)
        assert {name: container.env_vars.get(name) for name in policy.env} == policy.env
        assert found["tensor_parallel"] == policy.settings["tensor_parallel"]
        assert found["dispatcher"] == policy.settings["dispatcher"]


@pytest.fixture(autouse=True)
def outside_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has not imported torch may still be given variables; they must not reach other tests."""
    monkeypatch.setattr("autotune_policies.apply.check_environment", lambda *arguments: None)
    monkeypatch.setattr("autotune_policies.apply.os.environ", {"PATH": "/nowhere"})


@given(TEXTS)
@FEW
def test_a_text_is_a_policy_or_refused(text: str) -> None:
    check_text(text)


@given(st.binary(max_size=200) | TEXTS.map(lambda text: text.encode("utf-8", errors="surrogatepass")))
@FEW
def test_a_file_is_a_policy_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_bytes(data)
    policy = read(lambda: load_policy(path), str(path))
    if policy is not None:
        check_application(policy)


def test_a_message_is_one_line_whatever_the_key() -> None:
    with pytest.raises(PolicyFormatError) as caught:
        parse_policy(TEXT + '"a\\n\\x01": !!binary ""\n', "p.yaml")
    assert "'a\\n\\x01' is a bytes" in caught.value.message


@pytest.mark.slow
@given(TEXTS)
@MANY
def test_five_thousand_texts(text: str) -> None:
    check_text(text)


@pytest.mark.slow
@given(mutated())
@MANY
def test_five_thousand_mutated_policies(document: Any) -> None:
    check_text(written(document))
