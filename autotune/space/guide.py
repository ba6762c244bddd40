"""The selection guide: statements on which dispatcher suits what, each a row with its source.

A row never decides anything. It becomes a point that a search tries early, and what is known against it stands beside
it.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Literal

from pydantic import Field, field_validator

from autotune import resources, validation
from autotune_policies.settings import check_value

What = Literal["hardware", "ep_size", "family", "sms", "graph_scope", "routing", "interaction", "pitfall"]
_ORDER: tuple[What, ...] = ("family", "hardware", "ep_size")
"""Rows that name a dispatcher, the most specific kind first."""


class When(validation.Validated):
    """Where a row applies; a condition that is not there always holds.

    Attributes:
        model: Model names.
        cluster: Cluster names.
        other_clusters: Holds on every cluster but these.
        precision: Precisions of the contract.
        dispatcher: Dispatchers that the statement is about.
        expert_parallel: Smallest and largest size of the expert-parallel group; null = no bound.
    """

    model: list[str] = Field(default_factory=list)
    cluster: list[str] = Field(default_factory=list)
    other_clusters: list[str] = Field(default_factory=list)
    precision: list[str] = Field(default_factory=list)
    dispatcher: list[str] = Field(default_factory=list)
    expert_parallel: list[int | None] = Field(default_factory=list, max_length=2)

    def holds(self, model: str, cluster: str, precision: str, expert_parallel: int) -> bool:
        """Whether the row is about this run; the dispatcher is not asked."""
        low, high = self.expert_parallel or (None, None)
        return (
            (not self.model or model in self.model)
            and (not self.cluster or cluster in self.cluster)
            and cluster not in self.other_clusters
            and (not self.precision or precision in self.precision)
            and (low is None or expert_parallel >= low)
            and (high is None or expert_parallel <= high)
        )


class Row(validation.Validated):
    """One statement.

    Attributes:
        id: Short name.
        what: Its kind.
        says: The statement.
        because: The reason that it gives.
        when: Where it applies.
        prefer: Settings that it suggests, the first choice first.
        source: Where it stands.
        newer: Evidence that came later, for and against, each with its source.
    """

    id: str
    what: What
    says: str
    because: str = ""
    when: When = Field(default_factory=When)
    prefer: list[dict[str, Any]] = Field(default_factory=list)
    source: str
    newer: list[str] = Field(default_factory=list)

    @field_validator("prefer")
    @classmethod
    def _suggestions_are_settings(cls, prefer: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for index, one in enumerate(prefer):
            for name, value in one.items():
                with validation.at(index, name):
                    check_value(name, value)
        return prefer


class Guide(validation.Validated):
    """The guide (``search_spaces/guide.yaml``)."""

    schema_: Literal["autotune.guide/v1"] = Field(alias="schema")
    rows: list[Row] = Field(min_length=1)

    @field_validator("rows")
    @classmethod
    def _rows_are_named_once(cls, rows: list[Row]) -> list[Row]:
        names = [row.id for row in rows]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"row id {name!r} stands twice")
        return rows

    def about(self, what: What) -> list[Row]:
        """The rows of one kind, in the order of the file."""
        return [row for row in self.rows if row.what == what]


@cache
def load_guide() -> Guide:
    """The shipped guide.

    Raises:
        SpaceError: the file is wrong; names its line.
    """
    return validation.load(resources.guide_path(), Guide)


def suggestions(
    guide: Guide, model: str, cluster: str, precision: str, base: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Settings to try early, the most specific advice first; alltoall is the baseline and not repeated.

    Each dispatcher that a row about the family, the hardware or the size of the expert-parallel group names is tried
    with each start of its SM count, and with the graph scope that the guide recommends.

    Args:
        guide: The rows.
        model: Model name.
        cluster: Cluster name.
        precision: Precision of the contract.
        base: Settings that the suggestions come on top of.
    """
    expert_parallel = base.get("expert_parallel", 1)
    here = [row for row in guide.rows if row.when.holds(model, cluster, precision, expert_parallel)]
    scopes = [row.prefer[0] for row in here if row.what == "graph_scope" and row.prefer]
    # What is computed again in the backward pass cannot be captured as well.
    recomputed = base.get("recompute_granularity") == "full" or "moe" in (base.get("recompute_modules") or [])
    scope = scopes[0] if scopes and not recomputed else {}
    tried = ["alltoall"]
    for kind in _ORDER:
        for choice in (choice for row in here if row.what == kind for choice in row.prefer):
            dispatcher = choice.get("dispatcher", "alltoall")
            if dispatcher in tried:
                continue
            tried.append(dispatcher)
            for start in _sm_starts(here, dispatcher) or [{}]:
                yield {**scope, **choice, **start}


def usual_sms(guide: Guide, dispatcher: str) -> int | None:
    """SMs that a dispatcher's library starts with (DeepEP 20, HybridEP 16); None where the guide names none."""
    return next((start["num_sms"] for start in _sm_starts(guide.rows, dispatcher) if "num_sms" in start), None)


def _sm_starts(rows: Iterable[Row], dispatcher: str) -> list[dict[str, Any]]:
    return [start for row in rows if row.what == "sms" and dispatcher in row.when.dispatcher for start in row.prefer]
