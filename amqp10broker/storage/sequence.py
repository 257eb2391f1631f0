"""The numbered files of a folder: which exist, which are missing, and how each is to be read.

A start and a check (`check`) use the same rules:

- A file that the inventory names must exist.
- One before all those was dropped and came back with a loss of power: it is not read, and removed.
- One behind them was made and not written to, or not for long: it may be empty, and is removed then.
- In a *gapless* sequence, the journal, each number follows the one before, and the next file is made in the
  commit that fills the one before, so that both may be unfinished. Of a stream the records state what
  follows.
"""

from __future__ import annotations

import itertools
import os.path
import re
from collections.abc import Mapping, Sequence
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import DamagedFile, StorageError
from amqp10broker.storage.disk import Disk
from amqp10broker.storage.reader import BRING_BACK, FileReader, KnownFile
from amqp10broker.storage.record import HEADER_BYTES, Purpose

_SUFFIX: Final = ".log"


@dataclass(frozen=True, slots=True)
class Naming:
    digits: int
    purpose: Purpose
    gapless: bool

    def name(self, number: int) -> str:
        return f"{number:0{self.digits}}{_SUFFIX}"

    def number(self, name: str) -> int | None:
        """Return the number in a name; None if it is another file."""
        found = re.fullmatch(rf"(\d{{{self.digits}}})\{_SUFFIX}", name)
        return None if found is None else int(found[1])


JOURNAL: Final = Naming(16, Purpose.JOURNAL, gapless=True)
STREAM: Final = Naming(20, Purpose.STREAM, gapless=False)
"""Files numbered by the offset of the first message."""


@dataclass(frozen=True, slots=True)
class SequenceFile:
    number: int
    path: str
    last: bool
    known: KnownFile | None

    @property
    def gap(self) -> bool:
        """Whether files before it were given up."""
        return self.known is not None and self.known.gap

    def reader(self, disk: Disk, naming: Naming) -> FileReader:
        """Open the file for reading; raises as `FileReader`."""
        return FileReader(
            disk, self.path, purpose=naming.purpose, number=self.number, last=self.last, known=self.known
        )


@dataclass(frozen=True, slots=True)
class FolderSurvey:
    files: Sequence[SequenceFile]
    missing: Sequence[DamagedFile]
    leftovers: Sequence[str]
    unused: str | None


def survey(disk: Disk, folder: str, naming: Naming, known: Mapping[str, KnownFile]) -> FolderSurvey:
    """Survey the names in a folder, and its last file. `known`: files that must exist, by name. Raises
    `StorageError` if there is something else in the folder, or it cannot be read.
    """
    there = _numbers(disk, folder, naming)
    must = {number: each for name, each in known.items() if (number := naming.number(name)) is not None}
    first = min(must, default=0)
    numbers = [number for number in there if number >= first]
    missing = set(must).difference(there)
    unused = None
    may_be_torn = set(numbers[-1:])
    if numbers and numbers[-1] not in must:
        path = os.path.join(folder, naming.name(numbers[-1]))
        if _is_unused(disk, path, naming, numbers):
            unused = path
            numbers.pop()
            # Of a stream, all before is durable when a file is made.
            may_be_torn = set(numbers[-1:]) if naming.gapless else set()
    if naming.gapless:
        missing.update(
            before + 1
            for before, after in itertools.pairwise(numbers)
            if after != before + 1 and not (after in must and must[after].gap)
        )
    return FolderSurvey(
        [
            SequenceFile(
                number, os.path.join(folder, naming.name(number)), number in may_be_torn, must.get(number)
            )
            for number in numbers
        ],
        [
            DamagedFile(
                os.path.join(folder, naming.name(number)),
                "the file is missing",
                f"nothing was changed; {BRING_BACK}",
            )
            for number in sorted(missing)
        ],
        [os.path.join(folder, naming.name(number)) for number in there if number < first],
        unused,
    )


def _numbers(disk: Disk, folder: str, naming: Naming) -> list[int]:
    try:
        names = disk.list_folder(folder) if disk.is_folder(folder) else []
    except OSError as error:
        raise StorageError(
            folder, f"cannot be read: {error.strerror}", "check whose the folder is"
        ) from error
    numbers = []
    for name in names:
        number = naming.number(name)
        if number is not None:
            numbers.append(number)
        elif not name.startswith("."):
            raise StorageError(
                os.path.join(folder, name), "does not belong here", "move it out of the data folder"
            )
    return numbers


def _is_unused(disk: Disk, path: str, naming: Naming, numbers: Sequence[int]) -> bool:
    # The last file was made, and then the power went before anything was in it.
    try:
        reader = FileReader(disk, path, purpose=naming.purpose, number=numbers[-1], last=True)
    except StorageError:
        return False  # its reader reports the fault
    reader.close()
    if not naming.gapless:
        return reader.header is None
    # The only file of the journal is used, or made anew.
    return len(numbers) > 1 and reader.size <= HEADER_BYTES
