"""The quorum queue: a deterministic state machine for a log of commands.

The same commands with the same times in the same order make the same state, whatever happens to the effects.
Consumers, their credit and their unsettled deliveries are part of the state, and the passing of time is a
command (`Tick`). No command depends on data of one process. So the log may be one journal, or a replicated
one whose members apply its committed entries: all of them reach the same state.

The state refers to messages by index. Each message that was ever published has an index, and the indexes
grow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from types import SimpleNamespace
from typing import Final

from amqp10broker.message.message import Message
from amqp10broker.queues import machine_version
from amqp10broker.queues.commands import (
    TICK,
    Answer,
    Cancel,
    Configure,
    Confirmed,
    ConsumerRef,
    Credit,
    DeadMessage,
    Deliver,
    GiveBack,
    Inspect,
    PeerId,
    Publish,
    PublisherRef,
    PublishRejected,
    Purge,
    Refusal,
    RequestRef,
    Settle,
    Settled,
    Subscribe,
    Tick,
    Unsubscribe,
    tag_in,
)
from amqp10broker.queues.machine import QueueMachine
from amqp10broker.queues.queue_status import QueueStats, QueueStatus, QueueWeight, few, is_full, length_limits
from amqp10broker.queues.quorum.bodies import PagedBodies
from amqp10broker.queues.quorum.commands import (
    CHANGES_NOTHING,
    BrowsersGone,
    Browsing,
    DlxSettle,
    NodeBack,
    NodeBatch,
    NodeGone,
    NodeSuspect,
    QuorumChange,
    QuorumCommand,
    RaiseVersion,
    Selected,
    SessionGone,
)
from amqp10broker.queues.quorum.consumer import QuorumConsumer
from amqp10broker.queues.quorum.consumers import QuorumConsumers
from amqp10broker.queues.quorum.messages import PREFETCH, Messages, at_least_once
from amqp10broker.queues.quorum.node_links import ConsumerFacts, NodeLink, NodeLinks, Resumption, is_of
from amqp10broker.queues.quorum.ordered_entries import OrderedEntries, size_of
from amqp10broker.queues.quorum.selecting import Browsers
from amqp10broker.queues.quorum.snapshot import BEGINNING, state_of, version_of
from amqp10broker.queues.settings import DEFAULTS, Overflow, QueueSettings

_CONTENT: Final = itemgetter(1)
_LOSSES: Final = (NodeGone, SessionGone)


class QuorumQueue(QueueMachine):
    def __init__(
        self,
        name: str,
        *,
        settings: QueueSettings = DEFAULTS,
        now_ms: int,
        bodies: PagedBodies | None = None,
    ) -> None:
        super().__init__(name)
        self.version = 1
        self.messages = Messages(settings, PagedBodies() if bodies is None else bodies, now_ms)
        self.messages.counters, self.messages.dead_letters = self.counters, self._dead_letters
        self.node_links = NodeLinks()
        self._consumers = QuorumConsumers(name, self.messages, self._outbox, self.node_links, now_ms)
        self.browsers = Browsers(name, self.messages, self._outbox)
        self.dead_letter_prefetch = PREFETCH

    def limit_as(self, other: QuorumQueue) -> None:
        """Take over the limits that are this node's configuration, and not part of the state."""
        self.browsers.scan_max = other.browsers.scan_max
        self.dead_letter_prefetch = other.dead_letter_prefetch

    @property
    def settings(self) -> QueueSettings:
        return self.messages.settings

    @property
    def replaying(self) -> bool:
        """Whether past or another leader's commands are applied: no effects, no reading, no counting."""
        return self.messages.replaying

    def lead(self) -> None:
        """Begin to return effects, which only the leader does. A new queue leads. Dead messages that stay
        until they have arrived are offered again, because this member gets no confirms of another member's
        messages.
        """
        self.messages.replaying = False
        self.messages.pending.begin_anew()

    def follow(self) -> None:
        self.messages.replaying = True
        self.browsers.clear()
        self._outbox.take()
        self.messages.dead_letters.clear()

    @property
    def ready(self) -> int:
        return self.messages.ready.length

    @property
    def delayed(self) -> int:
        return self.messages.ready.delayed

    @property
    def not_handed_out(self) -> int:
        return self.ready + self.delayed

    @property
    def dlx(self) -> int:
        return len(self.messages.pending)

    @property
    def unsettled(self) -> int:
        return sum(len(each.unsettled) for each in self._consumers.by_ref.values() if not each.settled)

    @property
    def consumers(self) -> int:
        return self._consumers.count

    def figures(self) -> QueueStats:
        # A queue that rejects publishes stays full until it is down to 80 %.
        messages, limits = self.messages, length_limits(self.settings)
        holder = self._consumers.activity.holder if self.settings.single_active_consumer else None
        return QueueStats(
            messages_ready=self.ready,
            messages_unsettled=self.unsettled,
            consumers=self.consumers,
            publishers=self.publishers,
            messages_delayed=self.delayed,
            messages_dlx=self.dlx,
            single_active_consumer_tag=None if holder is None else tag_in(holder.name),
            full=messages.full or is_full(limits, *messages.counted()),
            limits=limits,
        )

    def weight(self) -> QueueWeight:
        held = few(each.unsettled.values() for each in self._consumers.by_ref.values() if not each.settled)
        return QueueWeight(self.messages.ready.size_bytes, None if held is None else sum(map(size_of, held)))

    def queue_status(self) -> QueueStatus:
        messages, consumers = self.messages, self._consumers
        holder = consumers.activity.holder
        parts = {ref: each.part for ref, each in consumers.by_ref.items()}
        parts |= consumers.selecting.parts() | self.browsers.parts()
        if holder is not None and not holder.active:
            parts[holder.ref] = holder.part._replace(quiescing=True)
        return QueueStatus(
            self.ready,
            messages.next_index,
            parts,
            self.settings.single_active_consumer,
            None if holder is None else holder.ref,
            self.counters,
            messages.expired_ms,
            consumers.delivered_ms,
            len(messages.pending),
            messages.ready.delayed,
            messages.ready.next_delayed,
            messages.ready.delayed - messages.ready.later.count,
        )

    def deadline(self) -> int | None:
        messages, consumers = self.messages, self._consumers
        times = [consumers.timeout_at, consumers.give_up_at]
        expires_ms = messages.settings.expires_ms
        if expires_ms is not None and not consumers.count and not self.deleted:
            times.append(consumers.unused_since + expires_ms)
        return messages.ready.deadline(times)

    def show_on(self) -> bool:
        if self.browsers.unfinished:
            self.browsers.show()
        return self.browsers.unfinished

    def look(self, budget: int) -> Selected | None:
        """Search for consumers that select, and return the command to log, which must be applied before the
        next call. Returns None if there is nothing to look at for any consumer with credit.
        """
        if self.replaying or not self._consumers.selecting.able:
            return None
        return self._consumers.selecting.look(budget)

    def take_dlx(self) -> list[DeadMessage]:
        """Return dead messages for the internal consumer, up to its prefetch."""
        if self.replaying:
            return []
        found = self.messages.pending.next(self.dead_letter_prefetch)
        messages = self.messages.read([index for index, _ in found]) if found else []
        self.counters.dead_lettered.update(reason for _, reason in found)
        return [
            DeadMessage(index, message, reason)
            for (index, reason), message in zip(found, messages, strict=True)
        ]

    def live_indexes(self) -> list[int]:
        """Return the indexes of all messages: waiting, held by consumers, or dead and not yet arrived."""
        ready = self.messages.ready
        indexes = ready.indexes_of_returns()
        indexes += ready.indexes_of_tail()
        for line in ready.lines[1:-1]:
            indexes += line.columns()[0]
        indexes += [entry[2] for entry in ready.delayed_returns]
        indexes += ready.later.indexes()
        indexes += self.messages.pending.entries
        for consumer in self._consumers.by_ref.values():
            indexes += consumer.unsettled
        return indexes

    def has_copies_for(self, consumer: ConsumerRef) -> bool:
        found = self._consumers.by_ref.get(consumer)
        return found is not None and not found.settled

    def parts(self) -> tuple[Messages, QuorumConsumers, dict[PublisherRef, None]]:
        return self.messages, self._consumers, self._publishers

    @property
    def suspects(self) -> Mapping[tuple[int, int], int | None]:
        """Unreachable nodes by number and incarnation: since when, in ms; None: for too long."""
        return self._consumers.suspects

    def link_last(self, node: int, incarnation: int) -> int:
        """Return the number of the last command of a node that was applied; 0: none."""
        link = self.node_links.by_node.get((node, incarnation))
        return 0 if link is None else link.last

    def resume(self, node: int, incarnation: int, heard: int, seen: Mapping[ConsumerRef, int]) -> Resumption:
        """Return the state that a node needs after it had another leader or lost contact.

        `seen`: for each consumer the number of deliveries that reached the node, less those that it gave back
        or refused, as in the `seen` of its commands. A consumer that is missing has seen none.
        """
        consumers = self._consumers
        link = self.node_links.by_node.get((node, incarnation), NodeLink())
        deliveries: list[Deliver] = []
        facts: dict[ConsumerRef, ConsumerFacts] = {}
        for ref in consumers.by_ref:
            if ref.reply_to[:2] == (node, incarnation):
                deliver, missed = consumers.beyond(ref, seen.get(ref, 0))
                if deliver is not None:
                    deliveries.append(deliver)
                facts[ref] = consumers.facts(ref, missed)
        return Resumption(
            last=link.last,
            kept=[each for each in link.kept if each[0] > heard],
            deliveries=deliveries,
            consumers=facts,
            unknown=[ref for ref in seen if ref not in facts],
            publishers=[ref for ref in self._publishers if ref.reply_to[:2] == (node, incarnation)],
            deleted=self.deleted,
        )

    def apply(self, command: QuorumCommand, now_ms: int) -> None:
        # Commands that change nothing do not advance the time.
        if isinstance(command, CHANGES_NOTHING):
            if isinstance(command, Inspect) and not self.replaying:
                super()._answer(command.request, self.ready)
            elif type(command) is Browsing and not self.replaying:
                self._browse(command)
            elif type(command) is BrowsersGone:
                gone = command.node, command.incarnation
                self.browsers.lose(lambda consumer_ref: consumer_ref[:2] == gone)
            return
        if type(command) is NodeBatch:
            self._carry_out(command, now_ms)
            return
        if now_ms < self.messages.now_ms:
            now_ms = self.messages.now_ms
        self.messages.now_ms = self.messages.expired_at = now_ms
        # Lost consumers let no delivery time out, and no client uses the queue while its node is unreachable.
        late = type(command) in _LOSSES
        if not self.deleted and not late:
            self._pass_time()
        self._execute(command)
        if late and not self.deleted:
            self._pass_time()
        if self.messages.ready.expiring:
            self.messages.expired_at = now_ms
            self.messages.expire()
        if self.messages.full:
            self.messages.leave_full()
        if self.messages.replaying:
            self._outbox.take()
        elif self.browsers.by_ref:
            self.browsers.show()

    def _browse(self, command: Browsing) -> None:
        if isinstance(command.command, Subscribe) and self._is_gone_for(command.command.consumer):
            return
        self.browsers.carry_out(command)

    def _carry_out(self, batch: NodeBatch, now_ms: int) -> None:
        self.apply(TICK, now_ms)
        node, incarnation = batch.node, batch.incarnation
        taken = self.node_links.take(batch)
        for command in batch.commands:
            if taken and is_of(command, node, incarnation):
                self.apply(command, now_ms)
            elif type(command) is Publish:
                # Messages of an entry have indexes, whether they are accepted or not.
                self.messages.next_index += len(command.messages)

    def _answer(self, request: RequestRef, count: int, refused: Refusal | None = None) -> Answer:
        answer = super()._answer(request, count, refused)
        self.node_links.keep(request.reply_to, answer)
        return answer

    def _execute(self, command: QuorumChange) -> None:
        match command:
            case Publish():
                self._publish(command)
            case Settle():
                self._consumers.settle(command)
                if command.answer:
                    consumer = command.consumer
                    self._outbox.tell(consumer.reply_to, Settled(consumer, command.keys))
            case Credit():
                self._consumers.credit(command)
            case GiveBack():
                self._consumers.give_back(command)
            case Subscribe():
                if not self._is_gone_for(command.consumer):
                    self._consumers.subscribe(command)
            case Cancel():
                self._consumers.cancel(command)
            case Unsubscribe():
                self._consumers.unsubscribe(command)
            case Purge():
                self._purge(command)
            case Configure():
                self._configure(command.settings)
            case DlxSettle():
                settled = [key for key in command.keys if self.messages.pending.settle(key)]
                if not self.replaying:
                    self.counters.settled_elsewhere += len(settled)
                self.messages.gone(settled)
            case NodeGone():
                node, incarnation = command.node, command.incarnation
                self.node_links.lose(node, incarnation)
                self._consumers.forget_suspects(node, incarnation)
                self._lose(
                    lambda consumer_ref: consumer_ref.node == node and consumer_ref.incarnation <= incarnation
                )
            case NodeSuspect():
                self._consumers.suspect(command.node, command.incarnation)
            case NodeBack():
                self._consumers.back(command.node, command.incarnation)
            case SessionGone():
                self._lose(command.session.__eq__)
            case Selected():
                self._consumers.selected(command)
            case RaiseVersion():
                self.version = max(self.version, command.version)
            case Tick() | NodeBatch():
                return
            case _:
                self._apply_common(command)

    def has_room_for(self, messages: Sequence[Message]) -> bool:
        if self.settings.overflow is not Overflow.REJECT_PUBLISH:
            return True
        sizes = list(map(len, map(_CONTENT, messages)))
        passing = min(self._consumers.turns.credit(), self.messages.before_later(messages))
        return self.messages.room_for(sizes, passing) == len(messages)

    def _publish(self, command: Publish) -> None:
        publisher, messages, ids = command.publisher, command.messages, command.ids
        first = self.messages.next_index
        rejects = self.messages.settings.overflow is Overflow.REJECT_PUBLISH
        self.messages.next_index = first + len(messages)
        if self.deleted:
            self._refuse(command)
            return
        sizes = list(map(len, map(_CONTENT, messages)))
        if rejects:
            # Where a consumer selects, messages wait until the leader's search has reached them.
            passing = 0 if self._consumers.selecting.able else self._consumers.turns.credit()
            if passing:
                passing = min(passing, self.messages.before_later(messages))
            taken = self.messages.room_for(sizes, passing)
            if taken < len(messages):
                self.messages.full = True
                rejected = PublishRejected(publisher, ids[taken:], command.settled, self.name)
                if not self.replaying:
                    self.counters.rejected += len(messages) - taken
                self._outbox.tell(publisher.reply_to, rejected)
                self.node_links.keep(publisher.reply_to, rejected)
                messages, sizes, ids = messages[:taken], sizes[:taken], ids[:taken]
                if not taken:
                    return
        self.messages.add(first, messages, sizes)
        if not self.messages.replaying:
            self.counters.published += len(messages)
        self._outbox.tell(publisher.reply_to, Confirmed(publisher, ids, command.settled))
        # A message with a time to live of 0 ms may still be delivered in this millisecond.
        self.messages.expired_at = self.messages.now_ms - 1
        self._consumers.serve()
        if not rejects:
            self.messages.drop_heads()

    def _lose(self, is_gone: Callable[[PeerId], bool]) -> None:
        for publisher in [each for each in self._publishers if is_gone(each.reply_to)]:
            del self._publishers[publisher]
        self._consumers.lose(is_gone)
        self.browsers.lose(is_gone)

    def _purge(self, command: Purge) -> None:
        waiting = self.messages.ready.clear()
        self._answer(command.request, len(waiting) + len(self.messages.pending))
        self.messages.gone(waiting + self.messages.pending.clear())

    def _let_go(self) -> None:
        self._consumers.delete()
        self.browsers.delete()
        self.messages.clear()

    def _configure(self, settings: QueueSettings) -> None:
        before, self.messages.settings = self.settings, settings
        if self.deleted:
            return
        messages, consumers = self.messages, self._consumers
        if not at_least_once(settings):
            messages.gone(messages.pending.clear())
        if settings.expires_ms != before.expires_ms:
            consumers.unused_since = messages.now_ms
        if settings.single_active_consumer != before.single_active_consumer:
            consumers.single_active_changed()
        consumers.time_out()
        consumers.give_up()
        consumers.serve()
        if settings.overflow is not Overflow.REJECT_PUBLISH:
            messages.drop_heads()

    def _pass_time(self) -> None:
        now = self.messages.now_ms
        expires_ms = self.settings.expires_ms
        if (
            expires_ms is not None
            and not self._consumers.count
            and now >= self._consumers.unused_since + expires_ms
        ):
            self._delete()
            return
        if self.messages.ready.expiring:
            self.messages.expire()
        if self.messages.ready.delayed:
            due = self.messages.ready.take_due(now)
            if due:
                self.messages.line_up_again([(index, size, expiry) for _, _, index, size, expiry in due])
                self._consumers.serve()
            later = self.messages.ready.later.next_due
            if later is not None and later <= now:
                self._consumers.selecting.stand_again(self.messages.release())
                self._consumers.serve()
        if self._consumers.timeout_at is not None and now >= self._consumers.timeout_at:
            self._consumers.time_out()
            self._consumers.serve()
        if self._consumers.give_up_at is not None and now >= self._consumers.give_up_at:
            self._consumers.give_up()


