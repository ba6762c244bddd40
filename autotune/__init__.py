"""Tunes Mixture-of-Experts training on clusters; this package is the head side."""

__version__ = "0.1.0"
