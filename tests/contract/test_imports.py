"""Who may import whom: the table that ARCHITECTURE.md prints."""

import json
import re
import subprocess
import sys

import click
import pytest

from autotune.cli.commands import autotune

LINES = (
    ("autotune_policies",),
    ("autotune_trials",),
    ("autotune.errors",),
    ("autotune.files", "autotune.resources", "autotune.validation"),
    ("autotune.cluster",),
    ("autotune.space",),
    ("autotune.request",),
    ("autotune.constraint", "autotune.measure", "autotune.predict"),
    ("autotune.search", "autotune.scheduling", "autotune.export", "autotune.monitor"),
    ("autotune.tune",),
    ("autotune.cli",),
)
"""Lowest first; a module imports only from lines above its own, and from its own entry."""

ONLY_IN = {
    "optuna": ("autotune.search",),
    "ray": ("autotune.search.searcher", "autotune.scheduling", "autotune.tune"),
    "torch": ("autotune_trials.native", "autotune_trials.bridge"),
    "megatron": ("autotune_trials.native", "autotune_trials.bridge"),
    "deep_ep": ("autotune_trials.native",),
    "click": ("autotune.cli",),
    "rich": ("autotune.cli", "autotune.monitor"),
    "pydantic": ("autotune.validation", "autotune.cluster", "autotune.space"),
    "pyarrow": ("autotune.export.measurements", "autotune.predict.table"),
}
"""Where a distribution may be imported at all; nowhere else, not even inside a function."""

HELP = """
import json, sys
from autotune.cli.main import main
for arguments in json.loads(sys.argv[1]):
    assert main(arguments) == 0, arguments
heavy = ("torch", "megatron", "ray", "optuna", "pydantic", "pyarrow", "numpy", "sqlalchemy", "rich")
print(json.dumps([name for name in heavy if name in sys.modules]), file=sys.stderr)
"""


def inside(name, entry):
    return name == entry or name.startswith(entry + ".")


def entry_of(name):
    """The entry of the table that a module belongs to; None for what is not ours."""
    return next((entry for line in LINES for entry in line if inside(name, entry)), None)


def line_of(entry):
    return next(number for number, line in enumerate(LINES) if entry in line)


def forbidden(importer, imported):
    """Why one import breaks the table; empty when it does not."""
    ours, theirs = entry_of(importer), entry_of(imported)
    if theirs is None or theirs == ours:
        return ""
    if ours is None or line_of(theirs) >= line_of(ours):
        return f"{importer} imports {imported}"
    return ""


def test_every_module_has_a_place_in_the_table(modules):
    assert [module.name for module in modules if entry_of(module.name) is None and module.name != "autotune"] == []
    entries = {entry for line in LINES for entry in line}
    assert entries == {entry_of(module.name) for module in modules} - {None}


def test_modules_import_only_from_lines_above(modules):
    assert [wrong for module in modules for name in module.imports if (wrong := forbidden(module.name, name))] == []


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("autotune_policies.policy", "autotune_trials.spec"),
        ("autotune.export.result", "autotune.monitor.table"),
        ("autotune.measure.run", "autotune.cli.main"),
        ("autotune", "autotune.errors"),
    ],
)
def test_the_table_forbids(importer, imported):
    assert forbidden(importer, imported)


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("autotune.cli.start", "autotune.tune"),
        ("autotune.search.study", "autotune.search.storage"),
        ("autotune.measure.run", "autotune_trials.events"),
        ("autotune.errors", "json"),
    ],
)
def test_the_table_allows(importer, imported):
    assert not forbidden(importer, imported)


@pytest.mark.parametrize("distribution", ONLY_IN)
def test_distributions_are_imported_only_where_they_belong(modules, distribution):
    users = {module.name for module in modules for name in module.imports if inside(name, distribution)}
    assert {name for name in users if not any(inside(name, place) for place in ONLY_IN[distribution])} == set()
    assert users, f"nothing imports {distribution}: take it out of the list"


@pytest.mark.parametrize(
    ("package", "allowed"),
    [("autotune_policies", {"yaml"}), ("autotune_trials", {"torch", "megatron", "deep_ep", "autotune_policies"})],
)
def test_the_packages_of_the_nodes_need_nothing_else(modules, package, allowed):
    names = {name.partition(".")[0] for module in modules if inside(module.name, package) for name in module.imports}
    assert names - sys.stdlib_module_names - {package} == allowed


def test_architecture_prints_the_same_table(root):
    text = (root / "ARCHITECTURE.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^## Import order$.*?```text\n(.*?)```", text, flags=re.MULTILINE | re.DOTALL)
    printed = tuple(tuple(re.split(r",\s*", line.strip())) for line in block.strip().splitlines())
    assert printed == LINES


def test_every_listed_command_can_be_loaded():
    context = click.Context(autotune)
    loaded = [autotune.get_command(context, name) for name in autotune.list_commands(context)]
    assert [command.name for command in loaded] == autotune.list_commands(context)


def run_help(environment, commands):
    process = subprocess.run(
        [sys.executable, "-c", HELP, json.dumps(commands)], env=environment, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    return set(json.loads(process.stderr.splitlines()[-1]))


def test_help_is_quick(checkout_environment):
    assert run_help(checkout_environment, [["--help"], ["--version"], ["policy", "--help"]]) == set()


def test_help_of_no_command_starts_the_heavy_libraries(checkout_environment):
    commands = [[name, "--help"] for name in autotune.list_commands(click.Context(autotune))]
    assert len(commands) >= 8
    assert run_help(checkout_environment, commands) & {"torch", "megatron", "ray"} == set()


def test_imports_inside_functions_count(modules):
    # tune.py imports ray where it is needed; a reader that only saw the top of modules would miss it.
    [module] = [module for module in modules if module.name == "autotune.tune"]
    assert "ray.tune" in module.imports