def encode_snapshot(queue: QuorumQueue) -> bytes:
    messages, consumers, publishers = queue.parts()
    ready = messages.ready
    kinds = sorted(dict.fromkeys(messages.counts.values()))
    number_of = {counts: number for number, counts in enumerate(kinds)}
    counted = sorted(messages.counts.items())
    holder, again = consumers.activity.holder, consumers.selecting.again
    return state_of(ready.levels).encode(
        SimpleNamespace(
            version=queue.version,
            now_ms=messages.now_ms,
            next_index=messages.next_index,
            full=messages.full,
            settings=messages.settings,
            lines=[line.columns() for line in ready.lines],
            ready=(ready.returns_made, ready.high_turns),
            returned=ready.indexes_of_returns(),
            tail=ready.indexes_of_tail(),
            returns_to_tail=sorted(ready.behind.items()),
            delayed=sorted(ready.delayed_returns),
            places=sorted(ready.places.items()),
            expiries=sorted(ready.expiries.items()),
            later=ready.later.columns(),
            consumers=consumers.by_ref.values(),
            kinds=kinds,
            counted=[index for index, _ in counted],
            counts=[number_of[counts] for _, counts in counted],
            pending=[(key, size, why) for key, (why, size) in messages.pending.entries.items()],
            publishers=publishers,
            made=consumers.made,
            unused_since=consumers.unused_since,
            turns=[each.number for _, group in sorted(consumers.turns.items()) for each in group],
            holder=None if holder is None else holder.number,
            suspects=consumers.suspects,
            gone=queue.node_links.gone,
            links=queue.node_links.by_node,
            again=(again.first, again.places),
        )
    )


