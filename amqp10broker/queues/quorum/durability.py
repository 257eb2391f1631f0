"""Durability backends of quorum queues: in memory, or the log of a Raft group, with its time.

Without a data folder effects are sent at once. With one, the commands of a step are proposed to the group as
one entry. When it is committed it is applied, and its effects are sent. Further entries are proposed
meanwhile. A follower applies entries without effects or counters, a few at a time, because no client waits
for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.queues import machine_version
from amqp10broker.queues.commands import (
    DELETE,
    TICK,
    Command,
    Configure,
    Confirmed,
    Delete,
    GiveBack,
    Publish,
    Subscribe,
    Unconfirmed,
    Unsubscribe,
)
from amqp10broker.queues.durability import DurabilityBackend, EffectBatch, LinkAdmission, PublishEffects, Wake
from amqp10broker.queues.journal import Commits
from amqp10broker.queues.queue_status import QueueProgress, QueueStatus
from amqp10broker.queues.quorum.commands import (
    CHANGES_NOTHING,
    NodeBatch,
    QuorumCommand,
    RaiseVersion,
    joined,
)
from amqp10broker.queues.quorum.log_store import LogEntry, QuorumStore
from amqp10broker.queues.quorum.queue import QuorumQueue
from amqp10broker.queues.quorum.state_transfer import Snapshots
from amqp10broker.raft.groups import Member
from amqp10broker.raft.messages import Full, Kind, NotLeader, NotReady, Role, Status

AHEAD_MS_MAX: Final = 1_000
"""The most by which a leader's time may differ from the time of most nodes."""


