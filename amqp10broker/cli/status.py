"""``status`` and ``timeline``: the activity of a running broker, and why it waits, as text.

The document is that of the operation `status`, with `summary` and `waiting` of `sessions.diagnosis.survey`;
text fits the terminal. Roles are the client's: on a *sender* the client sends. ``-`` replaces a number that
has no meaning for a link, such as the queue credit of a publisher.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TextIO

from amqp10broker.cli import admin
from amqp10broker.cli.commands import Command, Parser, add_format, add_where, ask, place_of, seconds
from amqp10broker.cli.exits import EXIT_OK
from amqp10broker.cli.tables import clean, duration, fit, seconds_text, shortened, size, wrapped
from amqp10broker.operations.operation import counted

Document = Mapping[str, Any]

QUEUE_ROOM_MIN: Final = 24
KINDS: Final = ("link", "consumer", "channel")


def summary(found: Document, width: int) -> list[str]:
    """``152 connections, 3 links wait: 2 no-credit-used-up, 1 peer-window-closed``, and what is idle."""
    if not found:
        return []
    chosen, total = found["connections"], found["connections_in_all"]
    head = counted(chosen, "connection")
    if chosen != total:
        head = f"{chosen} of {counted(total, 'connection')}"
    idle = set(found["idle_reasons"])
    reasons = found["reasons"]
    waits = ", ".join(f"{count} {code}" for code, count in reasons.items() if code not in idle)
    kinds = [(kind, found[f"{kind}s_waiting"]) for kind in KINDS]
    waiting = ", ".join(counted(count, kind) for kind, count in kinds if count)
    verb = "waits" if found["waiting"] == 1 else "wait"
    lines = wrapped(
        f"{head}, {waiting} {verb}: {waits}" if waiting else f"{head}, nothing waits", width, "", "  "
    )
    rest = ", ".join(f"{reasons[code]} {code}" for code in reasons if code in idle)
    if rest:
        lines += wrapped(f"idle: {rest}", width, "", "  ")
    if found.get("queues_full"):
        lines += wrapped(f"{counted(found['queues_full'], 'queue')} FULL", width, "", "  ")
    return lines


def page(found: Document, width: int) -> list[str]:
    """Format the operation `waiting`: the summary, then each wait with its remedy."""
    lines = summary(found["summary"], width)
    if found.get("unreached"):
        silent = ", ".join(map(clean, found["unreached"]))
        lines += wrapped(f"unknown for clients of {silent}, which cannot be reached", width, "", "  ")
    for note in found.get("notes", ()):
        lines += wrapped(f"note: {clean(note)}", width, "", "  ")
    if lacking := found.get("queues_without_leader"):
        lines += wrapped(clean(without_leader(lacking)), width, "", "  ")
    several = found.get("nodes", 1) > 1
    for each, entry in zip(found["waiting"], entries(found["waiting"], width, several=several), strict=True):
        lines += ["", *entry, *wrapped(f"do: {clean(each['to_do'])}", width, "    ", "    ")]
    return lines


def without_leader(found: Document) -> str:
    """``8298 queues have no leader (q1 in /, ...): 8298 elect one, 32 at a time from here``."""
    verb = "has" if found["queues"] == 1 else "have"
    head = f"{counted(found['queues'], 'queue')} {verb} no leader"
    return f"{head} ({', '.join(found['names'])}): {found['reason']}"


def entries(waiting: Sequence[Document], width: int, *, several: bool = False) -> list[list[str]]:
    """Format each wait in two lines or more: duration, cause and place; then the details."""
    return [[*_head(each, width), *_body(each, width, several=several)] for each in waiting]


def _head(each: Document, width: int) -> list[str]:
    facts = [clean(each.get("waits"))]
    if each.get("waits_for_s") is not None:
        facts.append(seconds_text(each["waits_for_s"]))
    start = "  ".join(facts)
    queue = each.get("queue")
    if queue is None:
        return [fit(start, width)]
    if width - len(start) < QUEUE_ROOM_MIN:
        return [fit(start, width), f"  queue {shortened(clean(queue), width - 8)}"]
    return [f"{start}  queue {shortened(clean(queue), width - len(start) - 8)}"]


def _body(each: Document, width: int, *, several: bool) -> list[str]:
    link = each["kind"] == "link"
    part = "session" if link else "channel"
    where = f"connection {clean(each.get('connection'))} {part} {clean(each.get('channel'))}"
    if several:
        where += f" of node {clean(each['node'])}"
    if each.get("user"):
        where += f", user {clean(each['user'])}"
    if each["kind"] != "channel":
        role = each.get("role") or each["kind"]
        where = f"{role} {shortened(clean(each.get('name')), width // 2)}, {where}"
    why = f": {clean(each['waits_why'])}" if each.get("waits_why") else ""
    return wrapped(f"{where}{why}", width, "    ", "    ")


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
"""Counters that are shown only above 0."""


_SUSPENDED_SHOWN: Final = 10


def render(document: Document, *, width: int = WIDTH) -> list[str]:
    """Format the document in lines of at most `width` columns: waits first, then each connection."""
    lines = _broker(document.get("broker", {}), width)
    lines += _waiting(document, width)
    connections = document.get("connections", [])
    counts = document.get("summary", {})
    lines.append("")
    if not connections:
        lines.append("No connections match the selection." if counts.get("chosen") else "No connections.")
    for at, connection in enumerate(connections):
        if at:
            lines.append("")
        lines += _connection(connection, width)
    lines += _more(counts.get("connections", 0) - len(connections), "connection", width)
    lines.append("")
    queues = document.get("queues", [])
    if queues:
        lines += _queues(queues, width)
        lines += _more(counts.get("queues", 0) - len(queues), "queue", width)
        lines += _dead_lettered(queues, width)
    else:
        lines.append("No queues match the selection." if counts.get("chosen") else "No queues.")
    return [line.rstrip() for line in lines]


def _waiting(document: Document, width: int) -> list[str]:
    counts = document.get("summary", {})
    if not counts.get("connections_in_all"):
        return []
    lines = ["", *summary(counts, width)]
    found = document.get("waiting", [])
    for entry in entries(found, width):
        lines += entry
    return [*lines, *_more(counts["waiting"] - len(found), "wait", width)]


def _more(count: int, noun: str, width: int) -> list[str]:
    if count <= 0:
        return []
    what = f"{count} more {noun if count == 1 or noun == 'wait' else noun + 's'}"
    return wrapped(
        f"... {what}: select with --reason, --queue, --user, ..., or show all with --all", width, "", "  "
    )


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
        lines.append(
            fit(f"ALARM: {', '.join(clean(each) for each in alarms)} (publishers are blocked)", width)
        )
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
        return ["the journal is being read; durable queues wait for it"]
    facts = [
        f"journal {size(journal.get('bytes'))} in {clean(journal.get('files'))} files",
        f"{size(journal.get('live_bytes'))} needed",
        f"last sync {clean(journal.get('last_sync_ms'))} ms",
    ]
    if journal.get("spool_bytes"):
        facts.append(f"paged out {size(journal.get('spool_bytes'))}")
    if journal.get("disk_full"):
        left = size(journal.get("reserve_bytes"))
        facts.append(f"THE DISK IS FULL: no publish is confirmed; {left} in reserve for consumers")
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
            reasons.append(
                f"{used} used, {ends}: consume messages, or raise the limit with 'amqp10broker alarm "
                "memory-limit'"
            )
        elif cause == "measured":
            free = size(resource.get("free_bytes"))
            reasons.append(
                f"{free} free, {ends}: free space, or lower the limit with 'amqp10broker alarm disk-limit'"
            )
        elif cause == "by hand":
            reasons.append(f"raised by an operator; 'amqp10broker alarm set {name} off' ends it")
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
    # proton begins each link's name with the container-id, which is shown above.
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
    """Format a heading and a line a row. Numbers are shown in full; texts share the rest of the width."""
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


SHOWN_MAX: Final = 20
"""The connections and waits that are shown by default: the first lines must not scroll away."""

# The alternate screen preserves the user's scrollback; the cursor would flicker.
WIDTH_MIN: Final = 40
_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[2J"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_CLEAR_LINE: Final = "\x1b[K"
_CLEAR_BELOW: Final = "\x1b[J"


def _status_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--watch",
        nargs="?",
        type=seconds(0.1, 3_600),
        const=1.0,
        metavar="SECONDS",
        help="update every SECONDS seconds (default: 1) until Ctrl-C",
    )
    add_format(parser, plain="table")
    chosen = parser.add_argument_group("the part to show")
    chosen.add_argument("--connection", type=int, metavar="ID", help="only the connection with this number")
    chosen.add_argument("--user", metavar="NAME", help="only connections of this user")
    chosen.add_argument(
        "--queue", metavar="NAME", help="only links and consumers of this queue; * and ? are wildcards"
    )
    chosen.add_argument(
        "--link", metavar="NAME", help="only links and consumer tags of this name; * and ? are wildcards"
    )
    chosen.add_argument(
        "--reason",
        metavar="CODE",
        help="only links that wait for this reason: a code, or no-credit for all codes that begin so",
    )
    chosen.add_argument(
        "--longer",
        type=seconds(0, 31_536_000),
        metavar="SECONDS",
        help="only links that have waited for at least this time",
    )
    chosen.add_argument(
        "--all", action="store_true", help="show all connections, not only the worst 20; JSON always has all"
    )
    add_where(parser)


def _status(arguments: argparse.Namespace) -> int:
    chosen = {name: getattr(arguments, name) for name in ("connection", "user", "queue", "link", "reason")}
    chosen["longer_s"] = arguments.longer
    return show(
        place_of(arguments),
        watch_s=arguments.watch,
        as_json=arguments.format == "json",
        choose={name: each for name, each in chosen.items() if each is not None},
        all_of_them=arguments.all,
    )


def show(
    place: admin.Place,
    *,
    watch_s: float | None,
    as_json: bool,
    choose: Mapping[str, Any] | None = None,
    all_of_them: bool = False,
    stream: TextIO | None = None,
    fetch: Callable[[], Any] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Show the status of the broker at `place`.

    Args:
        watch_s: show it again every so many seconds until ctrl-C; None: once.
        choose: `sessions.diagnosis.survey.Selection`; None or empty: everything.
        stream: None is standard output.
    """
    stream = stream if stream is not None else sys.stdout
    on_screen = watch_s is not None and not as_json and stream.isatty()
    if fetch is None:

        def fetch() -> Any:
            limit = shutil.get_terminal_size().lines if on_screen else SHOWN_MAX
            bound = {} if as_json or (all_of_them and not on_screen) else {"limit": limit}
            return admin.ask(place, {"op": "status", "arguments": {"choose": {**(choose or {}), **bound}}})

    width = width_of(stream)
    if watch_s is None:
        document = fetch()
        shown = render(document, width=width)
        text = json.dumps(document, indent=2) if as_json else "\n".join(shown)
        stream.write(f"{text}\n")
        return EXIT_OK
    try:
        if as_json:
            _repeat(fetch, sleep, watch_s, lambda document: _write(stream, f"{json.dumps(document)}\n"))
        elif on_screen:
            _watch_screen(stream, fetch, sleep, watch_s)
        else:
            _repeat(
                fetch,
                sleep,
                watch_s,
                lambda document: _write(stream, "\n".join([*render(document, width=width), "", ""])),
            )
    except KeyboardInterrupt:
        pass
    return EXIT_OK


