"""What the rules are written with."""

from collections.abc import Callable

from autotune.constraint.rule import Candidate, Certainty, Rule, Severity, Verdict
from autotune.constraint.versions import Versions, parse_version

Check = Callable[[Candidate], Verdict]


class Rules(list[Rule]):
    """The rules of one topic, in the order of the file."""

    def add(
        self,
        identifier: str,
        source: str,
        *,
        certainty: Certainty = "certain",
        severity: Severity = "refuse",
        **applies: Versions,
    ) -> Callable[[Check], Check]:
        """Make a predicate a rule; ``megatron_core=Versions(below=(0, 19))`` bounds the versions it holds for."""

        def register(check: Check) -> Check:
            self.append(Rule(identifier, source, check, certainty, severity, applies))
            return check

        return register


def divides(name: str, divisor: int, of: str, total: int) -> Verdict:
    """Whether a product of settings divides a total; else its closest divisors."""
    if total % divisor == 0:
        return None
    legal = [number for number in range(1, total + 1) if total % number == 0]
    near = sorted(legal, key=lambda number: abs(number - divisor))[:3]
    return 1.0 + total % divisor / divisor, (
        f"{name} = {divisor} does not divide {of} = {total} (closest that do: {join(sorted(near))})"
    )


def multiple(what: str, value: int, of: int) -> Verdict:
    """Whether a number is a multiple of another; else the multiples beside it."""
    rest = value % of
    if rest == 0:
        return None
    near = [number for number in (value - rest, value - rest + of) if number > 0]
    return float(min(rest, of - rest)), f"{what} = {value} must be a multiple of {of} (closest: {join(near)})"


def at_most(what: str, value: float, bound: float) -> Verdict:
    """Whether a number is within its bound."""
    return None if value <= bound else (value - bound, f"{what} = {value:g} must be at most {bound:g}")


def needs_version(c: Candidate, what: str, library: str, minimum: tuple[int, ...]) -> Verdict:
    """Whether a library is new enough; holds back while the stack is not known."""
    if c.stack is None:
        return None
    found = c.stack.get(library)
    if found is not None and parse_version(found) >= minimum:
        return None
    return 1.0, f"{what} needs {library} >= {'.'.join(map(str, minimum))}, but it is {found or 'not installed'}"


def join(values: object) -> str:
    """Values as a person lists them."""
    assert isinstance(values, list | tuple | set | frozenset)
    return ", ".join(map(str, sorted(values) if isinstance(values, set | frozenset) else values))
