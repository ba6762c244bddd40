"""Legality: which settings can run at all, and why not."""
