"""The names of numbered files in one folder, and that none is missing among them."""

from __future__ import annotations

import itertools
import os.path
import re
from typing import Final

from amqp10broker.errors import DamagedFile, StorageError
from amqp10broker.storage.disk import Disk

_NAME: Final = re.compile(r"(\d{16})\.log")


def file_name(number: int) -> str:
    """The name of a file of a sequence."""
    return f"{number:016}.log"


def list_files(disk: Disk, folder: str) -> list[int]:
    """The numbers of a folder's files, in order.

    Raises:
        DamagedFile: one in the middle is missing.
        StorageError: there is something else in the folder, or it cannot be read.
    """
    try:
        names = disk.list_folder(folder)
    except OSError as error:
        raise StorageError(folder, f"cannot be read: {error.strerror}", "check that it is there") from error
    numbers: list[int] = []
    for name in names:
        found = _NAME.fullmatch(name)
        if found is not None:
            numbers.append(int(found[1]))
        elif not name.startswith("."):
            raise StorageError(
                os.path.join(folder, name), "does not belong here", "move it out of the data folder"
            )
    for before, after in itertools.pairwise(numbers):
        if after != before + 1:
            raise DamagedFile(
                os.path.join(folder, file_name(before + 1)),
                f"the file is missing, and {file_name(after)} is there",
                "bring it back, or restore the data folder from a copy",
            )
    return numbers
