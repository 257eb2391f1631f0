"""Consumers and publishers in the log of a quorum queue: numbers for references, and the way back."""

from __future__ import annotations

from collections.abc import Iterable

from amqp10broker.queues.commands import ConsumerRef, PublisherRef, ReplyTo


class Refs:
    """Numbers of consumers and publishers in one queue's log, and the way back.

    Of a log that is read, each number gets a reference of its own, which nobody else knows.
    """

    __slots__ = (
        "_consumers",
        "_consumers_by_number",
        "_last",
        "_publishers",
        "_publishers_by_number",
        "_settled",
    )

    def __init__(self) -> None:
        self._last = 0
        self._consumers: dict[ConsumerRef, int] = {}
        self._consumers_by_number: dict[int, ConsumerRef] = {}
        self._settled: set[int] = set()
        self._publishers: dict[PublisherRef, int] = {}
        self._publishers_by_number: dict[int, PublisherRef] = {}

    def add_consumer(self, ref: ConsumerRef, *, settled: bool) -> int:
        """A number for a consumer that subscribes."""
        self._last += 1
        self._know_consumer(ref, self._last, settled=settled)
        return self._last

    def _know_consumer(self, ref: ConsumerRef, number: int, *, settled: bool) -> None:
        self._last = max(self._last, number)
        self._consumers[ref] = number
        self._consumers_by_number[number] = ref
        if settled:
            self._settled.add(number)

    def add_publisher(self, ref: PublisherRef) -> int:
        """A number for a publisher that attaches."""
        self._last += 1
        self._know_publisher(ref, self._last)
        return self._last

    def _know_publisher(self, ref: PublisherRef, number: int) -> None:
        self._last = max(self._last, number)
        self._publishers[ref] = number
        self._publishers_by_number[number] = ref

    def number_of_consumer(self, ref: ConsumerRef) -> int:
        """Its number; 0: it has none, and a queue does not know it either."""
        return self._consumers.get(ref, 0)

    def number_of_publisher(self, ref: PublisherRef) -> int:
        """Its number; 0: it did not attach."""
        return self._publishers.get(ref, 0)

    def settles(self, number: int) -> bool:
        """Whether a consumer's deliveries count as accepted when they are handed over."""
        return number in self._settled

    def consumer(self, number: int, *, settled: bool | None = None) -> ConsumerRef:
        """The consumer of a number in a log that is read.

        Args:
            number: as the log says.
            settled: it subscribes, with deliveries that count as accepted or not; None: it does not.
        """
        ref = self._consumers_by_number.get(number)
        if ref is None:
            ref = ConsumerRef(ReplyTo(f"consumer {number} of the log"))
            if settled is not None:
                self._know_consumer(ref, number, settled=settled)
        return ref

    def publisher(self, number: int, *, attaches: bool = False) -> PublisherRef:
        """The publisher of a number in a log that is read."""
        ref = self._publishers_by_number.get(number)
        if ref is None:
            ref = PublisherRef(ReplyTo(f"publisher {number} of the log"))
            if attaches:
                self._know_publisher(ref, number)
        return ref

    def forget_publisher(self, ref: PublisherRef) -> None:
        """It detached."""
        self._publishers_by_number.pop(self._publishers.pop(ref, 0), None)

    def keep_consumers(self, refs: Iterable[ConsumerRef]) -> None:
        """Forget all consumers but these, which the queue still knows."""
        kept = {ref: number for ref in refs if (number := self._consumers.get(ref)) is not None}
        self._consumers = kept
        self._consumers_by_number = {number: ref for ref, number in kept.items()}
        self._settled &= self._consumers_by_number.keys()

    def forget_all(self) -> None:
        """The node was started again. Numbers are not used twice."""
        self.keep_consumers(())
        self._publishers.clear()
        self._publishers_by_number.clear()
