"""Spans on their way out: a bounded queue, and a thread that hands them to an exporter.

The SDK's own processor drops what is too much without counting it, and its shutdown waits for an exporter
that hangs; a broker's loop must not.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

WAITING_MAX: Final = 4_096
"""Spans that have ended and are not sent; more are lost."""
BATCH_MAX: Final = 512
PAUSE_S: Final = 2.0
"""Between two batches that are not full."""

Tell = Callable[[str, int], None]
"""Told that spans are lost, or that they are sent again (an empty reason), and how many were lost in all;
from any thread."""


class SpanQueue(SpanProcessor):
    """See the module.

    Attributes:
        lost: spans that were not sent, and will not be.
        sent: spans that were.
        taken: spans that have come in time to be sent; some of them wait, or are with the exporter.
    """

    def __init__(self, exporter: SpanExporter, tell: Tell) -> None:
        """Begin to send.

        Args:
            exporter: sends; what it takes, or waits for, is nobody's concern but its thread's.
            tell: see `Tell`; called once for a spell of losses.
        """
        self._exporter = exporter
        self._tell = tell
        self._waiting: deque[ReadableSpan] = deque()
        self._lock = threading.Lock()
        self._more = threading.Event()
        self._ended = False
        self._losing = False
        self.lost = 0
        self.sent = 0
        self.taken = 0
        self._failed = 0
        # It ends with the process, whatever the exporter does.
        self._thread = threading.Thread(target=self._work, name="traces", daemon=True)
        self._thread.start()

    def on_end(self, span: ReadableSpan) -> None:
        """A span has ended; never waits."""
        with self._lock:
            full = len(self._waiting) >= WAITING_MAX
            if not full:
                self.taken += 1
                self._waiting.append(span)
                if len(self._waiting) == BATCH_MAX:
                    self._more.set()
        if full:
            self.lose(1, "they end faster than they are sent")

    def lose(self, count: int, why: str) -> None:
        """So many were not sent."""
        with self._lock:
            self.lost += count
            first, self._losing = not self._losing, True
        if first:
            self._tell(why, self.lost)

    @property
    def lost_at_last(self) -> int:
        """Spans that are lost if nothing more is sent."""
        return self.lost + self.taken - self.sent - self._failed

    def shutdown(self) -> None:
        """Send what waits, and end; returns at once."""
        self._ended = True
        self._more.set()

    def join(self, within_s: float) -> bool:
        """Wait for the end, in a thread of the caller's; whether it came."""
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing waits for long; see `shutdown`."""
        return True

    def _work(self) -> None:
        while True:
            with self._lock:
                count = min(BATCH_MAX, len(self._waiting))
                batch = [self._waiting.popleft() for _ in range(count)]
                self._more.clear()
            if batch:
                self._send(batch)
            elif self._ended:
                break
            if len(batch) < BATCH_MAX and not self._ended:
                self._more.wait(PAUSE_S)
        self._exporter.shutdown()

    def _send(self, batch: list[ReadableSpan]) -> None:
        try:
            done = self._exporter.export(batch) is SpanExportResult.SUCCESS
            why = "the exporter could not send them; does a receiver of OTLP over HTTP listen there?"
        except Exception as error:
            done, why = False, f"the exporter failed: {type(error).__name__}: {error}"
        if not done:
            self._failed += len(batch)
            self.lose(len(batch), why)
            return
        self.sent += len(batch)
        with self._lock:
            # While some wait in full, others may still be lost.
            again = self._losing and len(self._waiting) < WAITING_MAX // 2
            self._losing = self._losing and not again
        if again:
            self._tell("", self.lost)


def provider(resource: Resource, ratio: float, queue: SpanQueue) -> TracerProvider:
    """What makes tracers.

    Args:
        resource: who tells.
        ratio: share of the traces that begin here which are recorded; others are as their parent says.
        queue: where spans go that have ended.
    """
    made = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(ratio)), resource=resource, shutdown_on_exit=False
    )
    made.add_span_processor(queue)
    return made


def resource(service: str, version: str, instance: str) -> Resource:
    """Who tells; what ``OTEL_RESOURCE_ATTRIBUTES`` says is added."""
    who = {"service.name": service, "service.version": version, "service.instance.id": instance}
    return Resource.create(who)