class Clocks:
    """The clock differences as measured by one node.

    A node's time advances evenly from its start (`runtime.clock`), so a difference is constant. As in NTP
    (RFC 5905) it is known within half a round trip: a late heartbeat makes the bound wider, not the clock
    wrong. `correction_ms`: of this node's clock where it leads: 0 if the clocks of most nodes are near it. Of
    two that differ the one behind is considered right: what expires too early is lost.
    """

    def __init__(self) -> None:
        self.correction_ms = 0
        self._measured: dict[int, tuple[int, int]] = {}

    def heard(self, node: int, ahead_ms: int, within_ms: int = 0) -> None:
        """Record a measurement: another node's clock is `ahead_ms` ahead of this one's, give or take
        `within_ms`. If it is less exact than the last one, it counts only if it contradicts that.
        """
        last_ms, last_within_ms = self._measured.get(node, (0, math.inf))
        if within_ms <= last_within_ms or abs(ahead_ms - last_ms) > within_ms:
            self._measured[node] = ahead_ms, within_ms
            self._judge()

    def forget(self, node: int) -> None:
        self._measured.pop(node, None)
        self._judge()

    def _ahead_ms(self, node: int) -> int:
        return _beyond(*self._measured.get(node, (0, 0)))

    def _judge(self) -> None:
        known = sorted([0, *map(self._ahead_ms, self._measured)])
        self.correction_ms = _beyond(known[(len(known) - 1) // 2], AHEAD_MS_MAX)

    def notes(self, named: Mapping[int, str]) -> dict[str, str]:
        found = {
            f"clock of {name}": f"the clock of node {name} is {difference(ahead_ms)} this node's"
            for node, name in sorted(named.items())
            if abs(ahead_ms := self._ahead_ms(node)) >= AHEAD_MS_MAX
        }
        if correction_ms := self.correction_ms:
            found["clock of this node"] = (
                f"the clock of this node is {difference(-correction_ms)} that of most nodes: quorum queues "
                "that it leads go by theirs"
            )
        return found


def _beyond(ahead_ms: int, within_ms: int) -> int:
    # Return the part of the difference that remains when the inexactness is allowed for.
    return max(ahead_ms - within_ms, min(0, ahead_ms + within_ms))


def difference(ahead_ms: int) -> str:
    return f"{abs(ahead_ms) / 1000:.1f} s {'ahead of' if ahead_ms > 0 else 'behind'}"


NEVER: Final = 2**62


@dataclass(slots=True, eq=False)
class LogTime:
    """The time of one leader, in ms.

    A leader whose clock is hours ahead stamps entries with its time, and time never runs back. If the next
    leader waited until its own clock reaches that time, no message would expire for hours. So its time
    continues from the last entry's, a tenth slower than the clock, until the clock has caught up.
    """

    _node: Clocks
    _time_ms: int = 0
    _clock_ms: int = NEVER

    def at(self, clock_ms: int) -> int:
        own = clock_ms + self._node.correction_ms
        slow = self._slow(clock_ms)
        if own < slow:
            return slow
        self._time_ms, self._clock_ms = own, clock_ms
        return own

    def when(self, time_ms: int) -> int:
        """Return the leader's clock at this time."""
        slow = self._clock_ms - (self._time_ms - time_ms) * 10 // 9
        return min(time_ms - self._node.correction_ms, slow)

    def ahead_ms(self, clock_ms: int) -> int:
        return max(0, self._slow(clock_ms) - clock_ms - self._node.correction_ms)

    def _slow(self, clock_ms: int) -> int:
        return self._time_ms + max(0, clock_ms - self._clock_ms) * 9 // 10


APPLIED_BYTES_MAX: Final = 4 * 1024 * 1024
"""The size of entries that are applied in one step. Other tasks run after it."""

LATE_ENTRIES: Final = 16
LATE_BYTES: Final = 4096
"""The number, and bytes, of committed entries that a follower accumulates before it applies them."""

RETRY_MS: Final = 100


_WITH_COPIES: Final = frozenset((GiveBack, Unsubscribe))


def _published(commands: Sequence[QuorumCommand]) -> int:
    # The count includes commands in batches of remote nodes.
    count = 0
    for command in commands:
        if type(command) is NodeBatch:
            count += _published(command.commands)
        elif type(command) is Publish:
            count += len(command.ids)
    return count


class QuorumInMemory(DurabilityBackend[QuorumQueue]):
    __slots__ = ()

    def apply(self, commands: list[Command], now_ms: int) -> None:
        if commands:
            if self.queue.browsers.by_ref or Subscribe in map(type, commands):
                commands = self.queue.browsers.marked(commands)  # type: ignore[assignment]
            decided = joined(commands)
            if isinstance(decided[0], CHANGES_NOTHING):
                due_ms = self.deadline()
                if due_ms is not None and due_ms <= now_ms:
                    decided.insert(0, TICK)  # time does not pass with it, and passes before whatever follows
            self._decide(decided, now_ms)

    def _decide(self, commands: list[QuorumCommand], now_ms: int) -> None:
        for command in commands:
            self.queue.apply(command, now_ms)

    def flush(self, now_ms: int) -> None:
        selected = self.queue.look(self.queue.browsers.scan_max)
        if selected is not None:
            self.queue.apply(selected, now_ms)
        self._show_on()
        # There may be more work, when other queues have been served.
        self.due_ms = None if selected is None else now_ms

    def _show_on(self) -> None:
        if self.queue.show_on():
            self.wake()

    def publish(self) -> None:
        self._publish(self._take(0))

    def _take(self, index: int) -> EffectBatch:
        queue = self.queue
        dead = [] if queue.deleted or not queue.messages.pending.entries else queue.take_dlx()
        return EffectBatch(queue.take_effects(), queue.take_dead_letters(), dead, index)


class QuorumInLog(QuorumInMemory):
    """The backend with a replicated log, which decides the order of commands. `member`: None while this
    node's member of the group takes no part.
    """

    by_log: ClassVar[bool] = True
    admission: LinkAdmission

    def __init__(
        self,
        queue: QuorumQueue,
        wake: Wake,
        publish: PublishEffects,
        commits: Commits,
        store: QuorumStore,
        begin: Callable[[QuorumInLog], Member],
        snapshots: Snapshots | None = None,
        clocks: Clocks | None = None,
        usable: Callable[[], int] = lambda: machine_version.NEWEST,
        on_ahead: Callable[[QuorumInLog], None] = lambda _: None,
    ) -> None:
        """Create the backend of a queue that `recover` fills. `begin`: starts this node's member of the
        group, when the log has been read. `usable`: returns the machine version that all members support; 0:
        unknown. `on_ahead`: called when this member leads and the time of the log is ahead of its clock.
        """
        super().__init__(queue, wake, publish, commits)
        self.admission = LinkAdmission(commits, wake)
        self.member: Member | None = None
        self._on_lead: Callable[[bool], None] = lambda leads: None
        self._usable = usable
        self._on_ahead = on_ahead
        self._clocks = clocks or Clocks()
        self._time = LogTime(self._clocks)
        self._commits = commits
        self._store = store
        self._begin = begin
        self._snapshots = snapshots
        self._settings = queue.settings
        store.on_installed = self._installed
        self._committed = 0
        self._early = 0
        """The last entry that was carried out before it was committed (`catch_up`)."""
        self._done: list[tuple[int, dict[tuple[int, int], int]]] = []
        """For each entry, the numbers of the last commands of nodes that were applied with it."""
        self._wanted: list[int] = []
        """Members to which the state is sent afterwards."""
        self._failed = False
        self._leads = False
        self._late = self._hurries = False
        """Whether committed entries are applied later, and whether they are applied soon for their size."""
        self._late_bytes = 0
        self._looked = 0
        """The last entry with a result for selecting consumers."""
        self._waiting: list[QuorumCommand] = []
        self._waits_since_ms: int | None = None
        self._questions: list[tuple[int, list[QuorumCommand]]] = []
        """Requests that are answered when the entry of this index has been applied."""
        self._unpublished: list[EffectBatch] = []
        self._applied: list[QuorumCommand] = []
        self._seen = 0  # the ticket seen by the last `keep`

    def serve(
        self,
        on_lead: Callable[[bool], None],
        on_refused: Callable[[int, int, int], None],
        on_room: Callable[[], None],
    ) -> None:
        """Serve other nodes while this member leads. `on_lead`: called with True when it leads and has
        applied everything that was committed before, and with False when it is no longer leader.
        `on_refused`, `on_room`: as in `LinkAdmission`.
        """
        self._on_lead = on_lead
        self.admission.on_refused, self.admission.on_room = on_refused, on_room

    @property
    def member_id(self) -> int:
        return self._store.me

    @property
    def applied(self) -> int:
        return self._store.point.index

    @property
    def version(self) -> int:
        return self.queue.version

    @property
    def newer(self) -> int:
        return self._store.newer or self._store.newer_state

    @property
    def busy(self) -> bool:
        if self._unpublished or self._waiting or self._questions:
            return True
        return any(entry.commands for entry in self._store.tail)

    def deadline(self) -> int | None:
        # None while a `Tick` is in the log and not applied, or cannot be proposed.
        due_ms = self.queue.deadline()
        member, store = self.member, self._store
        if due_ms is None or member is None or self._waiting or not member.leads:
            return None
        return None if store.tail and store.now_ms >= due_ms else self._time.when(due_ms)

    @property
    def shared(self) -> bool:
        return self._snapshots is not None and not self._store.alone

    def recover(self, now_ms: int) -> Iterator[int]:
        recovered = self._store.recovered(self.queue.settings, now_ms)
        recovered.limit_as(self.queue)
        self.queue = recovered
        self.recovered = True
        self._committed = self._store.point.index
        if not self.queue.deleted:
            self.member = self._begin(self)
            if self._store.alone:
                self.member.campaign()
                self.member.advance()
        self.wake()  # messages found at start may have expired meanwhile
        return iter(())

    def apply(self, commands: list[Command], now_ms: int) -> None:
        for command in commands:
            if type(command) is Configure:
                self._settings = command.settings  # the catalog notifies every member
        forgotten = (type(each) is Delete and each.request is None for each in commands)
        if self._snapshots is not None and any(forgotten):
            # The catalog has removed the queue, and its number is never reused: no member waits for the
            # agreement of others.
            super()._decide([DELETE], now_ms)
            self._note()
            return
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            commands = [*waiting, *commands]  # type: ignore[list-item]
        super().apply(commands, now_ms)

    def _decide(self, commands: list[QuorumCommand], now_ms: int) -> None:
        member, store = self.member, self._store
        if member is None:
            super()._decide(commands, now_ms)  # the queue was deleted
        elif not (member.leads or member.alone):
            pass  # the sender tries again when it finds the leader
        elif all(isinstance(each, CHANGES_NOTHING) for each in commands):
            if self._questions or any(entry.kind is Kind.COMMAND for entry in store.tail):
                self._questions.append((store.last, commands))
            else:
                super()._decide(commands, now_ms)
                self._note()
        else:
            self._raise_version(now_ms)  # before commands that may need it
            if self._append(self._without_copies(commands), now_ms):
                self.due_ms = self._waits_since_ms = None
                member.advance()
            else:
                self._wait(commands, now_ms)

    def _wait(self, commands: list[QuorumCommand], now_ms: int) -> None:
        if self._waits_since_ms is None:
            self._waits_since_ms = now_ms
        self._waiting = commands
        self.due_ms = now_ms + RETRY_MS if self.member is not None and self.member.leads else None

    def _without_copies(self, commands: list[QuorumCommand]) -> list[QuorumCommand]:
        # Returned messages that have a copy here are left out of the log; settled ones may have none. Whether
        # a consumer's deliveries are sent settled never changes. If the consumer was removed when the entry
        # is applied, its messages are ignored, with or without copies.
        has = self.queue.has_copies_for
        for at, command in enumerate(commands):
            if type(command) is NodeBatch:
                if _WITH_COPIES.isdisjoint(map(type, command.commands)):
                    continue
                commands[at] = replace(command, commands=self._without_copies([*command.commands]))
            elif type(command) is GiveBack and command.messages and has(command.consumer):
                commands[at] = replace(command, messages=())
            elif type(command) is Unsubscribe and command.unsent_messages and has(command.consumer):
                commands[at] = replace(command, unsent_messages=())
        return commands

    def committed(self, index: int) -> None:
        before, self._committed = self._committed, index
        member, store = self.member, self._store
        if self._early > before:
            self._note_early()
            if not self.ahead:
                wanted, self._wanted = self._wanted, []
                for to in wanted:
                    self.snapshot_for(to)
        if self._leads or member is None or member.leads:
            self.wake()
            return
        if store.tail:
            first = store.tail[0].index
            for at in range(max(before + 1, first), index + 1):
                self._late_bytes += len(store.tail[at - first].payload)
        enough = self._late_bytes >= LATE_BYTES or index - store.point.index >= LATE_ENTRIES
        if enough and not self._hurries:
            self._hurries = True
            # The leader waits for records of the same step, which are written and answered first.
            self._commits.when_durable(store.ticket, self.wake)
        if not self._late:
            self._late = True
            member.groups.later(self._apply_late)  # this also works if the disk is slow

    def _apply_late(self) -> None:
        self._late = False
        if self._behind:
            self.wake()

    def status(self, status: Status) -> None:
        followed = self.queue.replaying
        if not status.open and not self._store.alone:
            self._follow()
            if followed and status.role is not Role.LEADER:
                return  # there is nothing to do: with thousands of queues a wake takes as long as an election
        self.wake()

    def _follow(self) -> None:
        # Senders of undecided commands find the leader, and send the commands to it.
        self.queue.follow()
        self.admission.follow()
        self._looked = 0
        self._waiting = []
        self._waits_since_ms = self.due_ms = None
        self._questions.clear()
        self._wanted.clear()
        if self._snapshots is not None:
            self._snapshots.stop(self._store.group)
        if self._leads:
            self._leads = False
            self._time = LogTime(self._clocks)
            self._on_lead(False)

    def ahead_ms(self, now_ms: int) -> int:
        """Return by how much the log's time is ahead of this node's clock."""
        return self._time.ahead_ms(now_ms) if self._leads and not self.queue.deleted else 0

    def _lead(self, now_ms: int) -> None:
        if self.queue.replaying:
            self.queue.lead()
        self._time = LogTime(self._clocks, self._store.now_ms, now_ms)
        self._leads = True
        if self.ahead_ms(now_ms):
            self._on_ahead(self)
        self._on_lead(True)
        if self.queue.settings != self._settings:
            # They were changed while no member led, or never set: a group of several begins without settings.
            self._decide([Configure(self._settings)], now_ms)
        # Dead letters of the former leader are offered now, because the next entry may come much later.
        self._note()

    def _raise_version(self, now_ms: int) -> None:
        version = self._store.version
        if version < machine_version.NEWEST and version < (usable := self._usable()):
            self._propose(RaiseVersion(usable), now_ms)

    def _look(self, now_ms: int) -> None:
        # A search waits until the result of the last one has been applied.
        if self._looked <= self._store.point.index and not self._waiting:
            selected = self.queue.look(self.queue.browsers.scan_max)
            if selected is not None and self._propose(selected, now_ms):
                self._looked = self._store.last

    def _propose(self, command: QuorumCommand, now_ms: int) -> bool:
        # Propose a command without a sender; return whether it was possible.
        if not self._append([command], now_ms):
            self.due_ms = now_ms + RETRY_MS
            return False
        assert self.member is not None, "it leads"
        self.member.advance()
        return True

    def _append(self, commands: list[QuorumCommand], now_ms: int) -> bool:
        assert self.member is not None, "it leads"
        entry = self._store.propose(commands, self._time.at(now_ms))
        try:
            self.member.raft.propose([entry.payload])
        except (NotLeader, NotReady, Full):
            return False
        return True

    def snapshot_for(self, to: int) -> None:
        assert self._snapshots is not None, "a group of one has nobody who needs a state"
        if self.ahead:
            self._wanted.append(to)  # a state must be committed before it is sent
        else:
            self._snapshots.begin(self._store.group, to)

    def _installed(self, queue: QuorumQueue) -> None:
        queue.limit_as(self.queue)
        self.queue = queue
        self._early = 0
        self._unpublished.clear()
        self._questions.clear()

    def flush(self, now_ms: int) -> None:
        store, queue = self._store, self.queue
        size = self._late_bytes = 0
        self._hurries = False
        self._applied = []
        if self._failed:
            return
        while self._behind and (entry := self._apply_next(self._committed, now_ms)) is not None:
            size += len(entry.payload)
            if size > APPLIED_BYTES_MAX:
                self.wake()
                break
        if queue.deleted:
            # Commands after the deletion are too late.
            super()._decide(self._under_way(), now_ms)
            self._note()
        elif not self._leads and self.member is not None and self.member.leads and not self._behind:
            self._lead(now_ms)
        if self._leads and not queue.deleted:
            self._raise_version(now_ms)
            self._look(now_ms)
            self._show_on()
        if store.ticket > self._seen:
            self._seen = store.ticket
            self._commits.write_soon()

    def _apply_next(self, until: int, now_ms: int) -> LogEntry | None:
        if self.queue.deleted or (entry := self._store.apply(until)) is None:
            return None
        self._applied += entry.commands or ()
        self._note()
        while self._questions and self._questions[0][0] <= entry.index:
            super()._decide(self._questions.pop(0)[1], now_ms)
            self._note()
        return entry

    def _show_on(self) -> None:
        if self.queue.browsers.unfinished:
            super()._show_on()
            self._note()

    @property
    def transacts(self) -> bool:
        return self._snapshots is None or self._store.alone

    @property
    def starting(self) -> bool:
        # In a group of one, the member leads when its first vote is on the disk.
        return self.transacts and not self._leads and not self._failed

    def catch_up(self) -> None:
        # In a group of one, an appended entry will be committed, so it can be applied at once. Its effects
        # are sent when it is committed. An entry that deletes the queue is not applied early, because its
        # commit is not reported.
        store = self._store
        if not self._leads_alone or any(type(each) is Delete for each in self._asked):
            return
        if not self.ahead:
            self._done = [(store.point.index, self._last_numbers())]
        self._early = store.last
        self._note_early()
        self._applied = []
        while self._apply_next(store.last, store.now_ms) is not None:
            self._done.append((store.point.index, self._last_numbers()))

    @property
    def ahead(self) -> bool:
        """Whether something was carried out that is not committed, so that no effect of it may be sent."""
        return self._early > self._committed and not self.queue.deleted

    def done(self, node: int, incarnation: int) -> int:
        """The number of the last command of a node that a committed entry applied; 0: none."""
        if not self.ahead:
            return self.queue.link_last(node, incarnation)
        return self._done[0][1].get((node, incarnation), 0)

    def _last_numbers(self) -> dict[tuple[int, int], int]:
        return {key: link.last for key, link in self.queue.node_links.by_node.items()}

    def _note_early(self) -> None:
        self._store.compact_max = self._committed if self._early > self._committed else None

    @property
    def _leads_alone(self) -> bool:
        return self._leads and not self._failed and self.transacts and self._store.alone

    @property
    def _asked(self) -> list[QuorumCommand]:
        # Requests that change nothing are left out.
        return [each for entry in self._store.tail for each in entry.commands or ()] + self._waiting

    def takes_part(self, size: int) -> bool:
        # All earlier commands must have been applied.
        if not super().takes_part(size) or not self._leads_alone or self._store.tail or self._waiting:
            return False
        return self.member is not None and self.member.raft.has_room(size)

    def apply_part(self, commands: list[Command], now_ms: int) -> None:
        # This makes one entry, which is applied together with the other queues' parts.
        self.apply(commands, now_ms)
        self.catch_up()

    @property
    def _behind(self) -> bool:
        tail = self._store.tail
        return bool(tail) and tail[0].index <= self._committed

    def _note(self) -> None:
        batch = self._take(self._store.point.index)
        # Nodes with sessions are notified that their commands were applied.
        served = bool(self.queue.node_links.by_node) and not self.queue.replaying
        if batch.effects or batch.dead_letters or batch.dead or served:
            self._unpublished.append(batch)

    def publish(self) -> None:
        # The effects of several entries are sent together, with the index of the last. The numbers of applied
        # commands are those of the state: sent with an earlier entry's effects, they would let a node drop
        # commands whose answers it has not received.
        ready = self._unpublished
        if self.ahead:
            ready = [each for each in ready if each.index <= self._committed]
            while len(self._done) > 1 and self._done[1][0] <= self._committed:
                del self._done[0]
        if not ready:
            return
        (effects, dead_letters, dead, index), *rest = ready
        del self._unpublished[: len(ready)]
        for more in rest:
            index = more.index
            for peer, some in more.effects.items():
                effects.setdefault(peer, []).extend(some)
            dead_letters, dead = [*dead_letters, *more.dead_letters], [*dead, *more.dead]
        self._publish(EffectBatch(effects, dead_letters, dead, index))

    def _under_way(self) -> list[QuorumCommand]:
        # The caller becomes responsible for these commands.
        asked: list[QuorumCommand] = []
        for entry in self._store.tail:
            asked += entry.commands or ()
            entry.commands = ()
            while self._questions and self._questions[0][0] <= entry.index:
                asked += self._questions.pop(0)[1]
        asked += self._waiting
        self._waiting = []
        return asked

    def delete(self) -> None:
        if self.member is not None:
            self.member.stop()
            self.member = None
        self._store.delete()
        self._commits.forget(self._store.group)

    def applied_in_step(self, commands: list[Command]) -> Sequence[Command] | None:
        return None if self.queue.replaying else self._applied  # type: ignore[return-value]

    def queue_status(self) -> QueueStatus:
        entries = [entry for entry in self._store.tail if entry.commands]
        published = _published(self._asked)
        since_ms = entries[0].now_ms if entries else self._waits_since_ms
        queue_status = replace(
            self.queue.queue_status(),
            unsynced=published,
            unsynced_ms=since_ms if published else None,
            unconfirmed=published,
            unconfirmed_ms=since_ms if published else None,
        )
        return self.admission.with_waiting(queue_status)

    def progress(self, *, busy: bool) -> QueueProgress:
        waits = self.busy or self.admission.holds
        return self._commits.progress(busy=busy, waits=waits)

    def storage_failed(self) -> None:
        # Entries with refused senders are not applied, though a late sync may yet commit them: otherwise a
        # state without them could be written to the journal.
        self._failed = True
        left, self._unpublished = self._unpublished, []
        answers = [each for batch in left for some in batch.effects.values() for each in some]
        for each in (*answers, *self._under_way()):
            if type(each) is Publish or type(each) is Confirmed:
                publisher = each.publisher
                refused = Unconfirmed(publisher, each.ids, each.settled, failed=True, queue=self.queue.name)
                self._publish(EffectBatch({publisher.reply_to: [refused]}))

    def abandon(self) -> list[Command]:
        left = [] if self.shared else self._under_way()
        if self.member is not None:
            self.member.stop()
            self.member = None
        if self.shared:
            self._follow()
        self._store.abandon()
        self._commits.abandoned(self._store.group)
        self.publish()
        if self._unpublished:
            self._commits.when_durable(self._store.ticket, self._publish_rest)
        return left  # type: ignore[return-value]

    def _publish_rest(self) -> None:
        # These are effects of entries that were applied before they were committed. They are durable, and a
        # member that takes no part gets no report of that.
        self._early = 0
        self.publish()
