"""``autotune spaces``: the models and clusters that are known."""

import json
from pathlib import Path

import click

from autotune import resources, validation
from autotune.cluster import Cluster
from autotune.errors import RequestError
from autotune.space.files import ModelFile
from autotune.space.guide import Guide
from autotune_policies.settings import closest

GUIDE = "guide"
"""Name of the selection guide among the names of models and clusters."""


@click.group("spaces")
def command() -> None:
    """The models and clusters that are known."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_(as_json: bool) -> None:
    """Names that --model and --cluster take."""
    names = {kind: resources.names(kind) for kind in ("models", "clusters")}
    if as_json:
        print(json.dumps(names))
        return
    for kind, found in names.items():
        print(f"{kind}: {', '.join(found)}")


@command.command("show")
@click.argument("name")
def show(name: str) -> None:
    """Print the file of a model or a cluster, e.g. to start one's own from it, or the selection guide (guide)."""
    if name == GUIDE:
        print(resources.guide_path().read_text(encoding="utf-8"), end="")
        return
    for kind in ("models", "clusters"):
        if name in resources.names(kind):
            print(resources.locate(kind, name).read_text(encoding="utf-8"), end="")
            return
    known = [GUIDE, *(known for kind in ("models", "clusters") for known in resources.names(kind))]
    raise RequestError(f"no model or cluster is called {name!r}", hint=closest(name, known))


@command.command("validate")
@click.argument("file", type=click.Path(path_type=Path))
def validate(file: Path) -> None:
    """Check a model or cluster file of one's own."""
    path = file.expanduser()
    if not path.exists():
        raise RequestError(f"no such file: {file}", hint=validation.EXAMPLES)
    document = validation.read(path)
    schema = document.value.get("schema") if isinstance(document.value, dict) else None
    kind = str(schema).removeprefix("autotune.").removesuffix("/v1")
    models: dict[str, type[validation.Validated]] = {"cluster": Cluster, "guide": Guide}
    validation.validated(document, models.get(kind, ModelFile))
    print(f"{file}: valid {kind} file")
