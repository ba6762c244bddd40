"""How a child process finds our packages when they run from a checkout."""

import os
import sysconfig
from pathlib import Path

import autotune_policies
import autotune_trials


def import_path(inherited: str | None) -> str:
    """A PYTHONPATH with which a child can import what this process imported.

    An installed package adds nothing: site-packages on PYTHONPATH would come before the standard library.
    """
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    files = (autotune_trials.__file__, autotune_policies.__file__)
    folders = dict.fromkeys(str(Path(str(file)).parents[1]) for file in files)
    parts = [folder for folder in folders if folder not in installed]
    return os.pathsep.join(parts + ([inherited] if inherited else []))
