"""Formats the status document as text: lines and tables that fit the terminal.

Takes the document of the administration socket's `status` operation and returns lines. Roles are the
client's: a *sender* is a link on which the client sends. A number without a meaning for a link (queue
credit of a publisher) is shown as ``-``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from amqp10broker.cli import waiting_view
from amqp10broker.cli.text import clean, duration, fit, seconds_text, shortened, size, wrapped

WIDTH: Final = 100
_TEXT_WIDTH_MIN: Final = 6
_GAP: Final = "  "

# (heading, key of the document, aligned right)
_LINK_COLUMNS: Final = (
    ("LINK", "name", False),
    ("CLIENT", "role", False),
    ("QUEUE", "queue", False),
    ("CREDIT", "credit", True),
    ("COUNT", "delivery_count", True),
    ("UNSETTLED", "unsettled", True),
    ("AVAILABLE", "available", True),
    ("Q-CREDIT", "queue_credit", True),
)
_CONSUMER_COLUMNS: Final = (
    ("CONSUMER", "tag", False),
    ("QUEUE", "queue", False),
    ("NO-ACK", "no_ack", False),
    ("PREFETCH", "prefetch", True),
    ("UNACKED", "unacknowledged", True),
    ("UNSENT", "unsent", True),
)
_QUEUE_COLUMNS: Final = (
    ("QUEUE", "name", False),
    ("TYPE", "type", False),
    ("DURABLE", "durable", False),
    ("READY", "messages_ready", True),
    ("UNSETTLED", "messages_unsettled", True),
    ("CONSUMERS", "consumers", True),
    ("PUBLISHERS", "publishers", True),
)
# The reasons are those of the records of dead-lettering.
_DEAD_LETTER_COLUMNS: Final = (
    ("DEAD-LETTERED FROM", "name", False),
    ("REJECTED", "rejected", True),
    ("EXPIRED", "expired", True),
    ("MAXLEN", "maxlen", True),
    ("DELIVERY-LIMIT", "delivery_limit", True),
)

_MISHAPS: Final = ("rejected", "unroutable", "returned", "requeued", "discarded")
"""Counters of links and channels that are shown only above 0."""

Document = Mapping[str, Any]

_SUSPENDED_SHOWN: Final = 10
"""The most suspended links that are shown."""


def render(document: Document, *, width: int = WIDTH) -> list[str]:
    """Format the whole document as lines of at most `width` columns: waits first, then each connection."""
    lines = _broker(document.get("broker", {}), width)
    lines += _waiting(document, width)
    connections = document.get("connections", [])
    summary = document.get("summary", {})
    lines.append("")
    if not connections:
        lines.append("No connections of what was chosen." if summary.get("chosen") else "No connections.")
    for at, connection in enumerate(connections):
        if at:
            lines.append("")
        lines += _connection(connection, width)
    lines += _more(summary.get("connections", 0) - len(connections), "connection", width)
    lines.append("")
    queues = document.get("queues", [])
    if queues:
        lines += _queues(queues, width)
        lines += _more(summary.get("queues", 0) - len(queues), "queue", width)
        lines += _dead_lettered(queues, width)
    else:
        lines.append("No queues of what was chosen." if summary.get("chosen") else "No queues.")
    return [line.rstrip() for line in lines]


def _waiting(document: Document, width: int) -> list[str]:
    summary = document.get("summary", {})
    if not summary.get("connections_in_all"):
        return []
    lines = ["", *waiting_view.summary(summary, width)]
    found = document.get("waiting", [])
    for entry in waiting_view.entries(found, width):
        lines += entry
    return [*lines, *_more(summary["waiting"] - len(found), "wait", width)]


def _more(count: int, noun: str, width: int) -> list[str]:
    if count <= 0:
        return []
    what = f"{count} more {noun if count == 1 or noun == 'wait' else noun + 's'}"
    return wrapped(f"... {what}: choose with --reason, --queue, --user, ..., or --all", width, "", "  ")


def _queues(queues: Sequence[Document], width: int) -> list[str]:
    heading, *rows = table(_QUEUE_COLUMNS, queues, width)
    lines = [heading]
    for queue, row in zip(queues, rows, strict=True):
        lines.append(row)
        facts = []
        limits = queue.get("limits")
        if queue.get("full") and limits:
            facts.append(f"FULL: {_fullness(queue, limits)}")
        facts += _counted(queue, ("rejected", "dropped", "expired", "discarded", "delivery_limit"))
        lines += _wrapped(facts, width, "  ") + _last_error(queue, width, "  ")
    return lines


def _fullness(queue: Document, limits: Document) -> str:
    bounds = []
    if limits.get("messages") is not None:
        bounds.append(f"{clean(queue.get('messages_ready'))} of {clean(limits['messages'])} messages")
    if limits.get("bytes") is not None:
        bounds.append(f"limit {size(limits['bytes'])}")
    return ", ".join([*bounds, clean(limits.get("overflow"))])


def _counted(part: Document, names: Sequence[str]) -> list[str]:
    counters = part.get("counters") or {}
    return [f"{name.replace('_', '-')} {counters[name]}" for name in names if counters.get(name)]


def _last_error(part: Document, width: int, indent: str) -> list[str]:
    error = part.get("last_error")
    if not error:
        return []
    text = f": {clean(error['text'])}" if error.get("text") else ""
    sentence = f"last error {clean(error.get('time'))}: {clean(error.get('event'))}{text}"
    return wrapped(sentence, width, indent, f"{indent}  ")


def _waits(part: Document, width: int, indent: str, name: str = "") -> list[str]:
    why = clean(part.get("waits_why") or "")
    if part.get("waits"):
        seconds = part.get("waits_for_s")
        since = "" if seconds is None else f" for {seconds_text(seconds)}"
        sentence = f"{name}waits: {clean(part['waits'])}{since}" + (f" ({why})" if why else "")
    elif why:
        sentence = f"{name}{why}"
    else:
        return []
    return wrapped(sentence, width, indent, f"{indent}  ")


def _dead_lettered(queues: Sequence[Document], width: int) -> list[str]:
    rows = [
        {"name": queue.get("name"), **queue["dead_lettered"]}
        for queue in queues
        if queue.get("dead_lettered")
    ]
    return ["", *table(_DEAD_LETTER_COLUMNS, rows, width)] if rows else []


def _broker(broker: Document, width: int) -> list[str]:
    listeners = ", ".join(clean(each) for each in broker.get("listeners", []))
    facts = [
        f"amqp10broker {clean(broker.get('version'))}",
        clean(broker.get("container_id")),
        f"pid {clean(broker.get('pid'))}",
        f"up {duration(broker.get('uptime_s'))}",
        f"on {listeners or 'no port'}",
        f"memory {size(broker.get('rss_bytes'))}",
    ]
    if "data_dir" in broker:
        folder = broker["data_dir"]
        facts.append("in memory only" if folder is None else f"data in {clean(folder)}")
    lines = _wrapped(facts, width, "")
    lines += _wrapped(_journal(broker.get("journal")), width, "")
    flow = broker.get("flow", {})
    lines += _wrapped([f"{name} {clean(value)}" for name, value in flow.items()], width, "")
    resources = broker.get("resources", {})
    lines += _wrapped(_limits(resources), width, "")
    lines += _wrapped(_recording(broker.get("recording")), width, "")
    lines += _wrapped(_recording_failed(broker.get("recording_failed")), width, "")
    for trace in broker.get("traces", []):
        lines += _wrapped(_trace(trace), width, "")
    suspended = broker.get("suspended_links", [])
    for link in suspended[:_SUSPENDED_SHOWN]:
        lines += _wrapped(_suspended(link), width, "")
    if len(suspended) > _SUSPENDED_SHOWN:
        lines.append(fit(f"... more links are suspended; {clean(broker.get('kept_links'))} are kept", width))
    alarms = broker.get("alarms", [])
    if alarms:
        lines.append(fit(f"ALARM: {', '.join(clean(each) for each in alarms)} (publishers are held)", width))
        for name in alarms:
            if name in resources:
                lines += wrapped(_alarm(clean(name), resources[name]), width, "  ", "    ")
    return lines


def _suspended(link: Document) -> list[str]:
    left = link.get("left_s")
    container = clean(link.get("container_id"))
    return [
        f"suspended link {clean(link.get('link'))}: {clean(link.get('name'))} of container {container}",
        f"user {clean(link.get('user'))} in {clean(link.get('vhost'))}",
        f"{clean(link.get('role'))}, {clean(link.get('unsettled'))} unsettled",
        f"for {duration(link.get('age_s'))}",
        "until its session or connection ends" if left is None else f"ends in {duration(left)}",
    ]


def _journal(journal: Document | None) -> list[str]:
    if not journal:
        return []
    if not journal.get("recovered"):
        return ["journal is being read, durable queues wait"]
    facts = [
        f"journal {size(journal.get('bytes'))} in {clean(journal.get('files'))} files",
        f"{size(journal.get('live_bytes'))} needed",
        f"last sync {clean(journal.get('last_sync_ms'))} ms",
    ]
    if journal.get("spool_bytes"):
        facts.append(f"paged out {size(journal.get('spool_bytes'))}")
    if journal.get("disk_full"):
        left = size(journal.get("reserve_bytes"))
        facts.append(f"THE DISK IS FULL: no publish is confirmed, consumers have {left} in reserve")
    return facts


def _recording(recording: Document | None) -> list[str]:
    if not recording:
        return []
    facts = [
        f"recording to {clean(recording.get('folder'))}",
        f"run {clean(recording.get('run_id'))}",
        f"events {clean(recording.get('events'))}",
        f"in complete files {clean(recording.get('events_written'))}",
    ]
    if recording.get("events_dropped"):
        facts.append(f"DROPPED {clean(recording.get('events_dropped'))}: the disk or processor is too slow")
    return facts


def _recording_failed(failed: Document | None) -> list[str]:
    if not failed:
        return []
    return [
        f"THE RECORDING FAILED: {clean(failed.get('reason'))}",
        f"folder {clean(failed.get('folder'))}",
        f"run {clean(failed.get('run_id'))}",
        f"events lost {clean(failed.get('events_lost'))} of {clean(failed.get('events'))}",
    ]


def _trace(trace: Document) -> list[str]:
    facts = [
        f"tracing {clean(trace.get('target'))}",
        f"into {clean(trace.get('into'))}",
        f"lines {clean(trace.get('lines'))}",
    ]
    if trace.get("ended"):
        facts.append(f"ENDED: {clean(trace.get('ended'))}")
    return facts


def _limits(resources: Document) -> list[str]:
    facts = []
    memory = resources.get("memory", {})
    if memory.get("limit_bytes") is not None:
        facts.append(f"memory alarm above {size(memory['limit_bytes'])} ({clean(memory.get('setting'))})")
    disk = resources.get("disk", {})
    if disk.get("limit_bytes") is not None:
        facts.append(
            f"disk alarm below {size(disk['limit_bytes'])} ({clean(disk.get('setting'))}), "
            f"free {size(disk.get('free_bytes'))}"
        )
    return facts


def _alarm(name: str, resource: Document) -> str:
    reasons = []
    ends = f"ends at {size(resource.get('alarm_ends_at_bytes'))}"
    for cause in resource.get("causes", []):
        if cause == "measured" and name == "memory":
            used = size(resource.get("used_bytes"))
            reasons.append(f"{used} used, {ends}: consume, or 'amqp10broker alarm memory-limit'")
        elif cause == "measured":
            free = size(resource.get("free_bytes"))
            reasons.append(f"{free} free, {ends}: make room, or 'amqp10broker alarm disk-limit'")
        elif cause == "by hand":
            reasons.append(f"raised by hand, 'amqp10broker alarm set {name} off' ends it")
        else:
            reasons.append(clean(cause))
    return f"{name} for {duration(resource.get('on_for_s'))}: {'; '.join(reasons)}"


def _connection(connection: Document, width: int) -> list[str]:
    idle = connection.get("idle_timeout_ms")
    client = connection.get("client") or {}
    facts = [
        f"Connection {clean(connection.get('id'))}",
        clean(connection.get("protocol")),
        f"from {clean(connection.get('peer'))}",
        f"user {clean(connection.get('user'))}",
        *([f"vhost {clean(connection['vhost'])}"] if connection.get("vhost") not in ("/", "", None) else []),
        f"name {clean(client['connection_name'])}"
        if client.get("connection_name")
        else f"client {clean(client['product'])}"
        if client.get("product")
        else f"container {clean(connection.get('container_id'))}",
        clean(connection.get("state")),
        f"in {size(connection.get('bytes_in'))}",
        f"out {size(connection.get('bytes_out'))}",
        f"writer holds {size(connection.get('writer_waiting_bytes'))}",
        f"frame-max {clean(connection.get('frame_max'))}",
        f"channel-max {clean(connection.get('channel_max'))}",
        f"idle time-out {clean(idle)} ms" if idle else "no idle time-out",
    ]
    lines = _wrapped(facts, width, "", hanging="  ")
    lines += _last_error(connection, width, "  ")
    sessions, channels = connection.get("sessions", ()), connection.get("channels", ())
    for session in sessions:
        lines += _session(session, width, str(connection.get("container_id") or ""))
    for channel in channels:
        lines += _channel(channel, width)
    if not sessions and not channels:
        lines.append("  no channels" if connection.get("protocol") == "AMQP 0-9-1" else "  no sessions")
    return lines


def _channel(channel: Document, width: int) -> list[str]:
    mode = "confirms" if channel.get("confirm") else "transactions" if channel.get("transactional") else ""
    whole = channel.get("global_prefetch")
    facts = [
        f"Channel {clean(channel.get('number'))}",
        *([mode] if mode else []),
        f"unconfirmed {clean(channel.get('unconfirmed'))}",
        f"unacked {clean(channel.get('unacknowledged'))}",
        *([f"prefetch of the channel {clean(whole)}"] if whole else []),
        f"reader's credit {clean(channel.get('reader_credit'))}",
    ]
    facts += _counted(channel, _MISHAPS)
    lines = _wrapped(facts, width, "  ", hanging="    ")
    consumers = channel.get("consumers", [])
    if consumers:
        heading, *rows = table(_CONSUMER_COLUMNS, consumers, width - 4)
        lines.append(f"    {heading}")
        for consumer, row in zip(consumers, rows, strict=True):
            lines += [f"    {row}", *_waits(consumer, width, "      ")]
    return lines + _waits(channel, width, "    ") + _last_error(channel, width, "    ")


def _session(session: Document, width: int, container_id: str) -> list[str]:
    facts = [
        f"Session {clean(session.get('channel'))}",
        f"incoming-window {clean(session.get('incoming_window'))}",
        f"client's window {clean(session.get('remote_incoming_window'))}",
        f"next-incoming-id {clean(session.get('next_incoming_id'))}",
        f"next-outgoing-id {clean(session.get('next_outgoing_id'))}",
        f"unsettled in {clean(session.get('unsettled_in'))} out {clean(session.get('unsettled_out'))}",
        f"pending out {clean(session.get('pending_out'))}",
    ]
    lines = _wrapped(facts, width, "  ", hanging="    ")
    lines += _last_error(session, width, "    ")
    for transaction in session.get("transactions", ()):
        lines += _transaction(transaction, width)
    links = session.get("links", [])
    if not links:
        return [*lines, "    no links"]
    # proton begins each link's name with the container-id, which is shown above: the rest identifies the
    # link.
    links = [
        {**link, "name": str(link.get("name") or "").removeprefix(f"{container_id}-") or link.get("name")}
        for link in links
    ]
    heading, *rows = table(_LINK_COLUMNS, links, width - 4)
    lines.append(f"    {heading}")
    for link, row in zip(links, rows, strict=True):
        lines.append(f"    {row}")
        lines += _below_link(link, width)
    return lines


def _transaction(transaction: Document, width: int) -> list[str]:
    failed = transaction.get("failed")
    facts = [
        f"Transaction {clean(transaction.get('id'))}",
        f"open for {duration(transaction.get('age_s'))}",
        f"posted {clean(transaction.get('messages'))}, {size(transaction.get('bytes'))}",
        f"decided on {clean(transaction.get('deliveries'))}",
        f"control link {clean(transaction.get('link'))}",
        *([f"can only be rolled back: {clean(failed)}"] if failed else []),
    ]
    return _wrapped(facts, width, "    ", hanging="      ")


def _below_link(link: Document, width: int) -> list[str]:
    lines: list[str] = []
    facts: list[str] = []
    queue = link.get("queue")
    if link.get("address") not in (queue, f"/queues/{queue}"):
        facts.append(f"address {clean(link.get('address'))}")
    if link.get("drain"):
        facts.append("draining")
    if link.get("pending"):
        facts.append(f"pending {clean(link['pending'])}")
    if link.get("queue_delivery_count") not in (None, link.get("delivery_count")):
        facts.append(f"queue's count {clean(link['queue_delivery_count'])}")
    properties = link.get("properties")
    if properties:
        pairs = properties.items() if isinstance(properties, Mapping) else [("", properties)]
        facts.append("properties " + " ".join(f"{clean(key)}={clean(value)}" for key, value in pairs))
    facts += _counted(link, _MISHAPS)
    if facts:
        lines += _wrapped(facts, width, "      ")
    return lines + _waits(link, width, "      ") + _last_error(link, width, "      ")


def table(columns: Sequence[tuple[str, str, bool]], rows: Sequence[Document], width: int) -> list[str]:
    """Format a heading and one line a row. Numbers are shown in full; texts share the remaining width."""
    headings = [heading for heading, _, _ in columns]
    cells = [[clean(row.get(key)) for _, key, _ in columns] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(headings, *cells, strict=True)]
    shrinkable = [at for at, (_, _, right) in enumerate(columns) if not right]
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    while excess > 0:
        widest = max(shrinkable, key=lambda at: widths[at])
        if widths[widest] <= _TEXT_WIDTH_MIN:
            break
        widths[widest] -= 1
        excess -= 1
    aligned = list(zip(widths, (right for _, _, right in columns), strict=True))
    return [_row(each, aligned) for each in [headings, *cells]]


def _row(cells: Iterable[str], aligned: Iterable[tuple[int, bool]]) -> str:
    parts = [
        cell.rjust(room) if right else shortened(cell, room).ljust(room)
        for cell, (room, right) in zip(cells, aligned, strict=True)
    ]
    return _GAP.join(parts).rstrip()


def _wrapped(facts: Iterable[str], width: int, indent: str, *, hanging: str | None = None) -> list[str]:
    hanging = indent if hanging is None else hanging
    lines: list[str] = []
    line = indent
    for fact in facts:
        if line.strip() and len(line) + len(_GAP) + len(fact) > width:
            lines.append(line)
            line = hanging
        line += fact if not line.strip() else _GAP + fact
    if line.strip():
        lines.append(line)
    return [shortened(line, width) for line in lines]
