"""Versions of what is installed, known without importing any of it.

``importlib.metadata`` knows them too, but its import costs more than reading and applying a policy does.
"""

import os
import re
import sys
from collections.abc import Iterable, Mapping

_METADATA = re.compile(r"(?P<name>[A-Za-z0-9][\w.]*)-(?P<version>[^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info")
"""A distribution's metadata folder; in its name a dash is an underscore."""


def installed_versions(folders: Iterable[str] | None = None) -> Mapping[str, str]:
    """Version by distribution name in lower case, words joined by ``_``; of two, the one that is imported.

    Args:
        folders: Where modules are imported from; None = as this process does it.
    """
    versions: dict[str, str] = {}
    for folder in sys.path if folders is None else folders:
        try:
            names = os.listdir(folder or os.curdir)
        except OSError:  # an archive, or a folder that is gone
            continue
        for name in sorted(names):
            found = _METADATA.fullmatch(name)
            if found:
                versions.setdefault(re.sub(r"[_.]+", "_", found["name"]).lower(), found["version"])
    return versions
