"""What the contract tests share: the checkout, its modules and its wheel."""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"autotune": ROOT, "autotune_trials": ROOT / "trials", "autotune_policies": ROOT / "policies"}


@dataclass(frozen=True)
class Module:
    """One module of the product: its dotted name, its file, and the dotted names it imports anywhere in it."""

    name: str
    path: Path
    imports: tuple[str, ...]


def imported(tree: ast.AST) -> Iterator[str]:
    """Dotted names of everything imported; ``from a import b`` gives ``a.b``, which may be a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def modules() -> list[Module]:
    found = []
    for package, folder in PACKAGES.items():
        for path in sorted((folder / package).rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found.append(Module(name, path, tuple(imported(ast.parse(path.read_text(encoding="utf-8"))))))
    assert len(found) > 50
    return found


@pytest.fixture(scope="session")
def tracked() -> list[Path]:
    """Files that are, or would be, in the repository."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for path in (ROOT / name for name in names.split("\0") if name) if path.is_file()]


@pytest.fixture(scope="session")
def builds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The source distribution, the wheel made from it, and the wheel made from the checkout."""
    folder = tmp_path_factory.mktemp("dist")
    for target, options in (("direct", ["--wheel"]), ("chain", [])):
        command = [sys.executable, "-m", "build", "--no-isolation", *options, "-o", str(folder / target), str(ROOT)]
        built = subprocess.run(command, capture_output=True, text=True)
        assert built.returncode == 0, built.stdout + built.stderr
    [direct], [chain], [sdist] = (
        list((folder / target).glob(pattern))
        for target, pattern in (("direct", "*.whl"), ("chain", "*.whl"), ("chain", "*.tar.gz"))
    )
    return {"wheel": direct, "wheel_of_sdist": chain, "sdist": sdist}


@pytest.fixture(scope="session")
def clean_environment() -> dict[str, str]:
    """This environment without what would let a child see the checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "AUTOTUNE", "RAY_"))}


@pytest.fixture(scope="session")
def checkout_environment(clean_environment: dict[str, str]) -> dict[str, str]:
    """This environment with the checkout on the import path."""
    return {**clean_environment, "PYTHONPATH": os.pathsep.join(map(str, PACKAGES.values()))}
