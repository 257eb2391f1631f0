"""Applies the lint to a recording of frames."""

from __future__ import annotations

from amqp10broker.observe.frames.records import Ended, KnownLink, Listening, Record
from amqp10broker.protocols.preface import Protocol
from amqp10broker.tools.lint.amqp091 import Client091
from amqp10broker.tools.lint.amqp10 import Client10
from amqp10broker.tools.lint.findings import Book, Finding


class Lint:
    """Processes the frames of any number of connections.

    It stores attached links and unsettled deliveries; of ended objects only findings. `connections` and
    `frames` count the processed ones.
    """

    def __init__(self) -> None:
        self._book = Book()
        self._clients: dict[int, Client10 | Client091] = {}
        self._now_ns = 0
        self.connections = 0
        self.frames = 0

    def take(self, record: Record) -> None:
        self._now_ns = max(self._now_ns, record.at_ns)
        if isinstance(record, Listening):
            self._end(record.connection)
            kind = Client10 if record.protocol is Protocol.AMQP_10 else Client091
            self._clients[record.connection] = kind(record.connection, self._book)
            self.connections += 1
            return
        client = self._clients.get(record.connection)
        if client is None:
            return
        if isinstance(record, KnownLink):
            client.know(record)
        elif isinstance(record, Ended):
            self._end(record.connection)
        else:
            self.frames += 1
            client.take(record)

    def finish(self, now_ns: int = 0) -> list[Finding]:
        """Finish the recording and return the findings. `now_ns`: time of the end, nanoseconds since 1970;
        that of the last record if that is later.
        """
        self._now_ns = max(self._now_ns, now_ns)
        for connection in list(self._clients):
            self._end(connection)
        return list(self._book.findings())

    def _end(self, connection: int) -> None:
        client = self._clients.pop(connection, None)
        if client is not None:
            client.finish(self._now_ns)
