"""Messages that say who they are, and the comparison of a sink with what was published.

Message N of a queue has the message-id ``m-N`` and a body that follows from N. `tally` looks at every row
of a sink and counts: what is missing, what is there twice, what is not as it was published.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet
from proton import Delivery, Message

from tests.support.broker_process import BrokerProcess
from tests.support.proton_client import ProtonClient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SENT_AT_ONCE: Final = 500


def message_id(number: int) -> str:
    return f"m-{number}"


def body(number: int) -> bytes:
    """Return the body of message N; sizes differ, so that batches end at different bytes."""
    return b"%d " % number * (1 + number % 7)


def publish(broker: BrokerProcess, name: str, count: int, *, first: int = 0) -> None:
    """Publish durable messages N = first, ... and wait until each is accepted."""
    client = ProtonClient(broker.port)
    try:
        sender = client.sender(f"/queues/{name}")
        numbers = range(first, first + count)
        for start in range(0, count, _SENT_AT_ONCE):
            for number in numbers[start : start + _SENT_AT_ONCE]:
                content = Message(id=message_id(number), body=body(number), durable=True, inferred=True)
                sender.transfer_now(content)
            sent = min(count, start + _SENT_AT_ONCE)
            client.wait(lambda sent=sent: len(sender.outcomes) == sent or sender.closed, f"{sent} outcomes")
        assert {outcome.state for outcome in sender.outcomes.values()} == {Delivery.ACCEPTED}
    finally:
        client.close()


def declare(broker: BrokerProcess, name: str, kind: str, **arguments: object) -> None:
    options = [word for key, value in arguments.items() for word in ("--argument", f"{key}={value}")]
    done = broker.run_command("queue", "declare", name, "--type", kind, *options)
    assert done.returncode == 0, done.stderr


def url(broker: BrokerProcess) -> str:
    return f"amqp://guest:guest@{broker.host}:{broker.port}"


@dataclass(frozen=True, slots=True)
class Tally:
    """What a sink holds of messages 0 to count - 1.

    Attributes:
        rows: all of them.
        distinct: different messages among them.
        missing: numbers of messages that are not there.
        twice: numbers of messages that are there more than once.
        strange: rows that are not as a message was published.
    """

    rows: int
    distinct: int
    missing: tuple[int, ...]
    twice: tuple[int, ...]
    strange: tuple[Any, ...]

    def __str__(self) -> str:
        return (
            f"{self.rows} rows, {self.distinct} distinct; missing {len(self.missing)} {self.missing[:5]}, "
            f"twice {len(self.twice)} {self.twice[:5]}, strange {len(self.strange)} {self.strange[:3]}"
        )

    @property
    def exactly_once(self) -> bool:
        return not (self.missing or self.twice or self.strange)

    @property
    def nothing_lost(self) -> bool:
        return not (self.missing or self.strange)


def tally(frame: DataFrame, count: int, *, offsets: bool) -> Tally:
    columns = ("messageId", "body", *(("offset",) if offsets else ()))
    return tally_rows((tuple(row) for row in frame.select(*columns).collect()), count)


def tally_rows(rows: Iterable[Sequence[Any]], count: int) -> Tally:
    """Tally rows of (message-id, body) or (message-id, body, offset)."""
    seen: Counter[int] = Counter()
    strange = []
    for row in rows:
        text = str(row[0]).removeprefix("m-")
        number = int(text) if text.isdigit() else -1
        expected = (message_id(number), body(number), number)[: len(row)]
        as_published = 0 <= number < count and (row[0], bytes(row[1]), *row[2:]) == expected
        if as_published:
            seen[number] += 1
        else:
            strange.append(tuple(row))
    return Tally(
        rows=seen.total() + len(strange),
        distinct=len(seen),
        missing=tuple(number for number in range(count) if number not in seen),
        twice=tuple(number for number, times in sorted(seen.items()) if times > 1),
        strange=tuple(strange),
    )


def read_copies(folder: Path, *columns: str) -> list[list[list[tuple[Any, ...]]]]:
    """Return what `spark_driver` copied: each attempt at each batch, as rows in order of arrival."""
    return [
        [_rows(folder / str(batch) / str(attempt), columns) for attempt in range(_count(folder / str(batch)))]
        for batch in range(_count(folder))
    ]


def _count(folder: Path) -> int:
    return sum(1 for path in folder.iterdir() if path.is_dir())


def _rows(folder: Path, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    table = pyarrow.parquet.read_table(folder, columns=list(columns))
    return [tuple(row.values()) for row in table.to_pylist()]
