"""Reading and writing policy files."""

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import autotune_policies
from autotune_policies import PolicyFormatError, dump_policy, load_policy, parse_policy
from autotune_policies.documents import Document
from autotune_policies.environment import ALLOWED
from autotune_policies.settings import SETTINGS
from autotune_policies.validate import check_policy

EXAMPLE_FILE = Path(__file__).parent / "example.yaml"
EXAMPLE = EXAMPLE_FILE.read_text(encoding="utf-8")
DOCUMENT: dict[str, Any] = yaml.safe_load(EXAMPLE)
GOLDEN = Path(__file__).parents[2] / "golden" / "policies"
SCHEMA = json.loads(
    (Path(autotune_policies.__file__).parent / "schema" / "policy-v1.schema.json").read_text(encoding="utf-8")
)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def changed(path: str, value: Any) -> dict[str, Any]:
    """The example with one value replaced; the path is dotted, Ellipsis deletes."""
    document = copy.deepcopy(DOCUMENT)
    *parents, last = path.split(".")
    target: Any = document
    for parent in parents:
        target = target[int(parent) if isinstance(target, list) else parent]
    if value is ...:
        del target[last]
    else:
        target[last] = value
    return document


def refusal(read: Callable[[], object]) -> str | None:
    """The message with which the policy is refused; None = it is accepted. Anything else that is raised passes."""
    try:
        read()
    except PolicyFormatError as error:
        return error.message
    return None


def verdict(document: Any) -> str | None:
    """What our validation says against the document; None = nothing."""
    return refusal(lambda: parse_policy(yaml.safe_dump(document), "p.yaml"))


def test_the_example_is_read_as_it_stands() -> None:
    policy = load_policy(EXAMPLE_FILE)
    assert {"schema": "autotune.policy/v1", **policy._asdict()} == {
        **DOCUMENT, "name": str(EXAMPLE_FILE),
    }  # fmt: skip
    assert VALIDATOR.is_valid(DOCUMENT)


def test_dump_is_the_golden_text() -> None:
    golden = GOLDEN / "dump.yaml"
    text = dump_policy(load_policy(EXAMPLE_FILE))
    if os.environ.get("UPDATE_GOLDEN") == "1":
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def test_dump_and_parse_give_an_equal_policy_and_equal_text() -> None:
    policy = load_policy(EXAMPLE_FILE)
    text = dump_policy(policy)
    assert parse_policy(text) == policy
    assert dump_policy(parse_policy(text)) == text


def test_key_order_does_not_depend_on_the_order_of_the_source() -> None:
    policy = load_policy(EXAMPLE_FILE)
    shuffled = policy._replace(settings=dict(reversed(policy.settings.items())))
    assert dump_policy(shuffled) == dump_policy(policy)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)  # fmt: skip


@settings(max_examples=25, deadline=None)  # every example writes and reads a whole file
@given(extra=st.dictionaries(st.text(max_size=8), plain, max_size=4))
def test_any_plain_evidence_survives_the_round_trip(extra: dict[str, Any]) -> None:
    policy = load_policy(EXAMPLE_FILE)
    evidence = {**extra, **policy.evidence}
    assert parse_policy(dump_policy(policy._replace(evidence=evidence))).evidence == evidence


def test_a_shared_list_is_written_out_twice_instead_of_as_an_alias() -> None:
    policy = load_policy(EXAMPLE_FILE)
    shared = ["same", "list"]
    text = dump_policy(policy._replace(evidence={**policy.evidence, "a": shared, "b": shared}))
    assert "&" not in text
    assert text.count("[same, list]") == 2


@pytest.mark.parametrize("value", [float("nan"), (1, 2), {1, 2}, object()])
def test_values_that_yaml_would_change_cannot_be_dumped(value: object) -> None:
    policy = load_policy(EXAMPLE_FILE)
    with pytest.raises(PolicyFormatError):
        dump_policy(policy._replace(evidence={**policy.evidence, "extra": value}))


