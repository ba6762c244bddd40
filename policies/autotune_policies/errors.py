"""Errors of the policy reader.

The tree::

    PolicyError             the policy, or what was asked of it, is wrong; one line and a hint
    |-- PolicyFormatError   the file is not a policy; says file and line
    `-- PolicyMismatch      the policy does not apply to this run; names the differing fields
"""


class PolicyError(ValueError):
    """Something a person can fix; printed as one line with a hint, never as a traceback.

    Attributes:
        message: What was wrong, with its value and the bound it broke.
        hint: The way out, if there is one to name.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class PolicyFormatError(PolicyError):
    """A file that cannot be read as a policy; nothing was applied."""


class PolicyMismatch(PolicyError):  # noqa: N818 - reads as what it is
    """A valid policy for another model, cluster, size or stack; nothing was applied."""
