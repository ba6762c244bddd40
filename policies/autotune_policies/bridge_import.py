"""A Megatron-Bridge recipe, or the ``ConfigContainer.yaml`` that a run has saved, as what a policy can say."""

import contextlib
import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from autotune_policies.container_facts import contract_of
from autotune_policies.errors import PolicyError
from autotune_policies.importing import Imported
from autotune_policies.megatron_bridge import is_container, read_container
from autotune_policies.resolved import Resolved, read_resolved
from autotune_policies.settings import closest


def read_recipe(name: str, versions: Mapping[str, str]) -> Imported:
    """What a recipe function builds.

    Args:
        name: ``module:function``; the function needs no arguments.
        versions: Of ``megatron_core`` and ``megatron_bridge``.

    Raises:
        PolicyError: the module or function does not exist, fails, or builds no ConfigContainer.
    """
    return imported_from(build_recipe(name), f"recipe {name}", versions)


def read_saved(path: str, versions: Mapping[str, str]) -> Imported:
    """What a saved ``ConfigContainer.yaml`` says; nothing that it names is imported or called.

    Args:
        path: The file.
        versions: Of ``megatron_core`` and ``megatron_bridge``.

    Raises:
        PolicyFormatError: not plain YAML; the message begins with the file's name.
        PolicyError: no ConfigContainer, or a value that has no canonical form.
        OSError: the file cannot be read.
    """
    return imported_from(read_resolved(path), f"file {Path(path).name}", versions)


def build_recipe(name: str) -> object:
    """The container that a recipe function builds; what it prints, and logs at import, goes to standard error.

    Raises:
        PolicyError: the module or function does not exist, fails, or builds no ConfigContainer.
    """
    with contextlib.redirect_stdout(sys.stderr):
        return _build(name)


def _build(name: str) -> object:
    module_name, _, function_name = name.partition(":")
    sys.path.insert(0, "")  # a recipe beside the user, as `python -m` would find it
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise PolicyError(f"module {module_name!r} cannot be imported: {_first_line(error)}") from error
    finally:
        sys.path.remove("")
    function: Callable[[], object] | None = getattr(module, function_name, None)
    if not callable(function):
        raise PolicyError(
            f"module {module_name!r} has no function {function_name!r}", hint=_functions(module, function_name)
        )
    try:
        container = function()
    except Exception as error:
        raise PolicyError(
            f"recipe {name} fails: {_first_line(error)}", hint="it is called without arguments"
        ) from error
    if not is_container(container):
        raise PolicyError(f"recipe {name} builds a {type(container).__name__}, but no ConfigContainer")
    return container


def imported_from(container: object, source: str, versions: Mapping[str, str]) -> Imported:
    """What a container, or the mapping of a saved one, says.

    Args:
        container: The container.
        source: Where it came from, in words.
        versions: Of ``megatron_core`` and ``megatron_bridge``.

    Raises:
        PolicyError: a value that has no canonical form.
    """
    view = Resolved(container)
    settings = read_container(
        container, megatron_core=versions["megatron_core"], megatron_bridge=versions["megatron_bridge"]
    )
    variables = view.get("env_vars")
    env = {name: str(value) for name, value in variables.items()} if isinstance(variables, Mapping) else {}
    stack = {name: versions[name] for name in ("megatron_core", "megatron_bridge")}
    return Imported(settings, env, contract_of(view), stack, source)


def _functions(module: object, name: str) -> str:
    return closest(name, [other for other, value in vars(module).items() if callable(value) and other[0] != "_"])


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
