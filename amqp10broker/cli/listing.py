"""Commands that list objects of the broker, as ``queue list``, in columns that the user chooses.

Columns have RabbitMQ's names where it has an equivalent; a row has at least a value for each.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from amqp10broker.cli import tables
from amqp10broker.cli.calls import add_formatter, on_terminal
from amqp10broker.cli.commands import Command, Parser, add_vhost, add_where, ask
from amqp10broker.cli.exits import EXIT_OK
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import ConfigError, hint
from amqp10broker.operations.operation import Argument, Kind, Operation
from amqp10broker.operations.registry import OPERATIONS

Row = dict[str, Any]
Document = Mapping[str, Any]
Connections = Sequence[Document]


def queue_row(queue: Document) -> Row:
    ready, unsettled, dead = queue["message_count"], queue["messages_unsettled"], queue["messages_dlx"] or 0
    counters = dict(queue["counters"])
    if "delivery_limit" in counters:  # the column of this name is RabbitMQ's: the limit
        counters["over_delivery_limit"] = counters.pop("delivery_limit")
    return {
        **queue,
        # A stream stores delivered messages, too: they are among the ready ones.
        "messages": ready if queue["type"] == "stream" or ready is None else ready + unsettled + dead,
        **counters,
    }


def binding_row(binding: Document) -> Row:
    kind = "queue" if "destination_queue" in binding else "exchange"
    return {
        "source_name": binding["source"],
        "destination_name": binding[f"destination_{kind}"],
        "destination_kind": kind,
        "routing_key": binding["binding_key"],
        "arguments": binding["arguments"],
        "location": binding["location"],
    }


# --- from connections ---------------------------------------------------------------------


def connection_rows(connections: Connections) -> Iterator[Row]:
    for connection in connections:
        client = connection.get("client") or {}
        names = (str(client[key]) for key in ("connection_name", "product", "version") if key in client)
        yield {
            **connection,
            "client": connection["container_id"] or " ".join(names) or None,
            "sessions": len(connection["sessions"]),
            "channels": len(connection.get("channels", ())),
            **_counted(connection),
        }


def session_rows(connections: Connections) -> Iterator[Row]:
    for owner, session in _parts(connections, "sessions"):
        yield {
            **owner,
            **session,
            "links": len(session["links"]),
            "transactions": len(session.get("transactions", ())),
            **_counted(session),
        }


def link_rows(connections: Connections) -> Iterator[Row]:
    for owner, session in _parts(connections, "sessions"):
        for link in session["links"]:
            yield {**owner, "channel": session["channel"], **link, **_counted(link)}


def transaction_rows(connections: Connections) -> Iterator[Row]:
    for owner, session in _parts(connections, "sessions"):
        for transaction in session.get("transactions", ()):
            yield {**owner, "channel": session["channel"], **transaction}


def channel_rows(connections: Connections) -> Iterator[Row]:
    for owner, channel in _parts(connections, "channels"):
        yield {
            **owner,
            **channel,
            "channel": channel["number"],
            "consumers": len(channel["consumers"]),
            **_counted(channel),
        }


def consumer_rows(connections: Connections) -> Iterator[Row]:
    """Yield the receivers of AMQP 1.0 and the consumers of AMQP 0-9-1; the prefetch of the former is their
    link credit.
    """
    for link in link_rows(connections):
        if link["role"] == "receiver":
            yield {
                **link,
                "protocol": "AMQP 1.0",
                "tag": link["name"],
                "prefetch": link["credit"],
                "unacknowledged": link["unsettled"],
            }
    for owner, channel in _parts(connections, "channels"):
        for consumer in channel["consumers"]:
            yield {**owner, "channel": channel["number"], **consumer, "protocol": "AMQP 0-9-1"}


def _counted(thing: Document) -> Row:
    error = thing["last_error"]
    text = None
    if error is not None:
        text = f"{error['time']} {error['event']}" + (f": {error['text']}" if error.get("text") else "")
    return {**thing["counters"], "last_error": text}


def _parts(connections: Connections, kind: str) -> Iterator[tuple[Row, Document]]:
    for connection in connections:
        owner = {name: connection[name] for name in ("node", "user", "vhost")} | {
            "connection": connection["id"]
        }
        for part in connection.get(kind, ()):
            yield owner, part


class Column(NamedTuple):
    """A description, and the fields of an entry that the column adds up, such as ``weight.ready``."""

    what: str
    fields: tuple[str, ...]

    def value(self, row: Mapping[str, Any]) -> Any:
        """Return what stands in the column; None: a field is unknown."""
        values = [_field(row, each) for each in self.fields]
        return values[0] if len(values) == 1 else None if None in values else sum(values)


def _field(row: Mapping[str, Any], path: str) -> Any:
    found: Any = row
    for name in path.split("."):
        found = None if found is None else found.get(name)
    return found


def columns_of(text: str) -> dict[str, Column]:
    """Parse columns, one a line: ``name: description``, or ``name, name`` without one.

    ``name = field: description`` shows another field, or the sum of fields joined by ``+``. The name of a
    counter that only grows begins with ``+``.
    """
    columns = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        names, _, what = line.removeprefix("+").partition(": ")
        names, _, fields = names.partition(" = ")
        for name in names.split(", "):
            grows = f"total: {what or name.replace('_', ' ')}"
            shown = tuple(fields.split(" + ")) if fields else (name,)
            columns[name] = Column(grows if line.startswith("+") else what, shown)
    return columns


@dataclass(frozen=True, slots=True)
class Listing:
    """One kind of object. `row`: makes a row of an entry of the result; some entries are rows already."""

    noun: str
    columns: Mapping[str, Column]
    default: tuple[str, ...]
    row: Callable[[Mapping[str, Any]], Row] = dict
    from_connections: Callable[[Connections], Iterator[Row]] | None = None
    what: str = ""

    def filled(self, entry: Mapping[str, Any]) -> Row:
        row = self.row(entry)
        shown = {name: each.value(row) for name, each in self.columns.items() if each.fields != (name,)}
        return {**row, **shown}

    @property
    def operation(self) -> Operation | None:
        """None: rows are made of the connections."""
        return OPERATIONS.get(f"list-{self.noun}")

    @property
    def words(self) -> str:
        command = None if self.operation is None else self.operation.command
        return f"{self.noun.removesuffix('s')} list" if command is None else command.words

    @property
    def names_vhost(self) -> bool:
        return any(each.name == "vhost" for each in self._arguments)

    @property
    def flags(self) -> tuple[Argument, ...]:
        """The flags of the operation, which include further entries."""
        return tuple(each for each in self._arguments if each.kind is Kind.FLAG)

    @property
    def _arguments(self) -> tuple[Argument, ...]:
        return () if self.operation is None else self.operation.arguments


_OWNER: Final = """
    node: the node to which the client is connected
    connection: number of the connection on that node
    user, vhost
    channel: number of the channel
