"""The helper process that writes a recording: ``python -I recorder_child.py FD DIR PATHS``.

FD is one end of a Unix stream socket, DIR the recording, PATHS the broker's module search path as JSON. The
broker sends frames: `FRAME`, then so many bytes. The answers are lines of JSON: ``{"ready": true, "run_id":
"prod-2", "number": 2}`` when a run has begun, ``{"written": N}`` when so many events of the run are in
complete files, ``{"failed": "a sentence", "written": N}`` as the last line when it cannot continue,
``{"ended": true}`` after `END`.

It is a separate process because making Parquet takes a tenth of a second at a time, which would delay every
client of the broker. When the socket is closed, which the system does if the broker dies, it completes its
files. It ends for no signal but SIGKILL: a service manager that stops all processes at once must not end it
while the broker still has events.
"""

from __future__ import annotations

import json
import signal
import socket
import struct
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amqp10broker.observe.recording import EventWriter, NamesFile, RunRecord, Sink

FRAME = struct.Struct("<BIq")
"""Kind, length of the payload, events that the broker has dropped in the run (`RUN`: in the one before)."""
EVENTS, RUN, NOTE, END = 1, 2, 3, 4
"""Kinds: packed events; the row of a new run (JSON; its run id is a name, see `claim_run`), which ends the
one before; additions to the row (JSON, see `Scribe.note`); the end (JSON: ``ended_ns``).
"""

READ_BYTES = 1 << 20
TICK_S = 1.0
"""The interval of checks whether a part is old enough."""
NICENESS = 5
"""On a machine with too little processor time the broker has precedence."""


class Scribe:
    """Writes the runs of one recording. `dropped`: events that the broker has dropped in the run."""

    def __init__(self, recording: str) -> None:
        self.dropped = 0
        self._recording = recording
        self._run: RunRecord | None = None
        self._writer: EventWriter | None = None
        self._room: Sink | None = None
        self._last_ts_ns = 0
        self._queues: dict[str, Any] = {}
        self._links: dict[tuple[int, ...], dict[str, Any]] = {}  # the present owners of these numbers
        self._names: NamesFile | None = None
        self._protocols: list[str] = []
        self._name = ""
        self._number = 0
        self.complete = 0
        """The events of the run that are in complete files."""

    def begin(self, row: dict[str, Any]) -> dict[str, Any]:
        """Begin a run, which ends the one before. A name that has a run gets a number: a run is written by
        one broker, once. Returns the answer.
        """
        from amqp10broker.observe.recording import (
            EventWriter,
            NamesFile,
            RunRecord,
            claim_run,
            keep_room,
        )

        run = RunRecord(**row)
        if self._run is not None:
            self.finish(run.began_ns)
        number = self._number + 1 if run.run_id == self._name else 1
        self._name = run.run_id
        self._last_ts_ns = run.began_ns
        self.dropped = self.complete = 0
        self._room = keep_room(self._recording)  # first: a run that cannot be recorded leaves no file
        self._run, self._number = claim_run(self._recording, run, number)
        self._writer = EventWriter(self._recording, self._run.run_id, "broker")
        self._names = NamesFile(self._recording, self._run.run_id)
        if self._links:  # those of the run before, of which most continue
            self._names.write(self._links.values())
        return {"ready": True, "run_id": self._run.run_id, "number": self._number}

    def take(self, events: bytes) -> None:
        from amqp10broker.observe.flow_events import PACK

        assert self._writer is not None, "events before a run"
        if events:
            self._last_ts_ns = max(self._last_ts_ns, PACK.unpack_from(events, len(events) - PACK.size)[0])
            self._writer.write(events)
            self._count()

    def note(self, given: dict[str, Any]) -> None:
        """Add to the row of the run: ``queues`` by number, new ``links`` (`LinkName`), all ``protocols`` of
        its connections, or when it ``began_ns``.
        """
        from amqp10broker.observe.recording import write_run

        self._queues |= given.get("queues", {})
        self._protocols = given.get("protocols", self._protocols)
        if "links" in given:
            assert self._names is not None, "a link before a run"
            self._names.write(given["links"])
            for link in given["links"]:
                self._links[link["kind"], link["connection"], link["channel"], link["handle"]] = link
        if "began_ns" in given:
            assert self._run is not None, "a note before a run"
            self._run = replace(self._run, began_ns=given["began_ns"])
            write_run(self._recording, self._run)

    def tick(self) -> None:
        if self._writer is not None:
            self._writer.tick()
            self._count()

    def finish(self, ended_ns: int | None = None, *, lost: int = 0) -> None:
        """Complete the run: its last part, then its row. A row that was replaced meanwhile by one with more
        content is preserved. `ended_ns`: when it ended; None: with the last event.
        """
        from amqp10broker.observe.recording import read_run, write_run

        run = self._run
        if run is None:
            return
        if self._writer is not None:
            self._writer.close()
            self._count()
            self._writer = None
        if self._names is not None:
            self._names.close()
        self._leave_room()
        row = read_run(self._recording, run.run_id)
        settings = json.loads(row.settings)
        protocol = row.protocol
        if isinstance(settings, dict):
            if self._queues:
                settings["queues"] = self._queues
            if self._protocols:
                settings["protocols"] = self._protocols
        if protocol is None and len(self._protocols) == 1:
            (protocol,) = self._protocols
        ended = self._last_ts_ns if ended_ns is None else ended_ns
        write_run(
            self._recording,
            replace(
                row,
                ended_ns=ended if row.ended_ns is None else row.ended_ns,
                events_dropped=self.dropped + lost,
                protocol=protocol,
                settings=json.dumps(settings),
            ),
        )
        self._run = None
        self._protocols = []

    def give_up(self) -> None:
        """Handle a failed write, such as on a full disk: make room, and note the missing part in the row."""
        from amqp10broker.observe.recording import RecordingError

        writer, self._writer = self._writer, None
        lost = 0 if writer is None else writer.abandon()
        try:
            self.finish(lost=lost)
        except RecordingError:
            pass  # the first error is the reported one
        self._leave_room()

    def _leave_room(self) -> None:
        room, self._room = self._room, None
        if room is not None:
            room.give_up()

    def _count(self) -> None:
        if self._writer is not None:
            self.complete = self._writer.complete


