"""Start a Python process without the current folder on its module path.

A file there that has the name of a module of the standard library would keep it from starting.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Final

PYTHON: Final = (sys.executable, "-P")

_ROOT: Final = str(Path(__file__).resolve().parent.parent)


def environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return variables with which the process finds this package, even if it is not installed."""
    paths = environ.get("PYTHONPATH", "").split(os.pathsep)
    if _ROOT in paths or _ROOT in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return dict(environ)
    return {**environ, "PYTHONPATH": os.pathsep.join([_ROOT, *filter(None, paths)])}
