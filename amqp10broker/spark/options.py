"""Options of the data source: parsed from Spark's map of texts to records.

Spark passes names in lower case or as written, and values as text. Every fault is an `OptionError` with the
option, its value and the allowed values; errors and `repr` never contain a password. One table states which
option belongs to which use; `docs/spark.md` explains each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime
from enum import Enum, Flag, auto
from typing import Any, Final

from amqp10broker.client.options import UrlError, parse_url, shortened, text_fault
from amqp10broker.dataclass import dataclass
from amqp10broker.spark.errors import OptionError, SparkSourceError

_START: Final = "start"
_LOST: Final = "lost"
_PIECES: Final = "pieces"
_INITIAL: Final = "initial"
_ID: Final = "id"


@dataclass(frozen=True, slots=True)
class Cut:
    """How the batch that ends at an offset was planned. `lost`: number of offsets before `start` that should
    have been read, and no longer existed at planning.
    """

    start: int
    pieces: int
    lost: int = 0


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A place in a stream between two batches.

    Attributes:
        cut: of the batch that ends here. None where a query begins, and for offsets written by hand.
        initial: a query without checkpoint begins here. Spark requests it again when it repeats the first
            batch, and it may differ by then.
    """

    next: int
    cut: Cut | None = None
    initial: bool = False
    declaration_id: str | None = None

    def is_of_another(self, declaration_id: str | None) -> bool:
        return None not in (declaration_id, self.declaration_id) and declaration_id != self.declaration_id

    def written(self, stream: str) -> dict[str, Any]:
        found: dict[str, Any] = {stream: self.next}
        if self.declaration_id is not None:
            found[f"{stream}.{_ID}"] = self.declaration_id
        if self.cut is not None:
            found[f"{stream}.{_START}"] = self.cut.start
            found[f"{stream}.{_PIECES}"] = self.cut.pieces
            if self.cut.lost:
                found[f"{stream}.{_LOST}"] = self.cut.lost
        if self.initial:
            found[f"{stream}.{_INITIAL}"] = True
        return found


def is_of(stream: str, written: Mapping[str, Any]) -> bool:
    """Return whether a JSON object has exactly the keys of an offset of this stream."""
    more = {f"{stream}.{key}" for key in (_START, _LOST, _PIECES, _INITIAL, _ID)}
    return stream in written and written.keys() <= {stream, *more}


def read_offset(stream: str, written: Mapping[str, Any]) -> StreamOffset:
    """Parse an offset that Spark stored for this stream. Raises `SparkSourceError` if it belongs to another
    stream, or its values are invalid.
    """
    if not is_of(stream, written):
        raise SparkSourceError(
            f"the checkpoint belongs to {', '.join(map(repr, written))}, and the option stream is "
            f"'{stream}': use another checkpointLocation"
        )

    def number(key: str) -> int:
        value = written.get(key, 0)
        if type(value) is not int or value < 0:
            raise SparkSourceError(
                f"the checkpoint says {value!r} for '{key}', which must be a number from 0: restore the "
                "checkpoint, or begin anew with another checkpointLocation"
            )
        return value

    cut = None
    if f"{stream}.{_START}" in written:
        cut = Cut(*(number(f"{stream}.{key}") for key in (_START, _PIECES, _LOST)))
    declared = written.get(f"{stream}.{_ID}")
    return StreamOffset(
        number(stream),
        cut,
        initial=bool(written.get(f"{stream}.{_INITIAL}")),
        declaration_id=None if declared is None else str(declared),
    )


_LONG_MAX: Final = 2**63 - 1
_TIME_MAX_S: Final = 365 * 86_400.0
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?")
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class StartKind(Enum):
    EARLIEST = auto()
    LATEST = auto()
    OFFSET = auto()
    TIMESTAMP = auto()


@dataclass(frozen=True, slots=True)
class StartPosition:
    """Where a source begins. `value` is an offset, or milliseconds since 1970; 0 for the other kinds."""

    kind: StartKind
    value: int = 0


EARLIEST: Final = StartPosition(StartKind.EARLIEST)
LATEST: Final = StartPosition(StartKind.LATEST)


def text_value(name: str, text: str) -> str:
    """Accept any text but the empty one."""
    if not text:
        raise OptionError(name, "is empty", "give a value, or leave the option out")
    return secret_value(name, text)


