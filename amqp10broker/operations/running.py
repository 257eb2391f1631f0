"""Operations on the running node: status, settings, alarms, connections, recordings, traces.

A missing node, virtual host, connection, link, watch or fault raises `NotFound`; operations on faults raise
`NotSupported` unless the broker is in test mode.

A resource alarm (memory, disk) is on as long as it has a cause: a measurement, an operator's order, or
storage that cannot write. Publishers are held back while any alarm is on. `runtime.observe.resource_monitor`
measures. A measured alarm begins as RabbitMQ's does, memory above the watermark or free disk below the limit,
and ends a twentieth of the limit further on, so that it does not flap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Final

from amqp10broker.config.settings import FLOW_SETTINGS
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BadRequest, ConfigError, NotSupported
from amqp10broker.operations.cluster import without_leader
from amqp10broker.operations.node import Caller, ClusterNode, Lines
from amqp10broker.operations.operation import EMPTY, Check, Command, Vhost, operation
from amqp10broker.operations.snapshot import document

CHECK_MS_MAX: Final = 1_000
CHECK_MS_MIN: Final = 100
FILLED_BYTES_PER_MS: Final = 250_000
"""How fast memory or disk may fill, as RabbitMQ's disk monitor assumes: 250 MB/s."""
SLACK_DIVISOR: Final = 20
"""A measured alarm ends when the value has passed its limit by this part of it (5 %)."""
TIGHT_PERCENT: Final = 80
"""From this part of its limit on memory is tight: automatic limits do not grow any more."""


class Resource(StrEnum):
    """The monitored resources, with RabbitMQ's names in connection.blocked."""

    MEMORY = "memory"
    DISK = "disk"


