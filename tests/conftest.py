"""What holds for every test: those that start processes which fill the machine never run beside each other."""

from pathlib import Path

import pytest

_FILL_THE_MACHINE = ("conformance", "integration", "gpu")


@pytest.hookimpl(tryfirst=True)  # the workers of xdist look for groups in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        if item.path.relative_to(Path(__file__).parent).parts[0] in _FILL_THE_MACHINE:
            item.add_marker(pytest.mark.xdist_group("fills_the_machine"))