def secret_value(name: str, text: str) -> str:
    """Accept any text, including the empty one, and never include it in an error."""
    if fault := text_fault(text):
        raise OptionError(name, fault.problem, fault.allowed)
    return text


def flag(name: str, text: str) -> bool:
    match text.strip().lower():
        case "true":
            return True
        case "false":
            return False
        case _:
            raise OptionError(name, f"is '{shortened(text)}'", "must be true or false")


def integer(least: int, most: int = _LONG_MAX) -> Callable[[str, str], int]:
    def parse(name: str, text: str) -> int:
        allowed = f"must be an integer from {least}" + ("" if most == _LONG_MAX else f" to {most}")
        try:
            value = int(text.strip())
        except ValueError:
            raise OptionError(name, f"is '{shortened(text)}'", allowed) from None
        if not least <= value <= most:
            raise OptionError(name, f"is {shortened(str(value))}", allowed)
        return value

    return parse


def choice(allowed: Sequence[str]) -> Callable[[str, str], str]:
    def parse(name: str, text: str) -> str:
        for word in allowed:
            if word.lower() == text.strip().lower():
                return word
        raise OptionError(name, f"is '{shortened(text)}'", f"must be {' or '.join(allowed)}")

    return parse


def seconds(name: str, text: str) -> float:
    """Parse a time such as ``30s``, ``500ms``, ``2m``; a bare number is seconds. Above 0, up to a year."""
    found = _DURATION.fullmatch(text.strip().lower())
    value = float(found[1]) * _UNIT_S[found[2] or "s"] if found else 0.0
    if not 0 < value <= _TIME_MAX_S:
        raise OptionError(
            name,
            f"is '{shortened(text)}'",
            "must be a time above 0 such as 30s, 500ms or 2m, and no more than a year",
        )
    return value


def starting_offsets(name: str, text: str, stream: str) -> StartPosition:
    """Parse ``earliest``, ``latest``, a number, or ``{"STREAM": number}``."""
    match text.strip().lower():
        case "earliest":
            return EARLIEST
        case "latest":
            return LATEST
        case _:
            return StartPosition(StartKind.OFFSET, _offset(name, text, stream, "earliest, latest"))


def ending_offsets(name: str, text: str, stream: str) -> int | None:
    """Parse ``latest`` (None), a number, or ``{"STREAM": number}``: the first offset that is not read."""
    if text.strip().lower() == "latest":
        return None
    return _offset(name, text, stream, "latest")


def _offset(name: str, text: str, stream: str, words: str) -> int:
    allowed = f'must be {words}, an offset from 0 such as 1000, or {{"{stream}": 1000}}'
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise OptionError(name, f"is '{shortened(text)}'", allowed) from None
    if isinstance(value, dict):
        if not is_of(stream, value):  # progress and checkpoint contain more than the number
            raise OptionError(
                name, f"is {shortened(text)}, which does not name the stream '{stream}' alone", allowed
            )
        value = value[stream]
    if type(value) is not int or not 0 <= value <= _LONG_MAX:
        raise OptionError(name, f"is '{shortened(text)}'", allowed)
    return value


def timestamp_ms(name: str, text: str) -> int:
    """Parse milliseconds since 1970, or ISO 8601 with a zone: ``2026-01-31T12:00:00Z``."""
    allowed = "must be milliseconds since 1970, or a time with its zone such as 2026-01-31T12:00:00Z"
    written = text.strip()
    if written.isdecimal():
        return integer(0)(name, written)
    try:
        moment = datetime.fromisoformat(written)
    except ValueError:
        raise OptionError(name, f"is '{shortened(text)}'", allowed) from None
    if moment.tzinfo is None:
        raise OptionError(name, f"is '{shortened(text)}', without a zone", allowed)
    value = round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)
    if value < 0:
        raise OptionError(name, f"is '{shortened(text)}', before 1970", allowed)
    return value


