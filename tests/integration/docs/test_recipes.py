"""Every block of docs/recipes.md is run, section by section, as a user would paste it.

What stands in for the outside is in ``stand_ins``. Blocks that begin with ``# NAME.py`` or ``# NAME.sh`` are files; the
others are run where they stand. In a ``console`` block the commands stand behind ``$``, what they print below, with
``...`` for what is left out.
"""

import dataclasses
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune_policies.policy import Policy, dump_policy, load_policy
from autotune_policies.settings import resolve

ROOT = Path(__file__).parents[3]
STAND_INS = Path(__file__).parent / "stand_ins"
TEXT = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")

pytestmark = [pytest.mark.trial]

BRIDGE_IS_REAL = importlib.util.find_spec("megatron") is not None and importlib.util.find_spec("megatron.bridge")
RELEASES = {"megatron_core": "0.19.2", "megatron_bridge": "0.6.2"}
"""What the stand-in says that it is."""


@dataclasses.dataclass(frozen=True)
class Block:
    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The file that the block is, if its first line names one."""
        found = re.match(r"# (\w+)(\.py|\.sh)(?:, (\w+))?\n", self.text)
        return None if found is None else "_".join(filter(None, (found[1], found[3]))) + found[2]


def sections(text: str) -> Iterator[tuple[str, list[Block]]]:
    for part in re.split(r"^## ", text, flags=re.MULTILINE):
        title, _, rest = part.partition("\n")
        found = re.findall(r"^```(\w+)\n(.*?)^```$", rest, flags=re.MULTILINE | re.DOTALL)
        if found:
            yield title.removeprefix("# "), [Block(*block) for block in found]


SECTIONS = dict(sections(TEXT))
NEEDS_BRIDGE = {"Megatron-Bridge", "Megatron-Bridge's launcher", "NeMo-Run", "When it does not match"}


def policy_of_the_page() -> Policy:
    """A policy that a machine without a GPU can hold to: no backend that needs a library."""
    settings = resolve({
        "micro_batch_size": 2, "expert_parallel": 8, "dispatcher": "alltoall", "permute_fusion": True,
        "grouped_gemm": True, "recompute_granularity": "selective", "recompute_modules": ["layernorm"],
        "overlap_grad_reduce": True, "overlap_param_gather": True, "cuda_device_max_connections": 32,
    })  # fmt: skip
    example = load_policy(ROOT / "tests" / "unit" / "policies" / "example.yaml")
    return example._replace(
        applies_to={
            "model": "qwen3-30b", "cluster": "h100", "num_gpus": {"min": 16, "max": 512, "multiple_of": 8},
            "precision": "bf16", "seq_length": 4096, "global_batch_size": 1024,
            "stack": {"megatron_core": {"min": "0.16", "below": "0.20"}},
        },
        settings=settings, env={"CUDA_DEVICE_MAX_CONNECTIONS": "32"}, launch={"segment": 2}, alternatives=[],
        fallback=None, name="policy.yaml",
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Desk:
    """A folder with a policy, and the programs that the page calls."""

    folder: Path
    environment: dict[str, str]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=self.folder, env=self.environment, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, timeout=300, check=False,
        )  # fmt: skip


def desk(folder: Path, section: str) -> Desk:
    programs, packages, home = folder / "bin", folder / "packages", folder / "job"
    for path in (programs, packages, home / "scripts" / "training"):
        path.mkdir(parents=True)
    (home / "policy.yaml").write_text(dump_policy(policy_of_the_page()), encoding="utf-8")
    (home / "pretrain_gpt.py").write_bytes((STAND_INS / "pretrain_gpt.py").read_bytes())
    (home / "scripts" / "training" / "run_recipe.py").write_bytes((STAND_INS / "run_recipe.py").read_bytes())
    for name, words in (
        ("python", ""),
        ("torchrun", f" {STAND_INS / 'torchrun.py'}"),
        ("autotune", " -m autotune.cli.main"),
    ):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable}{words} "$@"\n', encoding="utf-8")
        (programs / name).chmod(0o755)
    if section in NEEDS_BRIDGE and not BRIDGE_IS_REAL:
        for name, version in RELEASES.items():
            (packages / f"{name}-{version}.dist-info").mkdir()
    places = (packages, STAND_INS, ROOT / "tests" / "support", ROOT, ROOT / "trials", ROOT / "policies")
    environment = {
        "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]), "HOME": str(folder), "HEAD_NODE": "node-1",
        "PYTHONPATH": os.pathsep.join(map(str, places)), "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    return Desk(home, environment)


def commands_of(text: str) -> Iterator[tuple[str, str]]:
    """Each command of a console block, and what is printed below it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, printed = part.partition("\n")
        yield command, printed


