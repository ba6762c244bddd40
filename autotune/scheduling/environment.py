"""Variables that Ray reads when it is imported; they are set before that, and only here."""

import os

RAY_ENVIRONMENT = {
    # Whoever reaches the ports still needs the token: Ray's control port listens on all interfaces.
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Without it Ray announces that it will stop hiding GPUs from actors that hold none.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ctrl-C is ours: Tune's own handler would wait for the trials.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    # Tune's newer output prints to stdout even when it is told to be quiet; stdout is data here.
    "RAY_AIR_NEW_OUTPUT": "0",
    # A trial that reports no metric must not end the whole run.
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    # The study is the record; Tune's own JSON, CSV and TensorBoard files would repeat it.
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    # The default holds the nodes of a trial that does not stop for ten minutes.
    "TUNE_FORCE_TRIAL_CLEANUP_S": "30",
    # The Tune experiment is disposable: no need to save it every ten seconds.
    "TUNE_GLOBAL_CHECKPOINT_S": "60",
}
"""What a user has set already wins."""


def prepare() -> None:
    """Set what is not set; call it before the first import of ray."""
    for name, value in RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
