"""From the cells of a table's row to what the predictors take: cluster, shape, contract, settings, number of GPUs.

A blank cell is unknown. What a run must have had is filled in as the vendors' recipes of the time had it (fused
permutation, overlapped gradient reduction and parameter gather, the dispatcher's default SM budget), since a published
row names what is special about it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from autotune import resources
from autotune.cluster import Cluster, load_cluster
from autotune.errors import RequestError
from autotune.predict.columns import first_number
from autotune.predict.dispatch_load import BF16_BYTES, FP8_BYTES, DispatchLoad
from autotune.predict.numerics import Numerics
from autotune.predict.published_shapes import shape_of
from autotune.predict.table import MeasurementTable, TableRow
from autotune.predict.wording import modules, numerics_of, recomputed_in_words, told
from autotune_policies.errors import PolicyError
from autotune_policies.settings import SETTINGS, Setting, Settings, model_parallel_ranks, resolve
from autotune_trials.spec import Contract, GangShape, ModelShape, Routing

USUAL: Mapping[str, object] = {
    "permute_fusion": True, "grouped_gemm": True, "overlap_grad_reduce": True, "overlap_param_gather": True,
}  # fmt: skip
"""What published runs have unless they say otherwise."""

USUAL_SMS = {"deepep": 20, "hybridep": 16, "ncclep": 16}
"""The SM budget of a row that names none: the backends' own defaults."""

USUAL_SEQ_LENGTH = 4096
"""Tokens per sequence of the published benchmarks."""

_PROXIED = re.compile(r"\bawslabs\b|\bEFA\b|\bUCCL\b")
"""Sources whose messages between nodes pass a host thread."""

_SHORT_SIZES = {
    "tp": "tensor_parallel", "pp": "pipeline_parallel", "cp": "context_parallel", "ep": "expert_parallel",
    "etp": "expert_tensor_parallel",
}  # fmt: skip

_OTHER_NAMES = {
    "mbs": "micro_batch_size", "layer_num": "num_layers", "seq_len": "seq_length", "gbs": "global_batch_size",
    "data_parallel_size": "data_parallel",
}  # fmt: skip


@dataclass(frozen=True)
class Placed:
    """A row as the step predictors take it.

    Attributes:
        cluster: Where it ran.
        model: Architecture.
        contract: Sequence length, batch, precision, routing.
        settings: All canonical settings.
        gang: Number of GPUs.
        numerics: State formats of the training program.
        stack: Release or commit; what shares one efficiency factor.
        assumed: What the row leaves open and had to be filled in, or could not be placed, one clause each.
    """

    cluster: Cluster
    model: ModelShape
    contract: Contract
    settings: Settings
    gang: GangShape
    numerics: Numerics
    stack: str
    assumed: tuple[str, ...] = ()