"""
_DELIVERIES: Final = """
    +delivered: deliveries that the client must settle
    +delivered_settled: deliveries sent settled, or with no-ack
    +got: messages of basic.get that the client must acknowledge
    +got_settled: messages of basic.get with no-ack
    +redelivered: of these four, those that the queue had delivered before
    +got_nothing: how often basic.get found no message
    +acknowledged
    +requeued: messages that the client returned to the queue
"""
_CLIENT_COUNTERS: Final = f"""
    +published, confirmed
    +rejected: publishes refused because a queue was full or failed
    +unroutable: messages that were routed to no queue
    +returned: of these, those that were returned to the client
    {_DELIVERIES}
    +discarded: messages that the client rejected
    last_error: the last error, and its time
"""
_WAITS: Final = """
    waits: why it waits: a code of docs/waiting.md
    waits_why: the evidence
    waits_for_s: for how many seconds
"""
_POLICY: Final = (
    columns_of("""
        vhost, name, pattern
        apply_to: queues, exchanges or types of queues
        definition
        priority: of several policies that match, the one with the highest applies
    """),
    ("name", "pattern", "apply_to", "definition", "priority"),
)

LISTINGS: Final = (
    Listing(
        "queues",
        columns_of(f"""
            name, vhost
            type: classic, quorum or stream
            durable, auto_delete
            exclusive: only the connection that declared it can use it
            arguments
            messages: ready and unacknowledged messages, and messages_dlx
            messages_ready = message_count
            messages_unacknowledged = messages_unsettled: delivered and not settled
            message_bytes = weight.ready + weight.unsettled: bytes of messages; none for a stream
            message_bytes_ready = weight.ready
            message_bytes_unacknowledged = weight.unsettled
            messages_delayed: messages with a delivery time in the future
            messages_dlx: of a quorum queue: dead letters that their target has not confirmed
            consumers = consumer_count
            single_active_consumer_tag: tag of the active consumer, if the queue has a single one
            delivery_limit: of a quorum queue: failed deliveries that a message may have
            publishers: links of AMQP 1.0 with this target
            leader: the node of its leader; of a classic queue or stream its only node
            members: nodes with a member of it
            online: of these, the nodes that run
            state: running; minority: most nodes are down; down: no leader reached
            policy: the policy that applies to it
            operator_policy: the operator policy that applies to it
            effective_policy_definition: the settings of the two
            ineffective_policy_keys: settings of the two without effect on its type
            declaration_id: of a stream: changes when it is deleted and declared again
            first_offset: of a stream: offset of the oldest stored message
            next_offset: of a stream: offset of the next message
            full: its length limit is reached
            +published: messages that it accepted
            +rejected: publishes refused because it was full
            +dropped: dropped by the length limit, in streams also by the age limit
            +expired
            {_DELIVERIES}
            +discarded: messages that consumers rejected
            +over_delivery_limit: messages that exceeded the delivery limit
            +dead_lettered: messages sent to its dead-letter exchange
        """),
        ("name", "type", "messages", "consumers"),
        queue_row,
    ),
    Listing(
        "exchanges",
        columns_of("""
            name, vhost, type, durable, auto_delete, internal, arguments
            policy: the policy that applies to it
            +published: messages sent to it
            +unroutable: of these, those that were routed to no queue
            +returned: of these, those that were returned to their publisher
        """),
        ("name", "type", "durable"),
    ),
    Listing(
        "bindings",
        columns_of("""
            source_name: name of the exchange
            destination_name
            destination_kind: queue or exchange
            routing_key, arguments
            location: its path at the management node of AMQP 1.0
        """),
        ("source_name", "destination_name", "destination_kind", "routing_key", "arguments"),
        binding_row,
    ),
    Listing("users", columns_of("user, tags, limits"), ("user", "tags", "limits")),
    Listing(
        "permissions",
        columns_of("user, vhost, configure, write, read"),
        ("user", "configure", "write", "read"),
    ),
    Listing(
        "topic-permissions",
        columns_of("user, vhost, exchange, write, read"),
        ("user", "exchange", "write", "read"),
    ),
    Listing(
        "vhosts",
        columns_of("""
            name, description, tags
            default_queue_type: type of queues that are declared without one
            queues: number of queues
            limits
        """),
        ("name", "description", "queues", "limits"),
    ),
    Listing("policies", *_POLICY),
    Listing("operator-policies", *_POLICY),
    Listing(
        "suspended-links",
        columns_of("""
            link: its number, for 'link end-suspended'
            name
            container_id: container-id of its client
            user, vhost
            role: role of its client
            unsettled: number of its stored unsettled deliveries
            age_s: seconds since it was suspended
            left_s: seconds until it expires; none: its timer has not started
        """),
        ("link", "name", "container_id", "user", "vhost", "role", "unsettled", "left_s"),
    ),
    Listing(
        "faults",
        columns_of("""
            fault: its number, for 'fault lift'
            kind, vhost
            queue: a pattern for queues and addresses
            client: a pattern for container-ids and connection names
            link: a pattern for names of links
            count: number of messages, attaches, credit or frames, as requested
            hits: how often the broker committed it
            held: messages, confirms, flows and bytes that it holds back
        """),
        ("fault", "kind", "vhost", "queue", "client", "link", "count", "hits", "held"),
    ),
    Listing(
        "listeners",
        columns_of("node, interface, port, protocol, purpose"),
        ("node", "interface", "port", "protocol", "purpose"),
    ),
    Listing("alarms", columns_of("node, alarm"), ("node", "alarm")),
    Listing(
        "connections",
        columns_of(f"""
            node: the node to which the client is connected
            id: its number on that node, for 'connection close'
            protocol
            peer: the client's address
            user, vhost, state
            client: the client's container-id, or its connection_name
            sessions: number of sessions (AMQP 1.0)
            channels: number of channels (AMQP 0-9-1)
            channel_max, frame_max
            idle_timeout_ms: idle time-out that the client requested
            bytes_in, bytes_out
            writer_waiting_bytes: bytes that the client has not read yet
            {_CLIENT_COUNTERS}
        """),
        ("id", "protocol", "peer", "user", "vhost", "state"),
        from_connections=connection_rows,
        what="connections",
    ),
    Listing(
        "sessions",
        columns_of(f"""
            {_OWNER}
            incoming_window: transfers that the client may send
            remote_incoming_window: transfers that the client accepts
            next_incoming_id, next_outgoing_id
            unsettled_in: deliveries from the client without an outcome
            unsettled_out: deliveries to the client without an outcome
            pending_out: deliveries that wait for the window or the socket
            links: number of links
            transactions: number of open transactions
            {_CLIENT_COUNTERS}
        """),
        (
            *("connection", "channel", "user", "links", "incoming_window", "remote_incoming_window"),
            *("unsettled_in", "unsettled_out"),
        ),
        from_connections=session_rows,
        what="sessions of AMQP 1.0",
    ),
    Listing(
        "links",
        columns_of(f"""
            {_OWNER}
            handle, name
            role: the client's role: sender or receiver
            address, queue, credit, delivery_count, unsettled, available, drain
            queue_credit: messages that the queue may still send to the link
            queue_delivery_count
            pending: deliveries that wait for the window or the socket
            properties
            {_CLIENT_COUNTERS}
            {_WAITS}
        """),
        ("connection", "channel", "name", "role", "queue", "credit", "delivery_count", "unsettled", "waits"),
        from_connections=link_rows,
        what="links of AMQP 1.0",
    ),
    Listing(
        "transactions",
        columns_of(f"""
            {_OWNER}
            id: in hexadecimal
            link: name of its control link
            age_s: seconds since it was declared
            messages: number of messages posted in it
            bytes: bytes of these messages
            deliveries: number of deliveries with an outcome in it
            failed: why it can only be rolled back
        """),
        ("connection", "channel", "user", "id", "age_s", "messages", "bytes", "deliveries"),
        from_connections=transaction_rows,
        what="open transactions of AMQP 1.0",
    ),
    Listing(
        "channels",
        columns_of(f"""
            {_OWNER}
            state
            confirm: publisher confirms are on
            transactional
            unconfirmed: publishes that are not confirmed
            unacknowledged: deliveries that are not acknowledged
            prefetch, global_prefetch
            reader_credit: messages that the connection's reader may pass on before it waits
            consumers: number of consumers
            {_CLIENT_COUNTERS}
            {_WAITS}
        """),
        (
            *("connection", "channel", "user", "state", "unconfirmed", "unacknowledged", "prefetch"),
            *("consumers", "waits"),
        ),
        from_connections=channel_rows,
        what="channels of AMQP 0-9-1",
    ),
    Listing(
        "consumers",
        columns_of(f"""
            {_OWNER}
            protocol
            tag: consumer tag, or name of the link
            queue
            prefetch: prefetch, or credit of the link
            unacknowledged
            {_WAITS}
        """),
        ("connection", "channel", "tag", "queue", "prefetch", "unacknowledged"),
        from_connections=consumer_rows,
        what="consumers of both protocols",
    ),
)


def _arguments(listing: Listing, parser: Parser) -> None:
    columns = parser.add_argument(
        "columns",
        nargs="*",
        metavar="COLUMN",
        help=f"of {', '.join(listing.columns)} (default: {' '.join(listing.default)})",
    )
    # For shell completion; argparse itself cannot check an empty list against choices.
    columns.completions = tuple(listing.columns)  # type: ignore[attr-defined]
    if listing.operation is None or listing.operation.in_vhost or listing.names_vhost:
        add_vhost(parser)
    for each in listing.flags:
        parser.add_argument(f"--{each.name}", action="store_true", help=each.help)
    add_formatter(parser)
    parser.add_argument("--no-header", action="store_true", help="leave out the names of the columns")
    add_where(parser)


def _list(listing: Listing, arguments: argparse.Namespace) -> int:
    columns = chosen_columns(listing, arguments.columns)
    found = _rows(listing, arguments)
    header = not arguments.no_header
    text = tables.render(columns, found, arguments.format, header=header, **on_terminal())
    sys.stdout.write(text)
    return EXIT_OK


def chosen_columns(listing: Listing, written: Sequence[str]) -> tuple[str, ...]:
    """Return the columns to show; dashes count as underscores."""
    columns = tuple(each.replace("-", "_") for each in written)
    for column, given in zip(columns, written, strict=True):
        if column not in listing.columns:
            raise ConfigError(
                f"column '{given}'",
                f"is unknown to {listing.words}",
                hint(column, listing.columns),
            )
    return columns or listing.default


def _rows(listing: Listing, arguments: argparse.Namespace) -> list[Row]:
    if listing.from_connections is None:
        given: dict[str, Any] = {each.name: True for each in listing.flags if getattr(arguments, each.name)}
        if listing.names_vhost:
            given["vhost"] = arguments.vhost
        return [listing.filled(each) for each in ask(arguments, f"list-{listing.noun}", **given)]
    found = list(listing.from_connections(ask(arguments, "connections", where="everywhere")))
    if arguments.vhost is not None:
        found = [row for row in found if row["vhost"] == arguments.vhost]
    return found


def _description(listing: Listing) -> str:
    room = max(map(len, listing.columns))
    lines = [f"  {name:{room}}  {what}".rstrip() for name, (what, _) in listing.columns.items()]
    help = f"List {listing.what}." if listing.operation is None else listing.operation.help
    return "\n".join([f"{help} Columns:", "", *lines])


COMMANDS: Final = tuple(
    Command(
        listing.words,
        partial(_arguments, listing),
        partial(_list, listing),
        _description(listing),
    )
    for listing in LISTINGS
)