WRONG = [
    ("schema", "autotune.policy/v2", "schema is 'autotune.policy/v2'"),
    ("schema", ..., "schema is None"),
    ("applies_to", ..., "the policy has no applies_to"),
    ("aplies_to", {}, "unknown key 'aplies_to'"),
    ("applies_to.model", ..., "applies_to has no model"),
    ("applies_to.gpus", 8, "unknown key 'gpus'"),
    ("applies_to.model", 3, "applies_to.model 3 is not a text"),
    ("applies_to.model", {"min": "a"}, "applies_to.model has an unknown key 'min'"),
    ("applies_to.num_gpus", {}, "applies_to.num_gpus is empty"),
    ("applies_to.num_gpus", {"minimum": 3}, "unknown key 'minimum'"),
    ("applies_to.num_gpus", {"min": 0}, "min=0 is not a whole number"),
    ("applies_to.num_gpus", {"exact": 8, "min": 8}, "both exact and a range"),
    ("applies_to.num_gpus", True, "True is not a whole number"),
    ("applies_to.num_gpus", "16", "'16' is not a whole number"),
    ("applies_to.stack", {"torch": "2.6"}, "stack has no megatron_core"),
    ("applies_to.stack", "0.16", "applies_to.stack is not a mapping"),
    ("applies_to.stack.torch", 2.6, "applies_to.stack.torch 2.6 is not a text"),
    ("applies_to.stack.torch", {"min": 2.6}, "min=2.6 is not a version in quotes"),
    ("applies_to.stack.torch", {"max": "2.6"}, "unknown key 'max'"),
    ("settings.num_sms", ..., "settings has no num_sms"),
    ("settings.num_sm", 24, "unknown setting 'num_sm'"),
    ("settings.num_sms", "24", "num_sms='24' is not a whole number"),
    ("settings.dispatcher", "deep_ep", "dispatcher='deep_ep' is not legal"),
    ("settings.dispatcher", None, "dispatcher=null"),
    ("settings.recompute_modules", ["attn"], "recompute_modules contains 'attn'"),
    ("settings.ep_overlap", 1, "ep_overlap=1 is not true or false"),
    ("env", [], "env is not a mapping"),
    ("env", {"LD_PRELOAD": "x.so"}, "'LD_PRELOAD' cannot be set by a policy"),
    ("env", {"OMP_NUM_THREADS": 4}, "OMP_NUM_THREADS=4 is not a text"),
    ("env", {"OMP_NUM_THREADS": "4\n5"}, "one line"),
    ("env", {"OMP_NUM_THREADS": ""}, "one line"),
    ("env", {"USE_MNNVL": "0"}, "env.USE_MNNVL is for hybridep, but dispatcher is deepep"),
    ("settings.dispatcher", "hybridep", "env.NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN is missing"),
    ("launch", {"shell": "rm"}, "unknown key 'shell'"),
    ("launch", {"numa_binding": True}, "launch.numa_binding is not a mapping"),
    ("launch", {"numa_binding": {"gpus_per_numa_node": 0}}, "is 0, but it is a whole number"),
    ("launch", {"segment": "4"}, "launch.segment is '4'"),
    ("evidence.kind", "guessed", "evidence.kind is 'guessed'"),
    ("evidence.kind", ..., "evidence.kind is None"),
    ("evidence.kind", "predicted", "predicted, but trial is given"),
    ("evidence", {"kind": "predicted", "step_time_s": {"median": 2}}, "predicted, but step_time_s is given"),
    ("evidence", {"kind": "predicted", "mfu": 0.4}, "predicted, but mfu is given"),
    ("evidence.trial", "7", "evidence.trial is '7', but it is a whole number"),
    ("evidence.trial", True, "evidence.trial is True"),
    ("evidence.trial", -1, "evidence.trial is -1"),
    ("evidence.created_at", "yesterday", "evidence.created_at is 'yesterday', which is no date"),
    ("evidence.created_at", 2026, "evidence.created_at is 2026"),
    ("evidence.fingerprint", ..., "measured, but fingerprint is missing"),
    ("evidence.routing", None, "measured, but routing is missing"),
    ("evidence.tokens_per_s_per_gpu", 0, "is 0, but it is a number above 0"),
    ("evidence.mfu", "high", "evidence.mfu is 'high'"),
    ("evidence.step_time_s", 2.5, "evidence.step_time_s is not a mapping"),
    ("evidence.step_time_s", {"mean": 2.5}, "has no median"),
    ("evidence.step_time_s.ci95", [2.4], "a lower and an upper bound"),
    ("alternatives", {}, "alternatives is not a list"),
    ("alternatives", [{"trial": 1}], "an alternative is a mapping with 'settings'"),
    ("alternatives.0.settings.num_sms", "a", "num_sms='a' is not a whole number"),
    ("fallback", {}, "fallback has no micro_batch_size"),
    ("fallback", 3, "fallback is not a mapping"),
]
RIGHT = [
    ("alternatives", ...),
    ("fallback", ...),
    ("fallback", None),
    ("env", {}),
    ("launch", {}),
    ("launch", {"numa_binding": {"gpus_per_numa_node": 2}}),
    ("applies_to.num_gpus", 16),
    ("applies_to.num_gpus", {"exact": 16}),
    ("applies_to.model", {"exact": "m"}),
    ("applies_to.stack.cuda", "13.0"),
    ("applies_to.stack.megatron_core", {"min": "0.16", "below": "0.17"}),
    ("evidence.anything_else", {"is": ["allowed"]}),
    ("evidence", {"kind": "predicted", "predicted_step_time_s": {"value": 2}}),
    ("evidence.created_at", "2026-01-02"),
    ("evidence.trial", 0),
    ("evidence", {"kind": "replayed"}),
    ("evidence.step_time_s.ci95", None),
    ("evidence.mfu", None),
]