FORMAT: Final = "amqp10"
_UINT_MAX: Final = 4_294_967_295
_CREDIT_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How to reach the broker.

    Attributes:
        vhost: None for the broker's default.
        username: None for mechanisms that need none.
        ca_file: certificate authority of the broker; None for the system's own.
    """

    host: str
    port: int
    tls: bool
    vhost: str | None
    username: str | None
    password: str | None = field(repr=False)
    mechanism: str
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    retry_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Options of a source that reads a stream.

    Attributes:
        end_offset: the first that a batch query does not read; None for the current end.
        max_offsets_per_trigger: None for no limit.
        min_partitions: None for as many as Spark runs at a time.
    """

    connection: ConnectionOptions
    stream: str
    start: StartPosition
    end_offset: int | None
    max_offsets_per_trigger: int | None
    min_partitions: int | None
    fail_on_data_loss: bool
    link_credit: int
    arrow_batch_rows: int
    idle_timeout_s: float
    filter: str | None
    pushdown: bool


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """Options of a source that takes messages out of a classic or quorum queue."""

    connection: ConnectionOptions
    queue: str
    spool_location: str
    max_messages_per_trigger: int
    deduplicate: bool
    min_partitions: int | None
    link_credit: int
    arrow_batch_rows: int
    idle_timeout_s: float


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Options of a sink. `address`: AMQP 1.0 address such as ``/queues/orders``; excludes the next two."""

    connection: ConnectionOptions
    address: str | None
    exchange: str | None
    routing_key: str | None
    durable: bool
    max_in_flight: int
    mandatory: bool
    idle_timeout_s: float


class Use(Flag):
    STREAM_BATCH = 1
    STREAM_STREAMING = 2
    QUEUE_BATCH = 4
    QUEUE_STREAMING = 8
    SINK_BATCH = 16
    SINK_STREAMING = 32
    STREAM = 3
    QUEUE = 12
    BATCH = 5
    SOURCE = 15
    SINK = 48
    ANY = 63


_USE_WORDS: Final[Mapping[Use, str]] = {
    Use.STREAM_BATCH: "batch queries of a stream",
    Use.STREAM_STREAMING: "streaming queries of a stream",
    Use.STREAM: "streams",
    Use.QUEUE: "queues",
    Use.SOURCE: "sources",
    Use.SINK: "sinks",
}


@dataclass(frozen=True, slots=True)
class _Option:
    use: Use
    parse: Callable[[str, str], Any]
    default: Any = None


_OPTIONS: Final[Mapping[str, _Option]] = {
    "url": _Option(Use.ANY, text_value),
    "vhost": _Option(Use.ANY, text_value),
    "username": _Option(Use.ANY, text_value),
    "password": _Option(Use.ANY, secret_value),
    "saslMechanism": _Option(Use.ANY, choice(("PLAIN", "ANONYMOUS", "EXTERNAL"))),
    "tls.caFile": _Option(Use.ANY, text_value),
    "tls.certificateFile": _Option(Use.ANY, text_value),
    "tls.keyFile": _Option(Use.ANY, text_value),
    "retryTimeout": _Option(Use.ANY, seconds, 30.0),
    "idleTimeout": _Option(Use.ANY, seconds, 30.0),
    "stream": _Option(Use.STREAM, text_value),
    "queue": _Option(Use.QUEUE, text_value),
    "linkCredit": _Option(Use.SOURCE, integer(1, _CREDIT_MAX), 1000),
    "arrowBatchSize": _Option(Use.SOURCE, integer(1, _CREDIT_MAX), 4096),
    "minPartitions": _Option(Use.SOURCE, integer(1, 100_000)),
    # These two are parsed when the name of the stream is known.
    "startingOffsets": _Option(Use.STREAM, lambda name, text: text),
    "endingOffsets": _Option(Use.STREAM_BATCH, lambda name, text: text),
    "startingTimestamp": _Option(Use.STREAM, timestamp_ms),
    "maxOffsetsPerTrigger": _Option(Use.STREAM_STREAMING, integer(1)),
    "failOnDataLoss": _Option(Use.STREAM, flag, True),
    "filter": _Option(Use.STREAM, text_value),
    "pushdown": _Option(Use.STREAM_BATCH, flag, False),
    "spoolLocation": _Option(Use.QUEUE, text_value),
    "maxMessagesPerTrigger": _Option(Use.QUEUE, integer(1, _UINT_MAX), 10_000),
    "deduplicate": _Option(Use.QUEUE, choice(("none", "messageId")), "none"),
    "address": _Option(Use.SINK, text_value),
    "exchange": _Option(Use.SINK, secret_value),
    "routingKey": _Option(Use.SINK, secret_value),
    "durable": _Option(Use.SINK, flag, True),
    "maxInFlight": _Option(Use.SINK, integer(1, _CREDIT_MAX), 1000),
    "mandatory": _Option(Use.SINK, flag, True),
}
_WRITTEN: Final[Mapping[str, str]] = {name.lower(): name for name in _OPTIONS}
# Spark adds some of its own options to the same map.
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})


def parse_source(given: Mapping[str, str], *, streaming: bool) -> StreamOptions | QueueOptions:
    """Parse the options of ``spark.read`` or ``spark.readStream``; the case of names does not matter. Raises
    `OptionError` if one is unknown, missing, wrong, or contradicts another.
    """
    names = {name.lower() for name in given}
    if "stream" in names and "queue" in names:
        raise OptionError("queue", "is given together with stream", "give exactly one of the two")
    if "stream" in names:
        return _stream(_Values(given, Use.STREAM_STREAMING if streaming else Use.STREAM_BATCH))
    if "queue" in names:
        return _queue(_Values(given, Use.QUEUE_STREAMING if streaming else Use.QUEUE_BATCH))
    _Values(given, Use.SOURCE)  # a misspelt name is a better reason than a missing one
    raise OptionError(
        "stream", "is missing", 'give .option("stream", NAME) for a stream, or "queue" for any other queue'
    )


def parse_sink(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Parse the options of ``DataFrame.write`` or ``writeStream``; the case of names does not matter. Raises
    `OptionError` if one is unknown, missing, wrong, or contradicts another.
    """
    values = _Values(given, Use.SINK_STREAMING if streaming else Use.SINK_BATCH)
    for name in ("exchange", "routingKey"):
        values.exclude("address", name)
    return SinkOptions(
        connection=_connection(values),
        address=values["address"],
        exchange=values["exchange"],
        routing_key=values["routingKey"],
        durable=values["durable"],
        max_in_flight=values["maxInFlight"],
        mandatory=values["mandatory"],
        idle_timeout_s=values["idleTimeout"],
    )


