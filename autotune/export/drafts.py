"""All policy drafts of the repository: ``python -m autotune.export.drafts policies/drafts`` writes them again.

The folder gets one file per model and cluster, and ``index.tsv`` with a line for each pair, which says why where there
is no file.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import RequestError
from autotune.export.draft import ALTERNATIVES, STACK, draft_text, ranked
from autotune.files import write_atomically
from autotune.request import load_request

MODELS = ("dsv3", "qwen3-30b", "qwen3-235b", "gpt-oss-120b")
CLUSTERS = ("h100", "h200", "b200", "b300", "gb200", "gb300")

INDEX = "index.tsv"
_HEAD = "# Predicted policies, and why there is none. Written by `make drafts`.\nmodel\tcluster\tfile\treason\n"


@dataclass(frozen=True)
class Draft:
    """One model on one cluster.

    Attributes:
        model: Model name.
        cluster: Cluster name.
        text: The policy file; empty when there is none.
        reason: Why there is none.
    """

    model: str
    cluster: str
    text: str
    reason: str

    @property
    def file(self) -> str:
        """Name of its file."""
        return f"{self.model}-{self.cluster}.yaml"

    @property
    def line(self) -> str:
        """Its line of the index."""
        return f"{self.model}\t{self.cluster}\t{self.file if self.text else ''}\t{self.reason}\n"


def draft(model: str, cluster: str) -> Draft:
    """The draft of a model on its default number of GPUs of a cluster."""
    try:
        request = load_request(model, cluster)
        ranking = ranked(request, STACK, 1 + ALTERNATIVES)
        return Draft(model, cluster, draft_text(request, ranking), "")
    except RequestError as error:
        return Draft(model, cluster, "", error.message)


def drafts() -> Iterator[Draft]:
    """All of them, in the order of the index; a minute or two."""
    for model in MODELS:
        for cluster in CLUSTERS:
            yield draft(model, cluster)


def write_drafts(folder: Path, found: Iterable[Draft]) -> None:
    """Replace the drafts in a folder; files of drafts that are no more are removed."""
    index = _HEAD
    for one in found:
        index += one.line
        if one.text:
            write_atomically(folder / one.file, one.text.encode())
        else:
            (folder / one.file).unlink(missing_ok=True)
    write_atomically(folder / INDEX, index.encode())


if __name__ == "__main__":
    write_drafts(Path(sys.argv[1]), drafts())