def width_of(stream: TextIO) -> int:
    """Return the columns of the terminal, even behind a pager, or COLUMNS; else a usual number."""
    if stream.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return max(shutil.get_terminal_size().columns, WIDTH_MIN)
    try:
        return max(os.get_terminal_size(sys.stderr.fileno()).columns, WIDTH_MIN)
    except (OSError, ValueError, AttributeError):  # not a terminal, or not a file
        return WIDTH


def _watch_screen(
    stream: TextIO, fetch: Callable[[], Any], sleep: Callable[[float], None], watch_s: float
) -> None:
    first = fetch()  # before the screen is taken, so that a missing broker is an ordinary error
    _write(stream, _ENTER)
    try:
        _write(stream, _frame(first))
        sleep(watch_s)
        _repeat(fetch, sleep, watch_s, lambda document: _write(stream, _frame(document)))
    finally:
        _write(stream, _LEAVE)


def _frame(document: Any) -> str:
    columns, rows = shutil.get_terminal_size()
    return frame(render(document, width=max(columns, WIDTH_MIN)), rows, columns)


def frame(lines: list[str], rows: int, columns: int | None = None) -> str:
    """Format one picture, written over the last one line by line, so that nothing is ever blank. `columns`:
    of the screen, since a longer line would take two rows; None: no line is longer.
    """
    if len(lines) > rows:
        hidden = len(lines) - rows + 1
        lines = [
            *lines[: rows - 1],
            f"... {hidden} more lines; enlarge the window, or select with --reason, --queue, ...",
        ]
    if columns is not None:
        lines = [fit(line, columns) for line in lines]
    return _HOME + "\n".join(line + _CLEAR_LINE for line in lines) + _CLEAR_BELOW