class AlarmCause(StrEnum):
    MEASURED = "measured"
    BY_HAND = "by hand"
    STORAGE = "storage cannot write"
    STREAMS = "a stream cannot be written"


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measurement. None: the system has no figure, or there is no limit."""

    value_bytes: int | None
    """Memory: used by this process. Disk: free for it."""
    limit_bytes: int | None


@dataclass(frozen=True, slots=True)
class Change:
    """A cause of an alarm was added or removed."""

    resource: Resource
    cause: AlarmCause
    on: bool
    reading: Measurement | None
    """None for a cause that is not measured."""


@dataclass(slots=True)
class _AlarmState:
    causes: set[AlarmCause] = field(default_factory=set)
    since_ms: int = 0
    judged_by_bytes: int | None = None
    """The limit of the last judgement: there is no slack under another limit."""


class Alarms:
    """The active alarms. `is_memory_tight`: the last measurement was near the alarm."""

    def __init__(self) -> None:
        self.is_memory_tight = False
        self._states = {resource: _AlarmState() for resource in Resource}

    def __bool__(self) -> bool:
        return any(state.causes for state in self._states.values())

    def names(self) -> frozenset[str]:
        return frozenset(resource.value for resource, state in self._states.items() if state.causes)

    def causes(self, resource: Resource) -> tuple[AlarmCause, ...]:
        return tuple(sorted(self._states[resource].causes))

    def since_ms(self, resource: Resource) -> int | None:
        """Return when the alarm began, by `now_ms` then; None if it is off."""
        state = self._states[resource]
        return state.since_ms if state.causes else None

    def measured(self, resource: Resource) -> bool:
        """Return whether a measurement is among its causes."""
        return AlarmCause.MEASURED in self._states[resource].causes

    def put(self, resource: Resource, cause: AlarmCause, *, on: bool, now_ms: int) -> bool:
        """Add or remove one cause; return whether that changed the alarm."""
        causes = self._states[resource].causes
        if (cause in causes) is on:
            return False
        if on:
            if not causes:
                self._states[resource].since_ms = now_ms
            causes.add(cause)
        else:
            causes.discard(cause)
        return True

    def judge(self, resource: Resource, reading: Measurement, now_ms: int) -> Change | None:
        """Raise or clear the measured cause. No limit clears it; without a measurement it stays."""
        state = self._states[resource]
        if resource is Resource.MEMORY:
            self.is_memory_tight = _is_tight(reading)
        if reading.limit_bytes is None:
            on = False
        elif reading.value_bytes is None:
            return None
        else:
            limit = reading.limit_bytes
            if self.measured(resource) and state.judged_by_bytes == limit:
                limit = end_bytes(resource, limit)
            # As in RabbitMQ: used memory above the limit, free disk below it.
            value = reading.value_bytes
            on = value > limit if resource is Resource.MEMORY else value < limit
            state.judged_by_bytes = reading.limit_bytes
        if not self.put(resource, AlarmCause.MEASURED, on=on, now_ms=now_ms):
            return None
        return Change(resource, AlarmCause.MEASURED, on, reading)

    def pause_ms(self, resource: Resource, reading: Measurement) -> int:
        """Return how long until the next measurement: no longer than it takes to fill the gap to where the
        alarm would begin, or end, at `FILLED_BYTES_PER_MS`.
        """
        if reading.value_bytes is None or reading.limit_bytes is None:
            return CHECK_MS_MAX
        edge = reading.limit_bytes
        if self.measured(resource):
            edge = end_bytes(resource, edge)
        gap = abs(reading.value_bytes - edge)
        return min(CHECK_MS_MAX, max(CHECK_MS_MIN, gap // FILLED_BYTES_PER_MS))


def end_bytes(resource: Resource, limit_bytes: int) -> int:
    """Return where a measured alarm ends: memory at or below it, free disk at or above it."""
    slack = limit_bytes // SLACK_DIVISOR
    return limit_bytes - slack if resource is Resource.MEMORY else limit_bytes + slack


def _is_tight(memory: Measurement) -> bool:
    used_bytes, limit_bytes = memory.value_bytes, memory.limit_bytes
    return (
        used_bytes is not None and limit_bytes is not None and 100 * used_bytes >= TIGHT_PERCENT * limit_bytes
    )


CONNECTIONS_ASKED_FOR: Final = 100
"""The connections in one request to another node: some hundred KB."""
WAITING_ASKED_FOR: Final = 1_000
"""The waits in one request to another node: half a MB."""
CLOSED_BY_OPERATOR: Final = "closed by an operator"
CLIENTS_NODE: Final = "to which the client is connected; this one if not given"
Watch = Annotated[int, "the number that watch-link gave"]
OfUser = Annotated[str | None, "only if it is of a connection of this user"]


class FaultKind(StrEnum):
    """Faults that a broker in test mode injects (docs/testing.md)."""

    REJECT_PUBLISHES = "reject-publishes"
    HOLD_CONFIRMS = "hold-confirms"
    REDELIVER = "redeliver"
    PAUSE_QUEUE = "pause-queue"
    LIMIT_CREDIT = "limit-credit"
    HOLD_BYTES = "hold-bytes"
    RESET_AFTER = "reset-after"
    REFUSE_ATTACHES = "refuse-attaches"
    DETACH = "detach"
    END = "end"
    CLOSE = "close"


@operation("status", "status", changes=False)
def status(
    caller: Caller,
    choose: Annotated[dict[str, Any], "what of connections and queues, see survey.Selection"] = EMPTY,
) -> dict[str, Any]:
    """Return the broker's activity as a document.

    Raises `BadRequest` if `choose` is not valid.
    """
    return document(caller.node.view(choose))


@operation("connections", "connection", changes=False)
async def connections(
    caller: Caller,
    where: Annotated[
        str,
        "to which node: this one, others that run, or any",
        Check(choices=("here", "elsewhere", "everywhere")),
    ] = "here",
    after: Annotated[int, "only those here with greater numbers"] = 0,
    limit: Annotated[int | None, "so many of those here", Check(bounds=(1, 1_000_000))] = None,
) -> list[dict[str, Any]]:
    """List connections of clients, as documents of `ConnectionView`, each with the name of its ``node``."""
    node = caller.node
    named = caller.node_names()

    found: list[dict[str, Any]] = []
    if where != "elsewhere":
        own = named[node.cluster.number]
        found += [document(each) | {"node": own} for each in await node.connections(after, limit)]
    if where != "here":
        for number in caller.other_nodes():
            found += await _connections_to(node.cluster, number)
    return found


async def _connections_to(cluster: ClusterNode, number: int) -> list[dict[str, Any]]:
    # A node that stops answering adds no more connections, as in RabbitMQ.
    found: list[dict[str, Any]] = []
    last = 0
    while True:
        given = {"after": last, "limit": CONNECTIONS_ASKED_FOR}
        part = (await cluster.run_at_each((number,), "connections", given, None)).get(number, ())
        found += part
        if len(part) < CONNECTIONS_ASKED_FOR:
            return found
        last = part[-1]["id"]


@operation("waiting", "waiting", changes=False, command=Command("waiting", "--reason no-credit --limit 10"))
async def waiting(
    caller: Caller,
    connection: Annotated[int | None, "one connection, by its number"] = None,
    user: Annotated[str | None, "connections of a user"] = None,
    queue: Annotated[str | None, "links and consumers of a queue; * and ? mean any"] = None,
    link: Annotated[str | None, "links and consumer tags of that name; likewise"] = None,
    reason: Annotated[str | None, "a code, or no-credit for all such"] = None,
    longer: Annotated[
        int | None, "seconds that it has waited at least", Check(bounds=(0, 31_536_000))
    ] = None,
    idle: Annotated[bool, "also what has nothing to do; it stands last"] = False,
    limit: Annotated[int | None, "so many, the worst ones", Check(bounds=(1, 1_000_000))] = None,
    node: Annotated[
        str | None,
        "of this node alone; '' is the one that is asked, and means it where a connection is given",
    ] = None,
    queues: Annotated[bool, "also count queues, and those of this node that are full"] = True,
) -> dict[str, Any]:
    """Show what waits, the longest first: why, for how long, and what to do.

    Of each other node the list has the first `WAITING_ASKED_FOR`, and the counts all. Returns ``summary`` and
    ``waiting``, documents of `SummaryView` and `WaitingView`, each of these with its ``node``; ``nodes``,
    their number; ``unreached``, names of those that are not included; ``notes``, faults of clocks; and
    ``queues_without_leader`` of this node. Raises `BadRequest` if the choice is not valid.
    """
    running = caller.node
    cluster, named = running.cluster, caller.node_names()
    chosen = {"connection": connection, "user": user, "queue": queue, "link": link, "reason": reason}
    here = node == "" or (node is None and connection is not None)
    number = caller.node_named(node) if node else cluster.number if here else None
    given = chosen | {"longer": longer, "idle": idle, "limit": limit, "node": "", "queues": False}
    if number not in (None, cluster.number):
        there: dict[str, Any] = await cluster.run_at(number, "waiting", given, None)
        return there

    choose = chosen | {"longer_s": longer, "idle": idle, "limit": limit}
    summary, found = await running.waiting(choose, queues=queues)
    own = named[cluster.number]
    answer: dict[str, Any] = {
        "summary": document(summary),
        "waiting": [document(each) | {"node": own} for each in found],
        "unreached": [],
        "nodes": 1,
        "notes": [f"{own}: {note}" for note in running.clock_notes()],
        "queues_without_leader": without_leader(cluster),
    }
    if number is not None:
        return answer
    asked = caller.other_nodes()
    most = given | {"limit": min(limit or WAITING_ASKED_FOR, WAITING_ASKED_FOR)}
    told = await cluster.run_at_each(asked, "waiting", most, None)
    for each in told.values():
        answer["summary"] = _added(answer["summary"], each["summary"])
        answer["waiting"] += each["waiting"]
        answer["notes"] += each.get("notes", ())
    lines = sorted(answer["waiting"], key=lambda line: (line["idle"], -(line["waits_for_s"] or 0.0)))
    unreached = [name for each, name in named.items() if each != cluster.number and each not in told]
    return answer | {"waiting": lines[:limit], "unreached": unreached, "nodes": len(named)}


def _added(counts: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    # The queues are those that were counted first.
    reasons = Counter(counts["reasons"])
    reasons.update(more["reasons"])
    return counts | {
        **{name: counts[name] + more[name] for name in _ADDED},
        "reasons": dict(reasons.most_common()),
        "idle_reasons": list(dict.fromkeys([*counts["idle_reasons"], *more["idle_reasons"]])),
    }


_ADDED: Final = (
    *("connections", "connections_in_all", "links", "consumers", "channels"),
    *("waiting", "links_waiting", "consumers_waiting", "channels_waiting"),
)


def _at(given: Mapping[str, Any]) -> str:
    return "" if given["node"] is None else f" at node {given['node']}"


@operation(
    "close-connection",
    "connection",
    changes=False,
    at_node="to which it is connected; this one if not given",
    command=Command(
        "connection close",
        "7 'maintenance at noon'",
        lambda given, closed: f"connection {given['id']}{_at(given)} closed",
        positional=("reason",),
    ),
)
def close_connection(
    caller: Caller,
    id: Annotated[int, "its number, see 'connection list'"],
    reason: Annotated[str, "what the client is told"] = "",
) -> dict[str, Any]:
    """Close a client's connection."""
    caller.node.close_connection(id, reason or CLOSED_BY_OPERATOR)
    return {"id": id}