@pytest.mark.parametrize(("path", "value", "words"), WRONG, ids=[f"{row[0]}={row[1]}" for row in WRONG])
def test_wrong_documents_are_refused_by_us_and_by_the_schema(path: str, value: Any, words: str) -> None:
    document = changed(path, value)
    message = verdict(document)
    assert message is not None
    assert words in message
    assert message.startswith("p.yaml:")
    assert message.split(":")[1].isdecimal()
    assert not VALIDATOR.is_valid(document)


@pytest.mark.parametrize(("path", "value"), RIGHT, ids=[f"{row[0]}={row[1]}" for row in RIGHT])
def test_right_documents_are_accepted_by_us_and_by_the_schema(path: str, value: Any) -> None:
    document = changed(path, value)
    assert verdict(document) is None
    assert VALIDATOR.is_valid(document)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("applies_to.num_gpus", {"min": 9, "max": 8}, "min=9 above max=8"),
        ("applies_to.stack.torch", {"min": "2.7", "below": "2.7"}, "not below '2.7'"),
        ("evidence.step_time_s.ci95", [3.0, 2.0], "the lower bound stands first"),
        ("evidence.step_time_s.ci95", [2.6, 2.7], "the median 2.5 is not in it"),
        ("evidence.created_at", "2026-13-02", "which is no date"),
        ("applies_to.num_gpus", {"exact": 7}, "but applies_to.num_gpus is 7"),
    ],
)
def test_what_contradicts_itself_is_beyond_a_schema_but_not_beyond_us(path: str, value: Any, words: str) -> None:
    assert words in str(verdict(changed(path, value)))


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ("num_sms: 24", "num_smss: 24", "unknown setting 'num_smss'", "did you mean num_sms or num_sms_preprocessing?"),
        ("dispatcher: deepep", "dispatcher: depep", "dispatcher='depep' is not legal", "did you mean"),
        ("ep_overlap: true", "num_sms: 8", "key 'num_sms' stands twice, first in line 26", None),
        (
            'NCCL_GRAPH_REGISTER: "0"', 'NVLINK_DOMAIN_SIZE: "8"',
            "env.NVLINK_DOMAIN_SIZE is for hybridep, but dispatcher is deepep", "remove the line",
        ),
        ("created_at: ", "created_at: 2026-01-02 #", "evidence.created_at is a date", "quotes"),
        ("created_at: ", "created_at: 2026-99-02 #", "not readable as YAML", None),
        ("loss: 10.25", "loss: .nan", "evidence.loss is nan", "null = unknown"),
        ("loss: 10.25", "loss: !!python/object:os.system {}", "could not determine a constructor", None),
        ("loss: 10.25", "loss: !!int ''", "not readable as YAML", None),
        ("loss: 10.25", "loss: !!bool x", "not readable as YAML", None),
        ("loss: 10.25", "loss: !!timestamp x", "not readable as YAML", None),
        ("loss: 10.25", "7: 10.25", "key 7 is not a text", "quotes"),
        ("NCCL_GRAPH_REGISTER", "NCCL_GRAPH_REGISTERS", "variable", "did you mean NCCL_GRAPH_REGISTER?"),
        ("launch:", "lunch:", "the policy has an unknown key 'lunch'", "did you mean launch?"),
        ("trial: 7", "trial: [&a 7, *a]", "anchors and aliases are not used", None),
    ],
)  # fmt: skip
def test_the_line_is_named_and_the_closest_legal_name(old: str, new: str, message: str, hint: str | None) -> None:
    text = EXAMPLE.replace(old, new, 1)
    assert text != EXAMPLE
    line = next(number for number, row in enumerate(text.splitlines(), 1) if new in row)
    where = "p.yaml: " if "readable" in message else f"p.yaml:{line}: "
    with pytest.raises(PolicyFormatError) as caught:
        parse_policy(text, "p.yaml")
    assert caught.value.message.startswith(where + message)
    assert "\n" not in caught.value.message
    if hint:
        assert hint in str(caught.value.hint)


