"""The programs that run on the nodes; they import neither ray nor optuna nor autotune."""