@operation(
    "list-suspended-links",
    "link",
    changes=False,
    at_node=CLIENTS_NODE,
    command=Command("link list-suspended", "link name container_id left_s"),
)
def list_suspended_links(caller: Caller) -> list[dict[str, Any]]:
    """List links of AMQP 1.0 that are kept though their clients have gone."""
    return [document(each) for each in caller.node.suspended_links()]


@operation(
    "end-suspended-link",
    "link",
    changes=False,
    at_node=CLIENTS_NODE,
    command=Command(
        "link end-suspended",
        "3",
        "link '{name}' of container '{container_id}' is over; it kept {unsettled} unsettled",
    ),
)
def end_suspended_link(
    caller: Caller, link: Annotated[int, "its number, see 'link list-suspended'"]
) -> dict[str, Any]:
    """End a suspended link before its time: what it holds gets its default outcome."""
    return document(caller.node.end_suspended_link(link))


@operation(
    "record-start",
    "recording",
    changes=False,
    takes_s=60,
    command=Command("record start", "recording --every 100"),
)
async def start_recording(
    caller: Caller,
    folder: Annotated[str, "where to, made if it is not there"],
    every: Annotated[int | None, "milliseconds between two looks; none: as configured"] = None,
    run: Annotated[
        str | None,
        "name of the run (default: one with the time); if the folder has a run of this name, it becomes "
        "NAME-2, NAME-3, ...",
    ] = None,
) -> dict[str, Any]:
    """Begin to record.

    Raises `BadRequest` if the folder's name is not valid.
    """
    return document(await caller.node.start_recording(_path("recording", folder), every, run))


