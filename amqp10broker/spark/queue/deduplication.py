"""Message-ids that a queue source remembers, for ``deduplicate=messageId``. No disk, no clock.

A digest of 16 bytes is remembered: two different ids have the same one once in 10^38 pairs, and a message is
then lost. A text and a number with the same notation are one id. The last `window` ids are remembered, by
whole segments, and at least those of the newest segment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Final

from amqp10broker.spark.queue.spool import DIGEST_BYTES

WINDOW: Final = 1_000_000
"""Ids remembered; this many need about 150 MB of memory and 16 MB of disk."""


def digest(message_id: str) -> bytes:
    return blake2b(message_id.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


class SeenIds:
    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._segment_of: dict[bytes, int] = {}
        self._segments: deque[tuple[int, tuple[bytes, ...]]] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def fresh(self, message_ids: Sequence[str | None]) -> list[int] | None:
        """Return the places of messages with new ids, also among themselves; None if all are.

        Messages without an id (None) are always new. Places ascend.
        """
        known = self._segment_of
        now: set[bytes] = set()
        places = []
        for place, message_id in enumerate(message_ids):
            if message_id is not None:
                one = digest(message_id)
                if one in known or one in now:
                    continue
                now.add(one)
            places.append(place)
        return None if len(places) == len(message_ids) else places

    def add(self, number: int, digests: Iterable[bytes]) -> list[int]:
        """Remember the ids of a segment; segments arrive in ascending order. Returns numbers of segments that
        lose their ids in exchange.
        """
        kept = tuple(digests)
        self._segments.append((number, kept))
        self._count += len(kept)
        for one in kept:
            self._segment_of[one] = number
        forgotten = []
        while self._count > self._window and len(self._segments) > 1:
            old, gone = self._segments.popleft()
            self._count -= len(gone)
            for one in gone:
                # A later segment may have it again, if deduplicate was not always given.
                if self._segment_of.get(one) == old:
                    del self._segment_of[one]
            forgotten.append(old)
        return forgotten

    def of(self, number: int) -> bytes:
        """Return the ids of a segment as they are stored; empty if it has none or they were dropped."""
        for known, digests in self._segments:
            if known == number:
                return b"".join(digests)
        return b""


def unpack(data: bytes) -> Iterable[bytes]:
    return (data[at : at + DIGEST_BYTES] for at in range(0, len(data), DIGEST_BYTES))