def pattern_of(printed: str) -> str:
    """A pattern for what a console block says, but for white space at the end."""
    text = re.sub(r"^# exit status \d$", "", printed, flags=re.MULTILINE).rstrip()
    return r".*?".join(map(re.escape, text.split("..."))) + r"\s*"


def run_block(block: Block, at: Desk) -> str:
    """What the block printed; it must have printed and ended as it says."""
    if block.language == "console":
        output = ""
        for command, printed in commands_of(block.text):
            status = re.search(r"^# exit status (\d)$", printed, flags=re.MULTILINE)
            done = at.run("bash", "-c", command)
            assert done.returncode == (int(status[1]) if status else 0), done.stdout
            assert re.fullmatch(pattern_of(printed), done.stdout, flags=re.DOTALL), done.stdout
            output += done.stdout
        return output
    words = {"bash": ("bash", "-euo", "pipefail", "-c"), "python": ("python", "-c")}[block.language]
    done = at.run(*words, block.text)
    assert done.returncode == 0, done.stdout
    return done.stdout


PROOF: dict[str, list[str]] = {
    "From a policy to a running job": [r"policy\.yaml: ok, a measured policy for qwen3-30b on h100"],
    "Megatron-Bridge": [r"changed: .*model\.moe_token_dispatcher_type", "training with the alltoall dispatcher"],
    "Megatron-Bridge's launcher": [
        "training with the alltoall dispatcher",
        r"ConfigContainer\.yaml against policy\.yaml: as the policy says",
    ],
    "Megatron-LM": [r"train\.log against policy\.yaml: as the policy says"],
    "Plain torchrun": [r"alltoall 2 \(\)"],
    "NeMo-Run": [
        "sbatch --nodes=2 --ntasks-per-node=8 --segment=2 train",
        "training with the alltoall dispatcher",
    ],
    "When it does not match": ["micro_batch_size is 1", "micro_batch_size: wanted 2, found 1"],
}
"""What must be printed, by section."""


def test_every_section_with_a_block_is_run() -> None:
    assert set(SECTIONS) == set(PROOF)


@pytest.mark.parametrize("section", SECTIONS)
def test_what_is_pasted_runs(section: str, tmp_path: Path) -> None:
    at = desk(tmp_path, section)
    output = ""
    for title, blocks in SECTIONS.items():
        for block in blocks:
            if block.file is not None:
                (at.folder / block.file).write_text(block.text, encoding="utf-8")
            elif title == section:
                output += run_block(block, at)
        if title == section:
            break
    for expected in PROOF[section]:
        assert re.search(expected, output), output


def test_megatron_lm_refuses_before_the_first_step(tmp_path: Path) -> None:
    """The addition to ``model_provider`` is in force: another command line does not get past it."""
    at = desk(tmp_path, "Megatron-LM")
    for block in SECTIONS["Megatron-LM"]:
        if block.file is not None:
            text = block.text.replace('"${settings[@]}"', '"${settings[@]}" --moe-token-dispatcher-type allgather')
            (at.folder / block.file).write_text(text, encoding="utf-8")
    done = at.run("torchrun", "--nnodes", "2", "--nproc-per-node", "8", "--no-python", "autotune", "policy", "exec",
                  "policy.yaml", "--", "bash", "rank.sh")  # fmt: skip
    assert done.returncode == 1
    assert "dispatcher is allgather, but the policy says alltoall" in done.stdout
    assert "\ntraining\n" not in done.stdout


@pytest.mark.parametrize(
    ("printed", "output", "same"),
    [
        ("a\n...\nb\n", "a\nx\ny\nb\n", True),
        ("a ... b\n", "a 1 b\n", True),
        ("a\n", "b\n", False),
        ("a\nb\n", "a\n", False),
        ("a\n# exit status 1\n", "a\n", True),
    ],
)
def test_what_is_printed_is_compared(printed: str, output: str, same: bool) -> None:
    assert bool(re.fullmatch(pattern_of(printed), output, flags=re.DOTALL)) == same


def test_blocks_know_their_files() -> None:
    names: dict[str, Any] = {
        "# a.py\n": "a.py", "# b.sh\nx\n": "b.sh", "# c.py, more\n": "c_more.py", "# not a file\n": None, "x\n": None,
    }  # fmt: skip
    assert {text: Block("python", text).file for text in names} == names
