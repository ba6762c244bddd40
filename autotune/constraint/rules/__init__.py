"""The legality rules by topic, one function each.

MC numbers follow the validation code of Megatron-Core 0.16 to 0.19 (file and line of 0.19.2 in ``source``), AT numbers
are rules that upstream lacks although the run would die or the setting would have no effect. Upstream accepts more
than can run, so everything called legal here must be accepted by the installed TransformerConfig, not the reverse.
``docs/rules.md`` says for every published rule where it went.
"""

from autotune.constraint.rule import Rule
from autotune.constraint.rules import (
    backends,
    cuda_graphs,
    data_parallel,
    dispatcher,
    experts,
    memory,
    model,
    overlap,
    pipeline,
    precision,
    topology,
)

RULES: tuple[Rule, ...] = (
    *topology.RULES,
    *model.RULES,
    *pipeline.RULES,
    *dispatcher.RULES,
    *backends.RULES,
    *experts.RULES,
    *overlap.RULES,
    *cuda_graphs.RULES,
    *memory.RULES,
    *precision.RULES,
    *data_parallel.RULES,
)
"""All rules, in the order in which people read violations: the grid first, fine print last."""