@operation("record-stop", "recording", changes=False, takes_s=60, command=Command("record stop"))
async def stop_recording(caller: Caller) -> dict[str, Any]:
    """End the recording; its files are complete then."""
    return document(await caller.node.stop_recording())


@operation("record-status", "recording", changes=False, command=Command("record status"))
def show_recording(caller: Caller) -> dict[str, Any]:
    """Show how the recording goes, or how the last one failed."""
    return document(caller.node.recording())


@operation("trace", "trace", changes=False)
def trace(
    caller: Caller,
    what: Annotated[str, "a connection's number, a user, an address of a client or of links, or everything"],
    on: Annotated[bool, "begin, or end what was begun"],
    file: Annotated[str | None, "into which the broker writes; none: lines follow the answer"] = None,
    frames: Annotated[bool, "for 'frames' and 'lint': as JSON, without contents"] = False,
) -> dict[str, Any] | Lines:
    """Begin a trace into a file, or as lines that follow the answer; or end one of any kind.

    Raises `BadRequest` if the file's name is not valid, `NotFound` if there is nothing to trace, or no such
    trace, and `NotAllowed` if it is being traced already.
    """
    node = caller.node
    if not on:
        return document(node.end_trace(what))
    if file is None:
        return Lines(
            lambda sink: document(node.trace_into(what, sink, frames=frames)), partial(node.end_trace, what)
        )
    return document(node.trace_into_file(what, _path("trace", file), frames=frames))