def serve(channel: socket.socket, scribe: Scribe) -> None:
    """Handle frames until the end, or until the other side is closed."""
    from amqp10broker.observe.recording import RecordingError

    told = 0
    try:
        for kind, dropped, payload in frames(channel, scribe.tick):
            scribe.dropped = dropped
            if kind == EVENTS:
                scribe.take(payload)
            elif kind == RUN:
                told = 0
                answer(channel, scribe.begin(json.loads(payload)))
            elif kind == NOTE:
                scribe.note(json.loads(payload))
            elif kind == END:
                scribe.finish(json.loads(payload)["ended_ns"])
                answer(channel, {"written": scribe.complete, "ended": True})
                return
            if scribe.complete != told:
                told = scribe.complete
                answer(channel, {"written": told})
        scribe.finish()
    except RecordingError as error:
        scribe.give_up()
        answer(channel, {"failed": str(error), "written": scribe.complete})


def frames(channel: socket.socket, tick: Any) -> Any:
    buffer = bytearray()
    while True:
        while len(buffer) >= FRAME.size:
            kind, size, dropped = FRAME.unpack_from(buffer)
            if len(buffer) < FRAME.size + size:
                break
            payload = bytes(buffer[FRAME.size : FRAME.size + size])
            del buffer[: FRAME.size + size]
            yield kind, dropped, payload
        try:
            data = channel.recv(READ_BYTES)
        except TimeoutError:
            tick()
            continue
        except ConnectionResetError:
            return
        if not data:
            return
        buffer += data


def answer(channel: socket.socket, line: dict[str, Any]) -> None:
    """Send a line to the broker, if it still runs."""
    try:
        channel.sendall(json.dumps(line).encode() + b"\n")
    except OSError:
        pass  # it has ended, as the end of its data shows


def main() -> None:
    # Search modules as the broker does: isolated mode ignores PYTHONPATH, which may have this package.
    sys.path[:] = json.loads(sys.argv[3])
    from amqp10broker import portable

    for number in portable.SERVICE_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    portable.nice(NICENESS)
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        channel.settimeout(TICK_S)
        serve(channel, Scribe(sys.argv[2]))


if __name__ == "__main__":
    main()
