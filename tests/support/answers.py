"""The end of a test's helper program: one folder as its argument, one JSON document as its answer."""

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path


def answer_with(main: Callable[[Path], object]) -> None:
    """Print what the program found, and nothing else, to stdout; libraries are quiet and offline."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    answer = sys.stdout
    sys.stdout = sys.stderr  # libraries print when they are imported
    json.dump(main(Path(sys.argv[1])), answer)
