"""A training container imports the reader without disturbing anything it has."""

import json
import subprocess
import sys
from pathlib import Path

import yaml

import autotune_policies

FOLDER = Path(autotune_policies.__file__).parents[1]
PROGRAM = """
import json, sys
import yaml
before = set(sys.modules)
import autotune_policies, autotune_policies.__main__
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


def test_everything_a_recipe_needs_is_exported() -> None:
    assert set(autotune_policies.__all__) >= {
        "load_policy", "parse_policy", "dump_policy", "Policy", "Applied", "PolicyError", "PolicyFormatError",
        "PolicyMismatch",
    }  # fmt: skip
    assert all(hasattr(autotune_policies, name) for name in autotune_policies.__all__)
