"""Which kinds of trial program run so far."""

from autotune.errors import RequestError
from autotune_trials.native.shapes import unsupported
from autotune_trials.spec import ModelShape


def require_runnable(kind: str, shape: ModelShape) -> None:
    """Nothing, if trials of this kind can be started for this model.

    Raises:
        RequestError: a kind that does not run yet, or a model that the native trainer cannot build.
    """
    missing = unsupported(shape)
    cannot = f"the native trainer does not build {', '.join(missing)}"
    if kind != "native":
        raise RequestError(
            f"trial kind {kind!r} of model {shape.name!r} does not run yet",
            hint=f"--trial native is the one that does, but {cannot}" if missing else "use --trial native",
        )
    if missing:
        raise RequestError(f"model {shape.name!r} cannot be trained with --trial native: {cannot}")
