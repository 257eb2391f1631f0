"""Dead letters: those at most once are put into the mailboxes of their target queues; those at least once are
forwarded with confirms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import trio

from amqp10broker.metadata.catalog import Catalog
from amqp10broker.queues.commands import (
    Command,
    Configure,
    Confirmed,
    DeadLetters,
    DeadMessage,
    Effect,
    Publish,
    PublishRejected,
    Purge,
    Unconfirmed,
)
from amqp10broker.queues.quorum.queue import QuorumQueue
from amqp10broker.queues.settings import QueueSettings
from amqp10broker.runtime.clock import WallClock
from amqp10broker.runtime.log import Log
from amqp10broker.runtime.mailbox import Mailbox, ReplyRegistry
from amqp10broker.sessions.dead_letters import (
    RETRY_MS,
    DeadLetterTarget,
    Forwarding,
    Post,
    route_dead_letters,
)

_log = Log("amqp10broker.dead_letter")

_CYCLES_MAX: Final = 1000
"""The number of cycles that are remembered as logged."""


class DeadLetterSender:
    """Routes the messages that queues give up, at most once."""

    def __init__(self, catalog: Catalog, reply_registry: ReplyRegistry, clock: WallClock) -> None:
        self._catalog = catalog
        self._clock = clock
        self._publisher = reply_registry.open("dead letters").publisher()
        self._cycles: set[tuple[str, str, str]] = set()

    def post(self, vhost: str, queue: str, batches: Iterable[DeadLetters]) -> None:
        """Put dead letters into the mailboxes of their target queues. Those without a target are dropped."""
        found = self._catalog.vhosts.get(vhost)
        if found is None:
            return
        now_ms = self._clock.now_ms()
        for letters in batches:
            routed = route_dead_letters(found, queue, letters, now_ms)
            for target, messages in routed.to:
                ids = range(len(messages))
                target.handle.post(Publish(self._publisher, ids, messages, settled=True))
            for name in routed.cycles:
                self._log_cycle(vhost, queue, name)

    def _log_cycle(self, vhost: str, queue: str, target: str) -> None:
        cycle = (vhost, queue, target)
        if cycle in self._cycles:
            return
        if len(self._cycles) >= _CYCLES_MAX:
            self._cycles.clear()
        self._cycles.add(cycle)
        _log.warning(
            "dead letters dropped: they had died in their target queue before, and no client rejected "
            "them since; this is logged once",
            vhost=vhost,
            queue=queue,
            target=target,
        )


WorkerMail = list[Effect] | Callable[[], None] | None
"""Effects, or a call for which the queue's task asks; None: the end."""