def place(row: TableRow, table: MeasurementTable) -> Placed:
    """A row of whole training steps.

    Raises:
        RequestError: a model, cluster or size that is unknown, a value that a setting cannot have, or a layout that
            the GPUs cannot hold.
    """
    cells = _named(row.cells)
    cluster = place_cluster(cells)
    model = shape_of(_cell(cells, "model"), table.models, _whole(cells, "num_layers"))
    assumed: list[str] = []
    if model.num_experts and "dispatcher" not in cells:
        cells["dispatcher"] = _usual_dispatcher(cells, cluster)
        assumed.append(f"dispatcher taken as {cells['dispatcher']}")
    unknown = _unknown_modules(cells)
    if unknown:
        assumed.append(f"recomputation of {', '.join(unknown)} is left out")
    settings = place_settings(cells)
    replica = model_parallel_ranks(settings)
    data_parallel = _whole(cells, "data_parallel")
    num_gpus = _whole(cells, "num_gpus") or (data_parallel * replica if data_parallel else None)
    if num_gpus is None:
        raise RequestError("num_gpus is blank")
    span = replica
    for name in ("expert_parallel", "expert_tensor_parallel"):
        size = settings[name]
        assert isinstance(size, int)
        span = size if name == "expert_parallel" else span * size
    pipeline = settings["pipeline_parallel"]
    assert isinstance(pipeline, int)
    for what, ranks in (
        ("tensor x pipeline x context", replica),
        ("expert x expert-tensor x pipeline", span * pipeline),
    ):
        if num_gpus % ranks:
            raise RequestError(f"num_gpus={num_gpus} is no multiple of {what} parallel = {ranks}")
    micro_batch = settings["micro_batch_size"]
    assert isinstance(micro_batch, int)
    batch = _whole(cells, "global_batch_size")
    accumulated = _whole(cells, "num_microbatches") or _whole(cells, "gradient_accumulation")
    if batch is None and accumulated:
        batch = accumulated * micro_batch * (num_gpus // replica)
    if batch is None:
        raise RequestError("global_batch_size is blank")
    routing = Routing(
        cells.get("routing_source", "forced_balance"),
        cells.get("data_condition", "mock_random"),
        cells.get("token_policy", "dropless"),
    )
    contract = Contract(_seq_length(cells), batch, cells.get("precision", "bf16"), routing=routing)
    nodes = -(-num_gpus // cluster.gpus_per_node)
    gang = GangShape(nodes, num_gpus // nodes)
    numerics = numerics_of(cells, table.source)
    if numerics.assumed:
        assumed.append("gradient and optimizer types taken as Megatron's defaults")
    return Placed(cluster, model, contract, settings, gang, numerics, _stack(cells), tuple(assumed))


def _usual_dispatcher(cells: Mapping[str, str], cluster: Cluster) -> str:
    """What a row that names no dispatcher had: NeMo's recipes the NVLink domain's, all others Megatron's default.

    Source: settings of the recipes of Megatron-Bridge that do name one: HybridEP on NVL72, DeepEP on nodes of eight.
    """
    if not cells.get("stack", "").startswith("nemo"):
        return "alltoall"
    return "hybridep" if cluster.nvlink_domain_gpus > 8 else "deepep"


def _recomputed(cells: Mapping[str, str]) -> str:
    return cells.get("recompute_modules", "") or recomputed_in_words(cells.get("note", ""))


def _unknown_modules(cells: Mapping[str, str]) -> list[str]:
    return modules(SETTINGS["recompute_modules"], _recomputed(cells))[1]


def place_cluster(cells: Mapping[str, str]) -> Cluster:
    """The cluster that a row names, or whose GPU it names.

    Raises:
        RequestError: neither, or an unknown one.
    """
    name = cells.get("cluster")
    if name is None:
        device = cells.get("device", "")
        name = next((word.lower() for word in device.split() if word.lower() in resources.names("clusters")), None)
        if name is None:
            raise RequestError(f"cluster of device {device!r} is not known" if device else "cluster is blank")
    cluster = _cluster(name)
    if _PROXIED.search(f"{cells.get('source', '')} {cells.get('note', '')}"):
        return cluster.model_copy(update={"nic_proxied": True})
    return cluster


def place_settings(cells: Mapping[str, str]) -> Settings:
    """All canonical settings of a row; names in a list that are no names of modules are left out.

    Raises:
        RequestError: a value that a setting cannot have.
    """
    given: dict[str, object] = dict(USUAL)
    for size in re.finditer(r"(etp|tp|pp|cp|ep)(\d+)", cells.get("parallel_string", "")):
        given[_SHORT_SIZES[size[1]]] = int(size[2])
    for name, setting in SETTINGS.items():
        text = cells.get(f"p.{name}", cells.get(name))
        if text is not None:
            given[name] = _value(setting, text)
    if "zero_stage" in cells:
        given["distributed_optimizer"] = cells["zero_stage"] != "0"
    if cells.get("stack", "").startswith("nemo") and given.get("cuda_graph_impl") == "full_iteration":
        # All 97 recipes of Megatron-Bridge 0.5 to 0.6 that capture whole iterations also fuse the experts.
        given.setdefault("op_fuser", True)
    # A column says more surely than a note what was set.
    given.update({name: value for name, value in told(cells.get("note", "")).items() if name not in cells})
    named, unknown = modules(SETTINGS["recompute_modules"], _recomputed(cells))
    if named and given.get("recompute_granularity") != "full":
        given["recompute_granularity"], given["recompute_modules"] = "selective", named
    if given.get("recompute_granularity") == "selective" and not named:
        # Megatron's default module; but another one that is not known here must not turn into it.
        given["recompute_granularity"] = None if unknown else "selective"
        given["recompute_modules"] = [] if unknown else ["core_attn"]
    dispatcher = given.get("dispatcher")
    if given.get("num_sms") is None and dispatcher in USUAL_SMS:
        given["num_sms"] = USUAL_SMS[str(dispatcher)]
    if "sequence_parallel" not in given:
        tensor = given.get("tensor_parallel", 1)
        given["sequence_parallel"] = isinstance(tensor, int) and tensor > 1
    try:
        return resolve(given)
    except PolicyError as error:
        raise RequestError(str(error)) from error


def place_dispatch(row: TableRow) -> tuple[Cluster, str, DispatchLoad, dict[str, int | None]]:
    """A row of a dispatcher benchmark: cluster, backend, load, and the SM budget of dispatch and of combine.

    Raises:
        RequestError: a cluster or a size that is unknown.
    """
    cells = row.cells
    cluster = place_cluster(cells)
    nodes = _whole(cells, "node_num") or _whole(cells, "num_nodes") or 1
    ranks = _whole(cells, "expert_parallel") or nodes * cluster.gpus_per_node
    domains = -(-ranks // cluster.nvlink_domain_gpus)
    load = DispatchLoad(
        tokens=_needed(cells, "tokens_per_rank"),
        hidden_size=_needed(cells, "hidden_size"),
        topk=_needed(cells, "num_topk"),
        num_experts=_needed(cells, "num_experts"),
        expert_parallel=ranks,
        num_domains=domains,
        dispatch_element_bytes=FP8_BYTES if cells.get("dtype", "").startswith("fp8") else BF16_BYTES,
    )
    common = _whole(cells, "num_sms")
    budgets = {name: _whole(cells, f"num_sms_{name}") or common for name in ("dispatch", "combine")}
    backend = cells.get("backend") or cells.get("dispatcher") or cells.get("library") or "deepep"
    return cluster, re.sub(r"_v\d+$", "", backend), load, budgets


def seq_length(cells: Mapping[str, str]) -> int:
    """Tokens per sequence: the row's column, else what its name says (``..._seq32768_...``), else 4096."""
    return _seq_length(_named(cells))


def _seq_length(cells: Mapping[str, str]) -> int:
    said = re.search(r"(?<![a-z])seq(\d+)", cells.get("case", ""))
    return _whole(cells, "seq_length") or (int(said[1]) if said else USUAL_SEQ_LENGTH)


def _named(cells: Mapping[str, str]) -> dict[str, str]:
    return {_OTHER_NAMES.get(name, name): text for name, text in cells.items()}


@lru_cache(maxsize=64)
def _cluster(name: str) -> Cluster:
    return load_cluster(name)


def _cell(cells: Mapping[str, str], name: str) -> str:
    if name not in cells:
        raise RequestError(f"{name} is blank")
    return cells[name]


def _whole(cells: Mapping[str, str], name: str) -> int | None:
    number = first_number(cells.get(name, ""))
    return None if number is None else int(number)


def _needed(cells: Mapping[str, str], name: str) -> int:
    number = _whole(cells, name)
    if number is None:
        raise RequestError(f"{name} is blank")
    return number


def _value(setting: Setting, text: str) -> object:
    """The value of a cell; text that is no value is handed on, so that the refusal can name it."""
    if setting.kind == "list":
        return modules(setting, text)[0]
    if setting.kind == "bool":
        return {"true": True, "false": False}.get(text.lower(), text)
    if setting.kind in ("int", "float"):
        number = first_number(text)
        if number is None:
            return text
        return int(number) if setting.kind == "int" else number
    return None if setting.optional and text == "none" else text


def _stack(cells: Mapping[str, str]) -> str:
    return cells.get("stack") or cells.get("commit") or cells.get("program") or ""