@pytest.mark.parametrize("text", ["", "[]", "a", "1", "---\na: 1\n---\nb: 2", "\x00", "{" * 300, "? [a]\n: b"])
def test_what_is_no_policy_at_all_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(PolicyFormatError) as caught:
        parse_policy(text, "p.yaml")
    assert caught.value.message.startswith("p.yaml")
    assert "\n" not in caught.value.message


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_bytes(b"schema: \xff\xfe")
    with pytest.raises(PolicyFormatError, match=r"p\.yaml: not UTF-8 text \(byte 8\)"):
        load_policy(path)


def test_a_missing_file_is_an_os_error() -> None:
    with pytest.raises(FileNotFoundError):
        load_policy("no/such/policy.yaml")


PATHS: list[tuple[str | int, ...]] = []


def _collect(value: Any, path: tuple[str | int, ...]) -> None:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        PATHS.append((*path, key))
        _collect(item, (*path, key))


_collect(DOCUMENT, ())


@settings(deadline=None)
@given(path=st.sampled_from(PATHS), value=plain, delete=st.booleans())
def test_nothing_but_one_line_refusals_comes_out_of_a_mutated_document(
    path: tuple[str | int, ...], value: Any, delete: bool
) -> None:
    document = copy.deepcopy(DOCUMENT)
    target: Any = document
    for part in path[:-1]:
        target = target[part]
    if delete:
        del target[path[-1]]
    else:
        target[path[-1]] = value
    message = refusal(lambda: check_policy(Document("p.yaml", document, {})))
    assert message is None or (message.startswith("p.yaml:") and len(message.splitlines()) == 1)


@settings(max_examples=25, deadline=None)  # every example reads a whole file
@given(start=st.integers(0, len(EXAMPLE)), length=st.integers(0, 30), text=st.text(max_size=10))
def test_text_damaged_anywhere_is_a_policy_or_a_refusal(start: int, length: int, text: str) -> None:
    damaged = EXAMPLE[:start] + text + EXAMPLE[start + length :]
    message = refusal(lambda: parse_policy(damaged, "p.yaml"))
    assert message is None or message.startswith("p.yaml")


def test_the_schema_knows_exactly_the_settings_and_variables_of_the_code() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    rows = SCHEMA["$defs"]["settings"]["properties"]
    assert list(rows) == SCHEMA["$defs"]["settings"]["required"] == list(SETTINGS)
    assert SCHEMA["properties"]["env"]["propertyNames"]["enum"] == list(ALLOWED)
    for name, row in SETTINGS.items():
        legal = {"list": rows[name].get("items", {}), "str": rows[name]}.get(row.kind, {})
        choices = [choice for choice in legal.get("enum", []) if choice is not None]
        assert choices == list(row.choices), name
        assert rows[name]["description"] == row.doc
        null_is_legal = VALIDATOR.evolve(schema=rows[name]).is_valid(None)
        assert null_is_legal == row.optional, name
