"""A training container imports the reader without disturbing anything it has."""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import yaml

import autotune_policies
from autotune_policies.installed import installed_versions

EXAMPLE = Path(__file__).parent / "example.yaml"
FOLDER = Path(autotune_policies.__file__).parents[1]
PROGRAM = """
import importlib, json, pkgutil, sys
import yaml
before = set(sys.modules)
import autotune_policies
for module in pkgutil.walk_packages(autotune_policies.__path__, "autotune_policies."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
import autotune_policies.__main__
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
"""


def test_only_yaml_and_the_standard_library_are_imported() -> None:
    # Without site-packages nothing else can come in, so PyYAML's own folder is added by hand.
    folders = [str(FOLDER), str(Path(yaml.__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {folders!r}\n{PROGRAM}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert set(json.loads(done.stdout)) - set(sys.stdlib_module_names) == {"autotune_policies"}


USE = """
import json, sys
import yaml
before = set(sys.modules)
import autotune_policies
class Config:
    pass
config = Config()
from autotune_policies.megatron_core import render
policy = autotune_policies.load_policy(sys.argv[1])
vars(config).update(render(policy.settings, "0.19").transformer)
policy.apply(config, model="example-moe", cluster="example-cluster", stack={"megatron_core": "0.19.2"}, force=True)
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_reading_and_applying_imports_no_more_than_it_needs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(FOLDER)!r})\n{USE}", str(EXAMPLE)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    names = json.loads(done.stdout)
    # Each of these costs as much as reading and applying a policy does.
    costly = {
        "importlib.metadata",
        "argparse",
        "pathlib",
        "shutil",
        "difflib",
        "zipfile",
        "subprocess",
        "hashlib",
        "logging",
    }
    assert costly & set(names) == set()
    others = {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) - {"autotune_policies"}
    # An editable installation may have finders of its own.
    assert {name for name in others if not name.startswith(("__editable__", "_"))} == set()


def test_versions_are_those_that_importlib_finds(tmp_path: Path) -> None:
    for name in (
        "megatron_core-0.19.2.dist-info",
        "Deep_EP-1.2.1+abc.dist-info",
        "old.thing-1.0-py3.11.egg-info",
        "x.py",
    ):
        (tmp_path / "first" / name).mkdir(parents=True)
    (tmp_path / "second" / "megatron_core-0.16.1.dist-info").mkdir(parents=True)
    folders = [str(tmp_path / name) for name in ("first", "nowhere", "second")]
    assert installed_versions(folders) == {"megatron_core": "0.19.2", "deep_ep": "1.2.1+abc", "old_thing": "1.0"}
    here = installed_versions()
    for name in ("pytest", "PyYAML", "hypothesis"):
        assert here[name.lower()] == importlib.metadata.version(name)


def test_everything_a_recipe_needs_is_exported() -> None:
    assert set(autotune_policies.__all__) >= {
        "load_policy", "parse_policy", "dump_policy", "Policy", "Applied", "PolicyError", "PolicyFormatError",
        "PolicyMismatch",
    }  # fmt: skip
    assert all(hasattr(autotune_policies, name) for name in autotune_policies.__all__)
