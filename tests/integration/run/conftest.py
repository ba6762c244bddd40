"""Runs the `autotune` command as a user does, and knows which processes it left."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from autotune import resources

ROOT = Path(__file__).resolve().parents[3]
_MARKER = "AUTOTUNE_TEST_RUN"


@dataclass
class Command:
    """One `autotune` command; everything it starts carries its mark in the environment."""

    home: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def talk(self) -> str:
        """What the command has written to stderr so far."""
        return self._talk_file.read_text(encoding="utf-8")

    @property
    def _talk_file(self) -> Path:
        return self.home.parent / f"{self.mark}.stderr"

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        paths = os.pathsep.join(str(ROOT / part) for part in ("", "trials", "policies", "tests/support"))
        environment = {**os.environ, "AUTOTUNE_HOME": str(self.home), _MARKER: self.mark, "PYTHONPATH": paths}
        with self._talk_file.open("w", encoding="utf-8") as talk:
            return subprocess.Popen(
                [sys.executable, "-m", "autotune.cli.main", *arguments],
                env=environment,
                cwd=self.home,
                text=True,
                stdout=subprocess.PIPE,
                stderr=talk,
            )

    def finish(self, process: "subprocess.Popen[str]", timeout_s: float) -> "subprocess.CompletedProcess[str]":
        try:
            out, _ = process.communicate(timeout=timeout_s)
        except BaseException:
            process.kill()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, self.talk)

    def run(self, *arguments: str, timeout_s: float = 400) -> "subprocess.CompletedProcess[str]":
        return self.finish(self.start(*arguments), timeout_s)

    def processes(self) -> list[str]:
        """Command lines of the processes that carry the mark and are alive."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if f"{_MARKER}={self.mark}".encode() in (folder / "environ").read_bytes():
                    line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if line:  # a zombie has none
                        found.append(line)
            except OSError:
                continue
        return found

    def wait_until_gone(self, limit_s: float) -> list[str]:
        """What is still alive after so long, at best nothing."""
        end_s = time.monotonic() + limit_s
        while (left := self.processes()) and time.monotonic() < end_s:
            time.sleep(0.2)
        return left

    def kill_everything(self) -> None:
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if f"{_MARKER}={self.mark}".encode() in (folder / "environ").read_bytes():
                    os.kill(int(folder.name), signal.SIGKILL)
            except OSError:
                continue


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    made = Command(tmp_path_factory.mktemp("home"))
    yield made
    made.kill_everything()


@pytest.fixture
def own_command(tmp_path: Path) -> Iterator[Command]:
    made = Command(tmp_path)
    yield made
    made.kill_everything()


@pytest.fixture
def short_model(tmp_path: Path) -> str:
    """File of the tiny model with less to do per trial, for studies whose numbers are of no interest."""
    text = resources.locate("models", "tiny-moe").read_text(encoding="utf-8")
    for long, short in (("global_batch_size: 8", "global_batch_size: 4"), ("  steps: 10", "  steps: 6")):
        assert long in text
        text = text.replace(long, short)
    path = tmp_path / "short.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.fixture(scope="session")
def outcomes() -> Callable[[Path], dict[int, dict[str, object]]]:
    """The recorded outcome of every launched trial of a study folder."""

    def read(folder: Path) -> dict[int, dict[str, object]]:
        paths = sorted(folder.glob("trials/*/outcome.json"))
        return {int(path.parent.name): json.loads(path.read_text(encoding="utf-8")) for path in paths}

    return read