@operation("watches", "watch", changes=False)
async def watches(
    caller: Caller, node: Annotated[str | None, "of this node alone; '' is the one that is asked"] = None
) -> list[dict[str, Any]]:
    """List watched links, channels and consumers, each with the name of its ``node``."""
    cluster = caller.node.cluster
    if node and (number := caller.node_named(node)) != cluster.number:
        there: list[dict[str, Any]] = await cluster.run_at(number, "watches", {"node": ""}, None)
        return there
    own = caller.node_names()[cluster.number]
    found = [document(each) | {"node": own} for each in caller.node.watches()]
    asked = caller.other_nodes() if node is None else []
    for told in (await cluster.run_at_each(asked, "watches", {"node": ""}, None)).values():
        found += told
    return found


@operation("watch-link", "watch", changes=False, at_node=CLIENTS_NODE)
def watch_link(
    caller: Caller,
    connection: Annotated[int, "number of its connection, see 'link list'"],
    link: Annotated[str | None, "its name; of AMQP 0-9-1 a consumer's tag, or none for a channel"] = None,
    channel: Annotated[int | None, "of its session, if the connection has several; or the channel"] = None,
    role: Annotated[
        str | None, "of the client, if it has two links of that name", Check(choices=("sender", "receiver"))
    ] = None,
) -> dict[str, Any]:
    """Record the frames of a link, or of a channel of AMQP 0-9-1, for its timeline.

    Raises `BadRequest` if a link has no name, or a channel no number, and `NotAllowed` if it is ambiguous, or
    too many are watched.
    """
    own = caller.node_names()[caller.node.cluster.number]
    return document(caller.node.watch_link(connection, link, channel, role)) | {"node": own}


@operation("unwatch-link", "watch", changes=False, at_node=CLIENTS_NODE)
def unwatch_link(caller: Caller, watch: Watch, user: OfUser = None) -> dict[str, Any]:
    """End a watch, if no other client uses it."""
    return document(caller.node.unwatch_link(watch, user))


@operation("follow-links", "watch", changes=False)
def follow_links(
    caller: Caller,
    vhost: Vhost = None,
    on: Annotated[bool, "begin, or tell what is watched by now; or end it"] = True,
) -> dict[str, Any]:
    """Watch every link and channel of a virtual host from its beginning on, or stop that.

    Returns a document of `FollowedView` with the present or last watches.
    """
    node = caller.node
    name = caller.vhost.name if vhost is None else vhost
    if on:
        caller.catalog.lookup_vhost(name)
    return document(node.follow_links(name, on=on))


@operation(
    "inject-fault",
    "fault",
    changes=False,
    command=Command(
        "fault inject", "limit-credit --queue orders --count 0", "fault {fault} is committed: {kind}"
    ),
)
def inject_fault(
    caller: Caller,
    kind: Annotated[str, "what is done wrong", Check(choices=tuple(FaultKind))],
    vhost: Vhost = None,
    queue: Annotated[str | None, "only for this queue, or address of links; * and ? mean any"] = None,
    client: Annotated[str | None, "only for clients of this container-id or connection name"] = None,
    link: Annotated[str | None, "only for links of this name"] = None,
    count: Annotated[
        int | None,
        "messages, attaches, credits or frames; see docs/testing.md",
        Check(bounds=(0, 4_294_967_295)),
    ] = None,
    condition: Annotated[str, "that clients of AMQP 1.0 are told"] = "amqp:internal-error",
    code: Annotated[int, "that clients of AMQP 0-9-1 are told"] = 541,
    text: Annotated[str, "that both are told"] = "a fault on request",
) -> dict[str, Any]:
    """Commit a fault, in a broker in test mode.

    Raises `BadRequest` if it is not valid, or there are too many.
    """
    faults = _faults(caller)
    name = caller.vhost.name if vhost is None else vhost
    caller.catalog.lookup_vhost(name)
    return document(faults.inject(kind, name, queue, client, link, count, condition, code, text))


@operation(
    "lift-fault",
    "fault",
    changes=False,
    command=Command("fault lift", "1", "fault {fault} is committed no more"),
)
def lift_fault(caller: Caller, fault: Annotated[int, "its number"]) -> dict[str, Any]:
    """Commit a fault no more."""
    return document(_faults(caller).lift(fault))


