"""Sessions and channels that are traced: commands and effects are reported to `spans`.

The class is chosen when a connection begins, so that a connection without tracing has no cost.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from amqp10broker.metadata.queue import QueueCommand
from amqp10broker.observe.telemetry.spans import PartSpans, Traces
from amqp10broker.sessions.amqp091.channel import BrokerChannel
from amqp10broker.sessions.amqp10.session import BrokerSession
from amqp10broker.sessions.context import ChannelContext, SessionContext
from amqp10broker.sessions.endpoint import Outlet, SessionEndpoint
from amqp10broker.sessions.messages import SessionMessage


class _Traced(SessionEndpoint):
    # What `super()` calls is the session or channel that is the next base of the classes below.
    _spans: PartSpans

    def handle(self, message: SessionMessage) -> None:
        self._spans.heard(message)
        super().handle(message)  # type: ignore[safe-super]

    def take_commands(self) -> list[QueueCommand]:
        commands = super().take_commands()
        self._spans.posted(commands)
        return commands

    def write_output(self, outlet: Outlet) -> None:
        super().write_output(outlet)
        if not self.commands:
            self._spans.posted(())  # else it is called when they are taken

    def release(self) -> None:
        self._spans.close()
        super().release()  # type: ignore[safe-super]


class TracedSession(_Traced, BrokerSession):
    def __init__(
        self, traces: Traces, channel: int, begin: Any, context: SessionContext, **rest: Any
    ) -> None:
        self._spans = PartSpans(traces, "1.0", context.vhost.name)
        super().__init__(channel, begin, replace(context, on_unroutable=self._spans.unroutable), **rest)


class TracedChannel(_Traced, BrokerChannel):
    def __init__(self, traces: Traces, number: int, context: ChannelContext) -> None:
        self._spans = PartSpans(traces, "0.9.1", context.vhost.name)
        super().__init__(number, replace(context, on_unroutable=self._spans.unroutable))