def _repeat(
    fetch: Callable[[], Any], sleep: Callable[[float], None], watch_s: float, show: Callable[[Any], None]
) -> None:
    while True:
        show(fetch())
        sleep(watch_s)


def _write(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()


ASK_EVERY_S: Final = 0.5
"""The interval is far below the time-out of a watch, and the time that fills the ring of a busy link."""
STEPS_MAX: Final = 5000


def _timeline_arguments(parser: Parser) -> None:
    parser.add_argument("connection", type=int, metavar="CONNECTION", help="its number, see 'link list'")
    parser.add_argument(
        "link",
        nargs="?",
        metavar="LINK",
        help="name of the link; for AMQP 0-9-1 a consumer tag, or nothing for the whole --channel",
    )
    parser.add_argument(
        "--channel",
        type=int,
        help="channel number of its session, if the connection has several; or the channel of AMQP 0-9-1",
    )
    parser.add_argument(
        "--role",
        choices=("sender", "receiver"),
        help="the client's role, if it has two links of that name",
    )
    parser.add_argument(
        "--for",
        dest="for_s",
        type=seconds(0, 86_400),
        default=10.0,
        metavar="SECONDS",
        help="how long to watch it, or until Ctrl-C (default: 10)",
    )
    add_where(parser)


def _timeline(arguments: argparse.Namespace) -> int:
    chosen = {name: getattr(arguments, name) for name in ("connection", "link", "channel", "role")}
    watch = ask(arguments, "watch-link", **chosen)
    what = watch["role"] if watch["link"] is None else f"{watch['role']} '{watch['link']}'"
    where = f"channel {watch['channel']}, connection {watch['connection']}"
    print(f"watching {what} of {where}", file=sys.stderr, flush=True)
    found: dict[str, Any] = {}
    until = time.monotonic() + arguments.for_s
    try:
        while _ask_on(arguments, watch["watch"], found) is None and (left := until - time.monotonic()) > 0:
            time.sleep(min(ASK_EVERY_S, left))
    except KeyboardInterrupt:
        print("frames so far:", file=sys.stderr)
    _ask_on(arguments, watch["watch"], found)
    ask(arguments, "unwatch-link", watch=watch["watch"])
    print(json.dumps({"link": watch, **found}, indent=2))
    return EXIT_OK


def _ask_on(arguments: argparse.Namespace, watch: int, found: dict[str, Any]) -> Any:
    while True:
        part = ask(arguments, "timeline", watch=watch, since=found.get("next"), limit=STEPS_MAX)
        if not found or part["lost"]:  # the part after a gap begins with a separate state
            found |= {name: part[name] for name in ("since", "start")} | {"steps": []}
        found["steps"] += part["steps"]
        found |= {name: part[name] for name in ("next", "ended")}
        found["lost"] = found.get("lost", 0) + part["lost"]
        if not part["more"]:
            return part["ended"]


COMMANDS: Final = (
    Command(
        "status",
        _status_arguments,
        _status,
        "Show what waits in a running broker, the longest first, and its connections, sessions, links and "
        "queues. docs/waiting.md explains the reasons.",
    ),
    Command(
        "timeline",
        _timeline_arguments,
        _timeline,
        "Watch a link of AMQP 1.0, or a channel of AMQP 0-9-1, for a while and print as JSON each frame, in "
        "both directions, with the credit, delivery-count, unsettled deliveries, queue's credit, session "
        "windows and writer behind it; or prefetch, unacknowledged and unconfirmed messages, and "
        "credit_flow. docs/page.md has the fields.",
    ),
)
