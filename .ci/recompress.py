"""Compress the files of a wheel again with Zopfli, whose deflate is some 4 % smaller than that of zlib.

``python .ci/recompress.py WHEEL`` replaces the file. Names, times and contents stay, and so do the hashes in
RECORD.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from unittest import mock

import zopfli.zlib


class _Compressor:
    """What `zipfile` needs of `zlib.compressobj`."""

    def __init__(self, *_: object) -> None:
        self._data = bytearray()

    def compress(self, data: bytes) -> bytes:
        self._data += data
        return b""

    def flush(self) -> bytes:
        """Return raw deflate: without the head of zlib, and without its checksum."""
        return zopfli.zlib.compress(bytes(self._data), numiterations=5)[2:-4]


def main(path: Path) -> None:
    new = path.with_suffix(".new")
    # zipfile has no public way to take another compressor.
    with (
        mock.patch.object(zipfile, "_get_compressor", _Compressor),
        zipfile.ZipFile(path) as old,
        zipfile.ZipFile(new, "w") as archive,
    ):
        for entry in old.infolist():
            archive.writestr(entry, old.read(entry), zipfile.ZIP_DEFLATED)
    new.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
