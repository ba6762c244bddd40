"""Python runs this at its start: lets Megatron-Bridge be imported here, and leaves out its training loop.

Where Megatron-Bridge is installed it is the real one, without kernel libraries and model hub. Elsewhere every module of
it is ``bridge_stand_in.py``.
"""

import importlib
import importlib.machinery
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PRETRAIN = "megatron.bridge.training.pretrain"


class Bridge:
    """Finds modules of Megatron-Bridge."""

    installed = False
    local_models = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".bridge")[0] != "megatron":
            return None
        if name == "megatron.bridge" and importlib.machinery.PathFinder.find_spec(name, path) is not None:
            Bridge.installed = True
            importlib.import_module("bridge_stubs").install_stubs()
            importlib.import_module("transformer_engine.pytorch")
        if self.installed and not self.local_models and re.match(r"megatron\.bridge\.(perf_)?recipes", name):
            self.local_models = True
            importlib.import_module("bridge_stubs").use_local_models(Path("models"))
        if name == PRETRAIN:
            return importlib.util.spec_from_file_location(name, HERE / "bridge_pretrain.py")
        if self.installed or not name.startswith("megatron.bridge"):
            return None
        file = HERE / "bridge_stand_in.py"
        return importlib.util.spec_from_file_location(name, file, submodule_search_locations=[])


sys.meta_path.insert(0, Bridge())
