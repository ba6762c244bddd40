"""From what the ranks reported to numbers that can be ranked, or to the reason why there are none."""
