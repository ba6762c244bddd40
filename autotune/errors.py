"""Errors of the head side.

    AutotuneError           expected: printed as one line with a hint, never as a traceback
    |-- RequestError        what was asked for is wrong, or cannot be had here; exit status 2
    |   `-- SpaceError      a search-space or cluster file is wrong; says file and line
    |-- StudyError          the study storage cannot be used, or holds another contract; exit status 2
    |-- ClusterError        the cluster cannot do what the run needs; exit status 2
    `-- RunError            the run itself failed; exit status 1
        `-- InterruptionError   somebody ended it; exit status 130, where 1 would be an answer

Everything else that is raised is a bug and keeps its traceback.
"""


class AutotuneError(Exception):
    """An expected failure.

    Attributes:
        message: What failed, with its value and the bound it broke; lower case, no full stop.
        hint: The way out, if there is one to name.
        exit_status: What the command line exits with.
    """

    exit_status = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class RequestError(AutotuneError):
    """The request is wrong; nothing was started, nothing was changed."""

    exit_status = 2


class SpaceError(RequestError):
    """A search-space, model or cluster file is wrong; nothing was started."""


class StudyError(AutotuneError):
    """The study storage cannot be used for this request; what it holds is unchanged."""

    exit_status = 2


class ClusterError(AutotuneError):
    """The machines at hand cannot run what was asked for; nothing was started."""

    exit_status = 2


class RunError(AutotuneError):
    """The run ended without a result; the study keeps what was finished and can be resumed."""


class InterruptionError(RunError):
    """Somebody ended the command before it had an answer, where exit status 1 is one of the answers."""

    exit_status = 130
