"""Which point to try next; the only folder that imports optuna."""