def check_at_load(given: Mapping[str, str]) -> None:
    """Reject options that neither a batch nor a streaming query accepts, before the kind of query is known.

    For a table that is being created the map contains more than options, and options may be added later, so
    it is not checked then. Raises `OptionError` if neither kind of query accepts these options.
    """
    if any(name.lower() == "provider" or name.lower().startswith("option.") for name in given):
        return
    try:
        parse_source(given, streaming=False)
    except OptionError as of_batch:
        try:
            parse_source(given, streaming=True)
        except OptionError as of_streaming:
            option = _OPTIONS.get(of_batch.option)
            if option is not None and not option.use & Use.BATCH:
                raise of_streaming from None  # the error of the batch query is not the cause
            raise of_batch from None


class _Values:
    def __init__(self, given: Mapping[str, str], use: Use) -> None:
        self._values: dict[str, Any] = {}
        for written, text in given.items():
            if written.lower() in _SPARKS_OWN:
                continue
            name = _known(written, use)
            if name in self._values:
                raise OptionError(name, "is given twice", "give it once; case does not matter")
            self._values[name] = _OPTIONS[name].parse(name, str(text))

    def __getitem__(self, name: str) -> Any:
        return self._values.get(name, _OPTIONS[name].default)

    def given(self, name: str) -> bool:
        return name in self._values

    def need(self, name: str, allowed: str) -> Any:
        if name not in self._values:
            raise OptionError(name, "is missing", allowed)
        return self._values[name]

    def exclude(self, one: str, other: str) -> None:
        if one in self._values and other in self._values:
            raise OptionError(other, f"is given together with {one}", "give one of the two")


def _known(written: str, use: Use) -> str:
    name = _WRITTEN.get(written.lower())
    if name is None:
        if written.lower() == "path":
            raise OptionError(
                "path",
                "is given",
                'is unknown: use load() and save() without path, and .option("stream", NAME)',
            )
        raise OptionError(written, "is unknown", _suggestion(written, use))
    option = _OPTIONS[name]
    if not option.use & use:
        raise OptionError(name, "does not apply here", f"it is for {_USE_WORDS[option.use]} only")
    return name


