"""What the parts of a channel use of it: its output, names of queues, and the wait for an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from amqp10broker.errors import (
    AccessRefused,
    BadRequest,
    LimitExceeded,
    NotAllowed,
    NotFound,
    NotSupported,
    PreconditionFailed,
    RefusedError,
    ResourceLocked,
)
from amqp10broker.metadata.proposing import Decided
from amqp10broker.metadata.queue import DeclaredQueue, LastError
from amqp10broker.operations.caller import Caller, Steps, Wait
from amqp10broker.operations.registry import perform
from amqp10broker.protocols.amqp091.errors import Amqp091Error, AmqpChannelError, AmqpHardError, ReplyCode
from amqp10broker.protocols.amqp091.framing import method_frame
from amqp10broker.protocols.amqp091.methods import Method
from amqp10broker.queues.commands import RequestRef
from amqp10broker.queues.effects import Answer
from amqp10broker.routing.declaration import stripped
from amqp10broker.sessions.amqp091.consuming import ChannelConsumers, ChannelTap
from amqp10broker.sessions.amqp091.publishing import Publishing
from amqp10broker.sessions.context import ChannelContext
from amqp10broker.sessions.endpoint import SessionEndpoint

GENERATED_PREFIX: Final = "amq.gen-"


class ChannelBase(SessionEndpoint):
    """A channel, as its parts use it. `last_queue`: the queue declared last, which an empty name means.
    `paused`: nothing is handled until an answer. Frames that come meanwhile are held.
    """

    consuming: ChannelConsumers
    publishing: Publishing

    def __init__(self, number: int, context: ChannelContext) -> None:
        super().__init__(context.moment)
        self.number = number
        self.context = context
        self.last_queue = ""
        self.last_error: LastError | None = None
        self.taps: tuple[ChannelTap, ...] = ()
        self.paused = False
        self.paused_ms = 0
        self._out: list[bytes | memoryview] = []
        self._then: Callable[[Any], None] | None = None
        self._request: RequestRef | None = None

    def write(self, method: Method) -> None:
        self._out.append(method_frame(self.number, method))
        for tap in self.taps:
            tap.sent(method)

    def write_content(self, frames: bytes) -> None:
        """Write a method with its content, encoded already."""
        self._out.append(frames)
        for tap in self.taps:
            tap.sent_content(frames)

    def warn(self, event: str, **details: Any) -> None:
        """Log an error that is sent to the client, and store it as the last one."""
        self.last_error = self.context.log.warning(event, channel=self.number, **details)

    def pause(self) -> None:
        self.paused = True
        self.paused_ms = self.context.moment.ms

    def perform(self, operation: str, given: Mapping[str, object], then: Callable[[Any], None]) -> None:
        """Carry out an operation and handle nothing else until it is done. Raises `RefusedError`."""
        context = self.context
        caller = Caller(
            context.catalog,
            context.vhost,
            context.access,
            context.connection,
            propose=context.propose,
            new_request=context.reply_to.request,
            new_name=lambda: GENERATED_PREFIX + context.new_id(),
        )
        self._advance(perform(caller, operation, given), then, None)

    def _advance(
        self, steps: Steps[Any], then: Callable[[Any], None], answer: Answer | Decided | None
    ) -> None:
        try:
            wait = steps.send(answer)
        except StopIteration as done:
            result = done.value
        else:
            assert isinstance(wait, Wait), "the caller has no node"
            self._request = wait.ref
            self._then = partial(self._advance, steps, then)
            self.pause()
            if wait.queue is not None and wait.command is not None:
                self.to_queue((wait.queue, wait.command))
            return
        then(result)

    def queue_named(self, name: str) -> str:
        """Return the name, or for an empty one that of the queue declared last. Raises `NotFound`."""
        if name:
            return stripped(name)
        if not self.last_queue:
            raise NotFound("queue ''", "no previously declared queue")
        return self.last_queue

    def usable(self, name: str) -> DeclaredQueue:
        """Return the queue of this name that the connection may use. Raises `NotFound` if it does not exist,
        and `ResourceLocked` if it is exclusive to another connection.
        """
        vhost = self.context.vhost
        return vhost.for_connection(vhost.lookup(name), self.context.connection)


# The first entry that matches counts. 404, 403, 405 and 406 end the channel, 530, 540 and 541 the connection.
_CODES: Final[tuple[tuple[type[RefusedError], ReplyCode], ...]] = (
    (NotFound, ReplyCode.NOT_FOUND),
    (AccessRefused, ReplyCode.ACCESS_REFUSED),
    (ResourceLocked, ReplyCode.RESOURCE_LOCKED),
    (PreconditionFailed, ReplyCode.PRECONDITION_FAILED),
    (LimitExceeded, ReplyCode.PRECONDITION_FAILED),
    (BadRequest, ReplyCode.PRECONDITION_FAILED),
    (NotSupported, ReplyCode.NOT_IMPLEMENTED),
    (NotAllowed, ReplyCode.NOT_ALLOWED),
)
_HARD: Final = (ReplyCode.NOT_IMPLEMENTED, ReplyCode.NOT_ALLOWED, ReplyCode.INTERNAL_ERROR)


def to_amqp091_error(refusal: RefusedError) -> Amqp091Error:
    code = next((code for kind, code in _CODES if isinstance(refusal, kind)), ReplyCode.INTERNAL_ERROR)
    kind = AmqpHardError if code in _HARD else AmqpChannelError
    return kind(code, refusal.description)
