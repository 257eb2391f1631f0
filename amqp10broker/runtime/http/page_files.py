"""The files of the page, read at the first request, and cached: together they are small."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib.resources import files
from typing import Final

import trio

from amqp10broker.api.endpoints.page import FOLDERS, kind_of
from amqp10broker.api.messages import PageFile

_TAG_DIGITS: Final = 16


class PageFiles:
    """The content of the package's folder ``page``."""

    def __init__(self) -> None:
        self._files: dict[str, PageFile] | None = None

    async def find(self, path: str) -> PageFile | None:
        """A file. Returns None if there is none of this path. Raises `OSError` if the files cannot
        be read.
        """
        if self._files is None:
            self._files = await trio.to_thread.run_sync(lambda: dict(_read()))
        return self._files.get(path)


def _read() -> Iterator[tuple[str, PageFile]]:
    root = files("amqp10broker") / "api" / "page"
    for folder in FOLDERS:
        for entry in (root / folder).iterdir():
            kind = kind_of(entry.name)
            if kind is not None:
                body = entry.read_bytes()
                yield (
                    folder + entry.name,
                    PageFile(kind, body, hashlib.sha256(body).hexdigest()[:_TAG_DIGITS]),
                )
