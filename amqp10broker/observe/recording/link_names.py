"""The names of the links of a run, in a file beside its events, which have only numbers.

``names/RUN_ID.jsonl`` has a line of JSON (`LinkName`) for each link when it is first seen; a line is written
at once, so that a broker that is killed leaves the names of all that it recorded. Handles are reused: a name
is valid from its time until the next one with the same numbers.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Self, TextIO

from amqp10broker.dataclass import dataclass
from amqp10broker.observe.flow_events.schema import NAMES
from amqp10broker.observe.recording.errors import NotARecording, NotWritable, check_run_id

# How much later than the first event's beginning a name may be: the two clocks are read in turn.
LATE_NS: Final = 1_000_000
Place = tuple[int, int, int, int]
"""Kind (`LINK_IN` or `LINK_OUT`), connection, channel and handle of an event."""


@dataclass(frozen=True, slots=True)
class LinkName:
    """One link; in AMQP 0-9-1 the publishing side of a channel, or a consumer.

    Attributes:
        ts_ns: wall clock since 1970; before, the numbers belonged to another link.
        link: its name; the tag of a consumer of AMQP 0-9-1, "" for the publishing side of a channel.
        address: of AMQP 1.0, or a queue's name; "" for an anonymous terminus, and for the publishing side of
            a channel.
        client: container-id, or the connection name of a client of AMQP 0-9-1; "" without one.
    """

    ts_ns: int
    kind: int
    connection: int
    channel: int
    handle: int
    link: str
    address: str
    client: str
    user: str
    vhost: str
    peer: str

    @property
    def place(self) -> Place:
        return self.kind, self.connection, self.channel, self.handle

    @classmethod
    def read(cls, line: str) -> Self:
        """Parse a line of the file."""
        return cls(**json.loads(line))


class NamesFile:
    """Writes the names of one run; a run without links has no file."""

    def __init__(self, recording: str | os.PathLike[str], run_id: str) -> None:
        self._path = path_of(recording, run_id)
        self._file: TextIO | None = None

    def write(self, names: Iterable[dict[str, Any]]) -> None:
        """Add names, and pass them to the system."""
        try:
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("a", encoding="utf-8")
            self._file.writelines(f"{json.dumps(name)}\n" for name in names)
            self._file.flush()
        except OSError as error:
            raise NotWritable(str(self._path), error.strerror or str(error)) from error

    def close(self) -> None:
        # Errors of writing were raised by `write`.
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError:
                pass  # a line that did not fit on the disk, which `write` has reported


class LinkNameIndex:
    """Finds the name of a link by the numbers and the time of an event; takes names in any order."""

    def __init__(self, names: Iterable[LinkName]) -> None:
        self._by_place: dict[Place, list[LinkName]] = {}
        for name in sorted(names, key=lambda name: name.ts_ns):
            self._by_place.setdefault(name.place, []).append(name)

    def __len__(self) -> int:
        return sum(map(len, self._by_place.values()))

    def find(self, place: Place, began_ns: int) -> LinkName | None:
        """Return the link that had these numbers at this time; None if it was not recorded."""
        found = self._by_place.get(place, [])
        at = bisect_right(found, began_ns + LATE_NS, key=lambda name: name.ts_ns)
        return found[at - 1] if at else None


def path_of(recording: str | os.PathLike[str], run_id: str) -> Path:
    return Path(recording) / NAMES / f"{check_run_id(run_id)}.jsonl"


def read_names(recording: str | os.PathLike[str], run_id: str) -> LinkNameIndex:
    """Return the names of a run; empty for recordings without names.

    An incomplete last line is ignored: it is being written, or could not be. Raises `NotARecording` if the
    file cannot be read, or is damaged.
    """
    path = path_of(recording, run_id)
    try:
        lines = path.read_text("utf-8").split("\n")
    except FileNotFoundError:
        return LinkNameIndex(())
    except (OSError, UnicodeDecodeError) as error:
        raise NotARecording(str(path), f"cannot be read: {error}: if it is damaged, move it away") from error
    try:
        return LinkNameIndex(LinkName.read(line) for line in lines[:-1])
    except (ValueError, TypeError) as error:
        raise NotARecording(str(path), f"has a line that is no name: {error}: move it away") from error
