"""What a legality rule is, what it judges, and what it says."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from autotune.constraint.versions import Versions
from autotune.request import TuneRequest
from autotune_policies.backends import BACKENDS, Backend
from autotune_policies.settings import Settings
from autotune_policies.surroundings import environment_of
from autotune_trials.spec import Contract, GangShape, ModelShape

Certainty = Literal["certain", "suspect"]
Severity = Literal["refuse", "warn"]
Verdict = tuple[float, str] | None
"""None when a rule holds, else the amount (> 0) and the message."""

_HOPPER = ("H100", "H200", "H20", "GH200")


@dataclass(frozen=True)
class Candidate:
    """Settings together with everything a rule may look at.

    Attributes:
        settings: All canonical settings.
        shape: Architecture of the model.
        contract: Batch, sequence length, precision.
        gang: Ranks and nodes.
        nvlink_domain_gpus: GPUs of one NVLink domain.
        stack: Versions by distribution name (``megatron_core``, ``torch``, ``transformer_engine``, ...); a name that
            is absent is not installed. None when the stack is not known yet: rules that ask for a version hold back.
        sm_count: Streaming multiprocessors of one GPU; None when not known.
        accelerator: The GPU's name as Ray has it; None on a CPU.
        env: Variables of every rank; None when not known: rules on variables hold back.
        gpus_per_node: GPUs of one node, used or not; None when not known.
    """

    settings: Settings
    shape: ModelShape
    contract: Contract
    gang: GangShape
    nvlink_domain_gpus: int = 1
    stack: Mapping[str, str] | None = None
    sm_count: int | None = None
    accelerator: str | None = None
    env: Mapping[str, str] | None = None
    gpus_per_node: int | None = None

    def number(self, name: str) -> int:
        """An integer setting."""
        value = self.settings[name]
        assert isinstance(value, int)
        return value

    def names(self, name: str) -> list[str]:
        """A list setting."""
        value = self.settings[name]
        assert isinstance(value, list)
        return value

    @property
    def backend(self) -> Backend:
        """The dispatcher's backend."""
        return BACKENDS[str(self.settings["dispatcher"])]

    @property
    def num_sms(self) -> int | None:
        """SMs lent to the dispatcher."""
        value = self.settings["num_sms"]
        return value if isinstance(value, int) else None

    @property
    def expert_group(self) -> int:
        """Ranks that exchange tokens."""
        return self.number("expert_parallel") * self.number("expert_tensor_parallel")

    @property
    def tokens_per_rank(self) -> float:
        """Tokens that one rank dispatches per micro-batch."""
        split = self.number("context_parallel") * (
            self.number("tensor_parallel") if self.settings["sequence_parallel"] else 1
        )
        return self.contract.seq_length * self.number("micro_batch_size") / split

    @property
    def data_parallel(self) -> float:
        """Data-parallel ranks; a fraction when the layout does not divide the gang."""
        model = self.number("tensor_parallel") * self.number("pipeline_parallel") * self.number("context_parallel")
        return self.gang.world_size / model

    @property
    def num_microbatches(self) -> float:
        """Micro-batches per step on one data-parallel rank; a fraction when the batch does not divide."""
        return self.contract.global_batch_size / (self.number("micro_batch_size") * self.data_parallel)

    @property
    def is_moe(self) -> bool:
        """Whether the model has experts."""
        return self.shape.num_experts is not None

    @property
    def has_dense_layers(self) -> bool:
        """Whether there are feed-forward layers without experts."""
        if self.shape.hybrid_pattern is not None:
            return "-" in self.shape.hybrid_pattern
        return not self.is_moe or self.shape.num_dense_layers > 0

    @property
    def is_dropless(self) -> bool:
        """Whether every token reaches its experts, so that sizes change from step to step."""
        return self.contract.routing.token_policy == "dropless"

    @property
    def has_fixed_sizes(self) -> bool:
        """Whether experts get the same number of rows in every step: padded capacity, or a rank's own."""
        if self.contract.routing.token_policy == "capacity":
            return True
        return self.backend.limits.static_shapes and self.settings["rank_capacity_factor"] is not None

    @property
    def variables(self) -> Mapping[str, str] | None:
        """The variables of every rank, those of settings included; None when not known."""
        return None if self.env is None else {**self.env, **environment_of(self.settings)}

    @property
    def is_hopper(self) -> bool:
        """Whether the GPUs are of compute capability 9."""
        return self.accelerator in _HOPPER

    @property
    def per_layer_graphs(self) -> bool:
        """Whether CUDA graphs are captured layer by layer."""
        return self.settings["cuda_graph_impl"] in ("local", "transformer_engine")


def candidate(request: TuneRequest, settings: Settings, stack: Mapping[str, str] | None) -> Candidate:
    """Settings of a request with everything the rules look at."""
    cluster = request.cluster
    return Candidate(
        settings=settings,
        shape=request.shape,
        contract=request.contract,
        gang=request.gang,
        nvlink_domain_gpus=cluster.nvlink_domain_gpus,
        stack=stack,
        sm_count=cluster.sm_count,
        accelerator=cluster.accelerator,
        env=cluster.env,
        gpus_per_node=cluster.gpus_per_node,
    )


@dataclass(frozen=True)
class Violation:
    """A rule that does not hold.

    Attributes:
        rule: Its id.
        amount: By how much, > 0; comparable within a rule only.
        message: What is wrong with its value, the bound it broke, and legal values where they can be named.
        certainty: ``suspect`` when the rule may be wrong; a run can be told to try it (``--probe-rules``).
    """

    rule: str
    amount: float
    message: str
    certainty: Certainty = "certain"


@dataclass(frozen=True)
class Rule:
    """One legality rule.

    Attributes:
        id: Stable name; MC numbers are those of the published rule table, AT numbers our own.
        source: Where the rule comes from.
        check: None when it holds, else the amount (> 0) and the message.
        certainty: ``certain``, or ``suspect`` where it is derived or was retracted upstream.
        severity: ``refuse``: the run would die, or not run what was asked; ``warn``: it runs, but rarely well.
        applies: Versions that it holds for, by name in the stack; a name that is absent: all.
    """

    id: str
    source: str
    check: Callable[[Candidate], Verdict]
    certainty: Certainty = "certain"
    severity: Severity = "refuse"
    applies: Mapping[str, Versions] = field(default_factory=dict)

    def judge(self, candidate: Candidate) -> Violation | None:
        """The violation, or None when the rule holds or is not for these versions."""
        if self.applies:  # most rules hold for all versions, and this is asked very often
            stack = candidate.stack or {}
            if not all(versions.hold_for(name, stack.get(name)) for name, versions in self.applies.items()):
                return None
        verdict = self.check(candidate)
        return None if verdict is None else Violation(self.id, *verdict, self.certainty)