class DeadLetterWorker:
    """Forwards the dead messages of one queue at least once, in a separate task. The queue's task calls the
    other methods; none of them waits.
    """

    def __init__(
        self,
        catalog: Catalog,
        vhost: str,
        queue: str,
        destination: DeadLetterTarget,
        settle: Callable[[Sequence[int]], None],
        reply_registry: ReplyRegistry,
        clock: WallClock,
        *,
        retry_ms: int = RETRY_MS,
    ) -> None:
        self._catalog = catalog
        self._vhost = vhost
        self._queue = queue
        self._settle = settle
        self._clock = clock
        self._mailbox: Mailbox[WorkerMail] = Mailbox()
        self._reply_registry = reply_registry
        self._reply_to = reply_registry.open(f"dead letters of {queue}", self._mailbox)
        self._forwarding = Forwarding(queue, destination, self._reply_to, retry_ms=retry_ms)
        self._unrouted_logged = False

    def offer(self, letters: Sequence[DeadMessage]) -> None:
        """Forward these messages too. The queue limits how many are unconfirmed at a time."""
        self._mailbox.put(partial(self._send, letters))

    def redirect(self, destination: DeadLetterTarget) -> None:
        """Forward to another exchange, or with another key, from now on."""
        self._mailbox.put(partial(self._redirect, destination))

    def forget(self) -> None:
        """Send nothing again: the queue was purged, or does not need it any more."""
        self._mailbox.put(self._forwarding.forget)

    def end(self) -> None:
        self._mailbox.put(None)

    async def run(self) -> None:
        try:
            await self._work_on()
        finally:
            self._reply_registry.close(self._reply_to)

    async def _work_on(self) -> None:
        while True:
            mail: list[WorkerMail] = []
            deadline = self._forwarding.deadline()
            until = math.inf if deadline is None else self._clock.trio_time(deadline)
            with trio.move_on_at(until):
                mail = await self._mailbox.take_all()
            for each in mail:
                if each is None:
                    self._mailbox.close()
                    return
                if isinstance(each, list):
                    self._on_effects(each)
                else:
                    each()
            self._send_again()
            if not len(self._forwarding):
                self._unrouted_logged = False

    def _on_effects(self, effects: list[Effect]) -> None:
        done: list[int] = []
        for effect in effects:
            if isinstance(effect, Confirmed):
                done += self._forwarding.confirmed(effect)
            else:
                assert isinstance(effect, PublishRejected | Unconfirmed), effect
                self._forwarding.refused(effect)
        if done:
            self._settle(done)

    def _send(self, letters: Sequence[DeadMessage]) -> None:
        vhost = self._catalog.vhosts.get(self._vhost)
        if vhost is not None:
            self._post(self._forwarding.send(letters, vhost, self._clock.now_ms()))

    def _redirect(self, destination: DeadLetterTarget) -> None:
        self._forwarding.redirect(destination, self._clock.now_ms())
        self._unrouted_logged = False

    def _send_again(self) -> None:
        deadline = self._forwarding.deadline()
        now_ms = self._clock.now_ms()
        if deadline is None or deadline > now_ms:
            return
        vhost = self._catalog.vhosts.get(self._vhost)
        if vhost is None:
            self._forwarding.forget()  # the queue is deleted with it, and will report it
            return
        posts, done = self._forwarding.due(vhost, now_ms)
        self._post(posts)
        if done:
            self._settle(done)

    def _post(self, posts: list[Post]) -> None:
        for target, publish in posts:
            target.handle.post(publish)
        if self._forwarding.unrouted and not self._unrouted_logged:
            self._unrouted_logged = True
            _log.warning(
                "dead letters stay in their queue: there is no such exchange, or no queue is bound to it; "
                "declare or bind one, or change the dead-letter exchange",
                vhost=self._vhost,
                queue=self._queue,
                exchange=self._forwarding.destination.exchange,
                unrouted=self._forwarding.unrouted,
            )


class AtLeastOnce:
    def __init__(self, start: Callable[[DeadLetterTarget], DeadLetterWorker]) -> None:
        self._start = start
        self._worker: DeadLetterWorker | None = None
        self._destination: DeadLetterTarget | None = None

    def offer(self, dead: Sequence[DeadMessage], settings: QueueSettings) -> None:
        if self._worker is None:
            self._destination = _destination(settings)
            if self._destination is None:
                return  # a policy has deleted these settings meanwhile
            self._worker = self._start(self._destination)
        self._worker.offer(dead)

    def look_after(self, commands: Sequence[Command], queue: QuorumQueue) -> None:
        worker = self._worker
        if worker is None:
            return
        kinds = set(map(type, commands))
        if Purge in kinds or (Configure in kinds and not queue.dlx):
            worker.forget()
        destination = _destination(queue.settings)
        if destination is not None and destination != self._destination:
            self._destination = destination
            worker.redirect(destination)

    def end(self) -> None:
        if self._worker is not None:
            self._worker.end()


def _destination(settings: QueueSettings) -> DeadLetterTarget | None:
    exchange = settings.dead_letter_exchange
    return None if exchange is None else DeadLetterTarget(exchange, settings.dead_letter_routing_key)
