"""Put rhea, a client of AMQP 1.0 in JavaScript, into the virtual environment whose Python runs this.

By npm, as the browser of the tests. See tests/support/rhea.py.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from install_browser import fetch

VERSION: Final = "3.0.5"


def main() -> int:
    """Install it, or say in one line why not; the exit code says which."""
    target = Path(sys.prefix) / "rhea"
    if (target / "version").is_file() and (target / "version").read_text() == VERSION:
        return 0
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    try:
        fetch(target, "rhea", VERSION)
    except (OSError, ImportError, subprocess.SubprocessError) as error:
        print(f"no rhea for the tests: {error}; check npm's settings")
        return 1
    (target / "version").write_text(VERSION)
    return 0


if __name__ == "__main__":
    sys.exit(main())