def decode_snapshot(name: str, data: bytes, bodies: PagedBodies | None = None) -> QuorumQueue:
    """Restore a queue from a snapshot. `bodies`: the store that contains the messages; None: in memory, where
    the caller puts them. Raises `NewerMachine` and `BadBytes`.
    """
    machine_version.check(version_of(data))
    beginning, _ = BEGINNING.decode_part(data)
    state = state_of(beginning.settings.priority_levels).decode(data)
    queue = QuorumQueue(name, settings=state.settings, now_ms=state.now_ms, bodies=bodies)
    queue.version = state.version
    messages, consumers, publishers = queue.parts()
    messages.next_index = state.next_index
    messages.full = state.full
    ready = messages.ready
    for line, columns in zip(ready.lines, state.lines, strict=True):
        _fill(line, *columns)
    ready.restore(
        state.ready,
        state.returned,
        state.tail,
        state.returns_to_tail,
        state.delayed,
        state.places,
        state.expiries,
    )
    for given in state.consumers:
        consumers.by_ref[given.ref] = QuorumConsumer(**given.__dict__)
    messages.counts = {
        index: state.kinds[number] for index, number in zip(state.counted, state.counts, strict=True)
    }
    for index, size, reason in state.pending:
        messages.pending.add(index, reason, size)
    if state.later[0]:
        ready.later.restore(state.later)
    publishers.update(dict.fromkeys(state.publishers))
    by_number = {consumer.number: consumer for consumer in consumers.by_ref.values()}
    again = consumers.selecting.again
    again.first, places = state.again
    again.places.extend(places)
    consumers.made, consumers.unused_since = state.made, state.unused_since
    consumers.suspects = state.suspects
    holder = None if state.holder is None else by_number[state.holder]
    consumers.restore([by_number[number] for number in state.turns], holder)
    queue.node_links.gone = state.gone
    queue.node_links.by_node = state.links
    return queue


def _fill(line: OrderedEntries, keys: Sequence[int], sizes: Sequence[int], expiries: Sequence[int]) -> None:
    step = 4096
    for at in range(0, len(keys), step):
        some = expiries[at : at + step] if any(expiries[at : at + step]) else None
        line.append(keys[at : at + step], sizes[at : at + step], some)
