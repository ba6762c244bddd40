"""When a run may break a suspect rule, so that a stale rule cannot hide the optimum."""


def may_probe(share: float, launched: int, probes: int) -> bool:
    """Whether the next launch may break rules that are only suspect.

    Depends on counts alone, so a resumed run decides as an uninterrupted one would.

    Args:
        share: Share of all launches that may, 0 to 1.
        launched: Launches so far, those that still run included.
        probes: How many of them broke a suspect rule.
    """
    return probes + 1 <= share * (launched + 1) + 1e-9  # 0.29 x 100 is a little less than 29