def _suggestion(written: str, use: Use) -> str:
    from difflib import get_close_matches

    usable = [name for name, option in _OPTIONS.items() if option.use & use]
    near = get_close_matches(written.lower(), [name.lower() for name in usable], n=1)
    if near:
        return f"did you mean {_WRITTEN[near[0]]}?"
    return f"known here: {', '.join(sorted(usable, key=str.lower))}"


def _connection(values: _Values) -> ConnectionOptions:
    try:
        url = parse_url(values.need("url", "give amqp://host:port or amqps://host:port"))
    except UrlError as fault:
        raise OptionError("url", fault.problem, fault.allowed) from None
    if url.vhost is not None and values.given("vhost"):
        raise OptionError("vhost", "is given, and url names a virtual host, too", "give it in one place")
    if url.user is not None and values.given("username"):
        raise OptionError("username", "is given, and url names a user, too", "give it in one place")
    if url.password is not None and values.given("password"):
        raise OptionError("password", "is given, and url has a password, too", "give it in one place")
    username = url.user if url.user is not None else values["username"]
    password = url.password if url.password is not None else values["password"]
    mechanism = values["saslMechanism"] or ("PLAIN" if username else "ANONYMOUS")
    if mechanism == "PLAIN":
        if username is None:
            raise OptionError("username", "is missing", "saslMechanism PLAIN needs username and password")
        if password is None:
            raise OptionError("password", "is missing", f"give the password of user '{username}'")
    elif username is not None or password is not None:
        raise OptionError(
            "saslMechanism",
            f"is {mechanism}, and a user or password is given",
            "use PLAIN, or leave them out",
        )
    for name in ("tls.caFile", "tls.certificateFile", "tls.keyFile"):
        if values.given(name) and not url.tls:
            raise OptionError(name, "is given, and url begins with amqp://", "use amqps://, or leave it out")
    if values.given("tls.keyFile"):
        values.need("tls.certificateFile", "tls.keyFile belongs to it; give both")
    if mechanism == "EXTERNAL":
        values.need("tls.certificateFile", "saslMechanism EXTERNAL logs in with it; use amqps:// and give it")
    return ConnectionOptions(
        host=url.host,
        port=url.port,
        tls=url.tls,
        vhost=url.vhost or values["vhost"],
        username=username,
        password=password,
        mechanism=mechanism,
        ca_file=values["tls.caFile"],
        certificate_file=values["tls.certificateFile"],
        key_file=values["tls.keyFile"],
        retry_timeout_s=values["retryTimeout"],
    )


def _stream(values: _Values) -> StreamOptions:
    stream = values["stream"]
    values.exclude("startingOffsets", "startingTimestamp")
    start = EARLIEST
    if values.given("startingOffsets"):
        start = starting_offsets("startingOffsets", values["startingOffsets"], stream)
    elif values.given("startingTimestamp"):
        start = StartPosition(StartKind.TIMESTAMP, values["startingTimestamp"])
    end = None
    if values.given("endingOffsets"):
        end = ending_offsets("endingOffsets", values["endingOffsets"], stream)
    if start.kind is StartKind.OFFSET and end is not None and end < start.value:
        raise OptionError(
            "endingOffsets", f"is {end}, before startingOffsets {start.value}", "must not be before the start"
        )
    return StreamOptions(
        connection=_connection(values),
        stream=stream,
        start=start,
        end_offset=end,
        max_offsets_per_trigger=values["maxOffsetsPerTrigger"],
        min_partitions=values["minPartitions"],
        fail_on_data_loss=values["failOnDataLoss"],
        link_credit=values["linkCredit"],
        arrow_batch_rows=values["arrowBatchSize"],
        idle_timeout_s=values["idleTimeout"],
        filter=values["filter"],
        pushdown=values["pushdown"],
    )


def _queue(values: _Values) -> QueueOptions:
    return QueueOptions(
        connection=_connection(values),
        queue=values["queue"],
        spool_location=values.need(
            "spoolLocation",
            "give a folder that the driver and all workers see: messages stand there before they are settled",
        ),
        max_messages_per_trigger=values["maxMessagesPerTrigger"],
        deduplicate=values["deduplicate"] == "messageId",
        min_partitions=values["minPartitions"],
        link_credit=values["linkCredit"],
        arrow_batch_rows=values["arrowBatchSize"],
        idle_timeout_s=values["idleTimeout"],
    )
