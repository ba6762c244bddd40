"""What a legality rule is, what it judges, and what it says."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from autotune_policies.settings import Settings
from autotune_trials.spec import Contract, GangShape, ModelShape


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
            is absent is not installed. None when the stack is not known yet: rules on versions then hold back.
    """

    settings: Settings
    shape: ModelShape
    contract: Contract
    gang: GangShape
    nvlink_domain_gpus: int = 1
    stack: Mapping[str, str] | None = None

    def number(self, name: str) -> int:
        """An integer setting."""
        value = self.settings[name]
        assert isinstance(value, int)
        return value

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


@dataclass(frozen=True)
class Violation:
    """A rule that does not hold.

    Attributes:
        rule: Its id.
        amount: By how much, > 0; comparable within a rule only.
        message: What is wrong with its value, the bound it broke, and legal values where they can be named.
    """

    rule: str
    amount: float
    message: str


@dataclass(frozen=True)
class Rule:
    """One legality rule.

    Attributes:
        id: Stable name; MC numbers are those of the published rule table, AT numbers our own.
        source: Where the rule comes from.
        check: None when it holds, else the amount (> 0) and the message.
        certainty: ``certain``, or ``suspect`` where it is derived or was retracted upstream.
    """

    id: str
    source: str
    check: Callable[[Candidate], tuple[float, str] | None]
    certainty: Literal["certain", "suspect"] = "certain"