@operation("list-faults", "fault", changes=False, command=Command("fault list", ""))
def list_faults(caller: Caller) -> list[dict[str, Any]]:
    """List faults that are committed."""
    return [document(each) for each in _faults(caller).views()]


def _faults(caller: Caller) -> Any:
    faults = caller.node.faults
    if faults is None:
        text = "faults are for brokers in test mode: start one with --test-mode, and without otel_endpoint"
        raise NotSupported("fault", text)
    return faults


def _alarm_said(given: Mapping[str, Any], result: Any) -> str:
    name, on = given["name"], given["on"]
    if not on and name in result.get("alarms", ()):
        return (
            f"the {name} alarm stays on, for another reason: see 'amqp10broker status'; "
            f"'amqp10broker alarm {name}-limit' sets another limit"
        )
    return f"the {name} alarm is {'on' if on else 'off'}"


@operation(
    "set",
    "setting",
    changes=False,
    command=Command(
        "set",
        "max_link_credit 1000",
        "{name} is now {value}",
        description="Change a flow control setting of a running broker, for what it grants from then on; "
        "overrides of the configuration file still apply.",
    ),
)
def set_flow(
    caller: Caller,
    name: Annotated[str, "which", Check(choices=tuple(FLOW_SETTINGS))],
    value: Annotated[int | str, "from now on", Check(bounds=(1, 4_294_967_295), word="auto")],
) -> dict[str, Any]:
    """Change a flow control setting of a running broker.

    Raises `BadRequest` if the name does not exist, or the value is out of range.
    """
    node = caller.node
    try:
        node.set_flow(name, value)
    except ConfigError as error:
        raise BadRequest("setting", str(error)) from error
    return {name: value}


@operation("set-limit", "limit", changes=False)
def set_limit(
    caller: Caller,
    name: Annotated[str, "vm_memory_high_watermark or disk_free_limit"],
    value: Annotated[str, "as in the configuration: 0.6, 512MB, mem_relative 1.5"],
) -> dict[str, Any]:
    """Change where an alarm begins.

    Returns ``{"limit_bytes": int | None, "alarms": [names]}``. Raises `BadRequest` if the name does not
    exist, or the value is not valid.
    """
    node = caller.node
    try:
        limit = node.set_limit(name, value)
    except ConfigError as error:
        raise BadRequest("limit", str(error)) from error
    return {"limit_bytes": limit, "alarms": node.alarms()}


@operation(
    "alarm",
    "alarm",
    changes=False,
    command=Command(
        "alarm set",
        "disk on",
        _alarm_said,
        description="Raise a resource alarm by hand, or take that back. While one is on, publishers are held "
        "back. A measured alarm ends when there is room again, or under another limit.",
    ),
)
def set_alarm(
    caller: Caller,
    name: Annotated[str, "which resource", Check(choices=tuple(Resource))],
    on: Annotated[bool, "raise it, or take that back"],
) -> dict[str, Any]:
    """Raise an alarm of a running broker by hand, or take that back."""
    node = caller.node
    node.set_alarm(name, on=on)
    return {"alarms": node.alarms()}


@operation("timeline", "watch", changes=False, at_node=CLIENTS_NODE)
def timeline(
    caller: Caller,
    watch: Watch,
    since: Annotated[
        int | None, "the first step that is told, the 'next' of the last answer; none: the oldest"
    ] = None,
    limit: Annotated[int, "so many steps at most", Check(bounds=(1, 5000))] = 1000,
    frames: Annotated[bool, "with the frame of each step, not curves alone"] = True,
    user: OfUser = None,
) -> dict[str, Any]:
    """Return the actions of a link since its watch began or a cursor; ``watched`` identifies the link."""
    own = caller.node_names()[caller.node.cluster.number]
    watched, told = caller.node.timeline(watch, since, limit, frames=frames, user=user)
    return {"watched": document(watched) | {"node": own}, **told}


def _path(noun: str, path: str) -> str:
    if not path or "\0" in path:
        raise BadRequest(noun, f"{noun}: {path!r} is no path of a file or folder: give one")
    return path
