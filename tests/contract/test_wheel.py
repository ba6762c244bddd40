"""What is installed: the wheel's contents, and what works without any extra."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

NAMES = {"autotune", "autotune_trials", "autotune_policies"}
POLICY = Path(__file__).parents[1] / "unit" / "policies" / "example.yaml"


def files_in(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {info.filename: info for info in archive.infolist() if not info.is_dir()}


def without_metadata(wheel):
    return {name for name in files_in(wheel) if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def installed(builds, clean_environment, tmp_path_factory):
    """An environment with the wheel and PyYAML only; runs ``autotune`` in it, outside the checkout."""
    folder = tmp_path_factory.mktemp("base")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    install = ["install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", str(builds["wheel"])]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True, env=clean_environment)
    [site] = (folder / "venv").glob("lib/python*/site-packages")
    shutil.copytree(Path(yaml.__file__).parent, site / "yaml", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy(POLICY, folder / "policy.yaml")

    def run(*words):
        command = [python.with_name("autotune"), *words]
        return subprocess.run(command, cwd=folder, env=clean_environment, capture_output=True, text=True)

    return run


def test_the_wheel_has_exactly_our_names(builds):
    tops = {name.partition("/")[0] for name in files_in(builds["wheel"])}
    assert {name for name in tops if not name.endswith(".dist-info")} == NAMES
    assert len(tops) == len(NAMES) + 1


def test_the_wheel_has_the_data_as_files(builds, root):
    inside = files_in(builds["wheel"])
    for path in [*root.glob("search_spaces/models/*.yaml"), *root.glob("search_spaces/clusters/*.yaml")]:
        entry = inside[f"autotune/_data/{path.relative_to(root / 'search_spaces').as_posix()}"]
        assert (entry.file_size, entry.external_attr >> 28) == (path.stat().st_size, 8)  # 8: a regular file, no link


def test_the_wheel_has_schema_types_licence_and_every_module(builds, modules):
    inside = files_in(builds["wheel"])
    assert {f"{name}/py.typed" for name in NAMES} <= inside.keys()
    assert "autotune_policies/schema/policy-v1.schema.json" in inside
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in inside)
    for module in modules:
        stem = module.name.replace(".", "/")
        assert {f"{stem}.py", f"{stem}/__init__.py"} & inside.keys(), module.name


def test_the_wheel_has_nothing_of_tests_drafts_or_caches(builds):
    stray = re.compile(r"(^|/)(tests?|exported|drafts|__pycache__|deploy|docs)/|\.pyc$")
    assert [name for name in files_in(builds["wheel"]) if stray.search(name)] == []


def test_the_source_distribution_builds_the_same_wheel(builds):
    assert without_metadata(builds["wheel_of_sdist"]) == without_metadata(builds["wheel"])
    with tarfile.open(builds["sdist"]) as archive:
        assert [member.name for member in archive if member.issym() or member.islnk()] == []


def test_the_base_install_needs_pyyaml_only(root):
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert [re.split(r"[<>=]", need)[0] for need in project["dependencies"]] == ["PyYAML"]


def test_the_base_install_reads_policies(installed):
    process = installed("policy", "validate", "policy.yaml")
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.startswith("policy.yaml: ok")
    assert installed("policy", "exec", "policy.yaml", "--", "true").returncode in (0, 2)  # 2: needs a launcher's rank
    assert installed("--version").stdout.startswith("autotune ")


@pytest.mark.parametrize(
    "words", [("start", "--model", "tiny-moe", "--cluster", "local"), ("status", "a"), ("spaces", "list"), ("--help",)]
)
def test_the_base_install_says_what_else_to_install(installed, words):
    process = installed(*words)
    assert (process.returncode, process.stdout) == (2, "")
    assert len(process.stderr.splitlines()) == 2
    assert "hint: pip install 'moe-autotune[service]'" in process.stderr
