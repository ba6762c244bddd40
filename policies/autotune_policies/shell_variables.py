"""The variables of a shell script while it is read: their values, and which of them nobody can know."""

from dataclasses import dataclass, field

from autotune_policies.shell_words import Unknown

Value = tuple[str | Unknown, ...]
"""What a variable holds: one word, or those of an array."""


@dataclass
class Variables:
    """What the script has said of its variables so far.

    Attributes:
        values: By name; a variable that is not here was not set by the script.
        exported: Names that commands see.
        changing: Names that a function sets, whenever it may be called.
        anything: Whether something that cannot be read may have set any variable.
        always: Whether that may happen again at any time, since it is part of a function.
    """

    values: dict[str, Value] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    changing: set[str] = field(default_factory=set)
    anything: bool = False
    always: bool = False

    def get(self, name: str) -> Value | None:
        """What a variable holds; None = the script does not set it."""
        if self.always or name in self.changing:
            return (Unknown(f"${name}"),)
        return self.values.get(name, (Unknown(f"${name}"),) if self.anything else None)

    def word(self, name: str) -> str | Unknown:
        """The same as a command sees it: one word."""
        value = self.get(name) or ("",)
        return value[0] if len(value) == 1 else Unknown(f"{name}=(...)")

    def forget(self, name: str, in_function: bool) -> None:
        """A variable was set, but not for certain, or to nobody knows what."""
        self.values[name] = (Unknown(f"${name}"),)
        if in_function:
            self.changing.add(name)

    def forget_all(self, in_function: bool) -> None:
        """Any variable may have been set to anything."""
        self.values.clear()
        self.anything = True
        self.always |= in_function

    def copy(self) -> "Variables":
        """The same for one command, whose own variables end with it."""
        return Variables(dict(self.values), set(self.exported), set(self.changing), self.anything, self.always)
