"""Every layout of the package: values come back as they were, and other bytes raise `BadBytes` only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amqp10broker import layout
from amqp10broker.cluster import hello, reply_queues
from amqp10broker.cluster.remote_queue import messages as link_codec
from amqp10broker.layout import BadBytes, Codec, Field, Fixed, Layout, Many, OneOf, Varying
from amqp10broker.message.filters.filter_set import Filters, from_amqp10
from amqp10broker.message.filters.stream_filters import AtTime, BloomFilter, Interval, Offset, OffsetWord
from amqp10broker.protocols.amqp10.types import Described, Symbol
from amqp10broker.queues import commands as c
from amqp10broker.queues import commands as e
from amqp10broker.queues import layouts
from amqp10broker.queues.classic import durability as classic_records
from amqp10broker.queues.quorum import commands, snapshot, state_transfer
from amqp10broker.queues.quorum.consumer import ConsumerSelection
from amqp10broker.queues.settings import Overflow, QueueSettings, RetryType
from amqp10broker.raft import messages
from amqp10broker.raft.messages import Append, Configuration, Kind, run_of

MODULES: tuple[ModuleType, ...] = (
    layouts, classic_records, commands, snapshot, messages, link_codec, hello,
    reply_queues, state_transfer,
)  # fmt: skip


def codecs_of(modules: tuple[ModuleType, ...]) -> Iterator[Any]:
    """Return each layout of the modules once: by a name of its own, or in a table."""
    seen: set[Codec[Any]] = set()
    for module in modules:
        for name, value in vars(module).items():
            for each in value.values() if isinstance(value, Mapping) else [value]:
                if isinstance(each, Codec) and each not in seen:
                    seen.add(each)
                    yield pytest.param(each, id=f"{module.__name__.rpartition('.')[2]}.{name}: {each.name}")


CODECS = list(codecs_of(MODULES))
CODES = {"B": 8, "H": 16, "I": 32, "Q": 64}
SQL = Described(Symbol("amqp:sql-filter"), "properties.subject = 'x'")
NUMBERS = st.integers(0, 2**64 - 1)
VARYING: dict[Varying, st.SearchStrategy[Any]] = {
    layout.BYTES: st.binary(max_size=8),
    layout.REST: st.binary(max_size=8),
    layout.TEXT: st.text(st.characters(codec=None), max_size=8),
    layout.NUMBERS: st.lists(NUMBERS, max_size=5) | st.builds(range, st.integers(0, 9), st.integers(9, 20)),
    layout.BLOBS: st.lists(st.binary(max_size=8), max_size=4).map(tuple),
    layouts.MESSAGES: st.lists(
        st.tuples(st.sampled_from((b"\x00Su", b"\x91abc")), st.binary(max_size=8)), max_size=4
    ),
    layouts.SETTINGS: st.builds(
        QueueSettings,
        overflow=st.sampled_from(Overflow),
        retry_type=st.sampled_from(RetryType),
        delivery_limit=st.none() | st.integers(0, 9),
        dead_letter_exchange=st.none() | st.text(max_size=3),
    ),
    classic_records.COLUMN: st.none() | st.lists(NUMBERS, max_size=5),
    snapshot.COLUMN: st.lists(st.integers(0, 3) | NUMBERS, max_size=5),
    snapshot.INDEXES: st.lists(
        NUMBERS.filter(lambda number: number < 2**64 - 1), unique=True, max_size=5
    ).map(sorted),
    snapshot.UNSETTLED: st.dictionaries(NUMBERS, NUMBERS, max_size=3),
    snapshot.SELECTION: st.none(),
    commands.FILTERS: st.none() | st.binary(min_size=1, max_size=5),
    link_codec.FILTERS: st.none()
    | st.just(from_amqp10({Symbol("f"): SQL}).filters)
    | st.builds(
        Filters,
        st.sampled_from((*OffsetWord, Offset(7), AtTime(1234), Interval(600_000), None)),
        st.none() | st.just(BloomFilter(("a", "b"), True)),
        st.none(),
        st.none() | st.integers(0, 99),
    ),
}


def items(field: Fixed) -> Iterator[st.SearchStrategy[Any]]:
    # A choice is an index of a tuple.
    choices = {int(item): name for name, item in re.findall(r"(_\d+)\[v(\d+)\]", source_of(field))}
    for at, (size, each) in enumerate(re.findall(r"(\d*)(\D)", field.code)):
        if each == "s":
            yield st.binary(min_size=int(size), max_size=int(size))
        elif each == "?":
            yield st.booleans()
        elif each == "q":
            yield st.integers(-(2**63), 2**63 - 1)
        elif at in choices:
            yield st.integers(0, len(layout._GLOBALS[choices[at]]) - 1)
        else:
            yield st.integers(0, 2 ** CODES[each] - 1)


def source_of(field: Fixed) -> str:
    return field.unpack.format(*(f"v{at}" for at in range(field.items)))


@cache
def values_of(field: Field) -> st.SearchStrategy[Any]:
    match field:
        case Fixed():
            names = ", ".join(f"v{at}" for at in range(field.items))
            made_of = eval(f"lambda {names}: {source_of(field)}", layout._GLOBALS)
            return st.tuples(*items(field)).map(lambda values: made_of(*values))
        case Varying():
            return VARYING[field]
        case Many():
            drawn = st.lists(values_of(field._item), min_size=0, max_size=3)
            return drawn.map(lambda values: field._into(values))
        case OneOf():
            return st.one_of(*map(values_of, field.layouts.values()))
        case Layout():
            drawn = st.tuples(*map(values_of, fields_of(field).values()))
            return drawn.map(lambda values: made(field, values)).filter(lambda value: value is not None)
        case _:
            raise AssertionError(field)


def _configuration(voters: tuple[int, ...], learners: tuple[int, ...]) -> Configuration:
    members = sorted({*voters, *learners} - {0})
    return Configuration(tuple(members[: len(voters)]), tuple(members[len(voters) :]))


def _append(sender: int, to: int, term: int, index: int, prev_term: int, commit: int, runs: Any) -> Append:
    index, newest = min(index, 2**40), min(prev_term, 2**40)
    append = Append(sender, to, 2**60, index, newest, commit)
    for run in runs:
        newest += run.term % 3
        append.runs += (run._replace(first=index + 1, term=newest),)
        index += len(run.payloads)
    return append


def _run(first: int, term: int, kind: Kind, payloads: tuple[bytes, ...]) -> Any:
    entries = payloads or (b"",)
    return run_of(first, term, Kind.COMMAND if kind is Kind.CONFIG else kind, entries)


def _identity(node: int, incarnation: int, used: int, cluster: str, name: str) -> hello.Identity:
    cluster, name = (text.encode("ascii", "ignore").hex() for text in (cluster, name))
    return hello.Identity(node, name or "n", incarnation, cluster, used)


AT_ODDS: dict[type, Any] = {
    Configuration: _configuration, Append: _append, messages.Run: _run, hello.Identity: _identity,
}  # fmt: skip
"""Makes records of fields that would not go together."""


def fields_of(messages: Layout[Any]) -> dict[str, Field]:
    found: dict[str, Field] = {}
    for run, name, field in messages._parts:
        found |= dict(run)
        if field is not None:
            found[name] = field
    return found


def made(field: Layout[Any], values: tuple[Any, ...]) -> Any:
    """Make a record of its fields, or None if they are at odds."""
    if field.record is tuple:
        return values
    if field.record in AT_ODDS:
        return AT_ODDS[field.record](*values)
    named = dict(zip(fields_of(field), values, strict=True))
    for numbers, bodies in (("ids", "messages"), ("keys", "messages")):
        if numbers in named and bodies in named:
            shorter = min(len(named[numbers]), len(named[bodies]))
            named |= {numbers: named[numbers][:shorter], bodies: named[bodies][:shorter]}
    try:
        return field.record(**named) if field._make is None else field._make(*named.values())
    except ValueError:
        return None


def plain(value: Any) -> Any:
    """Convert a value to a form that compares by its parts."""
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, [plain(getattr(value, each.name)) for each in fields(value)]
    if isinstance(value, SimpleNamespace | ConsumerSelection):
        value = {name: getattr(value, name) for name in getattr(value, "__dict__", ("wanted", "at", "ends"))}
    if isinstance(value, dict):
        return [(plain(key), plain(item)) for key, item in value.items()]
    if isinstance(value, list | range | tuple):
        return [plain(item) for item in value]
    return value


FEW = settings(max_examples=25, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True, scope="module")
def small_queues() -> Iterator[None]:
    """Damaged bytes may encode a very long queue."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot, "LIVE_MAX", 1000)
        yield


@pytest.mark.parametrize("codec", CODECS)
@FEW
@given(data=st.data())
def test_a_value_comes_back_as_it_was(codec: Codec[Any], data: st.DataObject) -> None:
    value = data.draw(values_of(codec))
    encoded = codec.encode(value)
    found = codec.decode(encoded)
    assert plain(found) == plain(value)
    assert codec.encode(found) == encoded


@pytest.mark.parametrize("codec", CODECS)
@FEW
@given(data=st.data())
def test_damaged_bytes_are_read_or_refused(codec: Codec[Any], data: st.DataObject) -> None:
    """Bytes of a valid encoding are changed, cut or added; other bytes are random."""
    damaged = bytearray(codec.encode(data.draw(values_of(codec))))
    for _ in range(data.draw(st.integers(0, 3)) if damaged else 0):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    for body in (
        bytes(damaged),
        bytes(damaged[:cut]),
        bytes(damaged) + b"\0",
        data.draw(st.binary(max_size=60)),
    ):
        try:
            codec.decode(body)
        except BadBytes:
            continue


def test_bytes_behind_the_end_are_refused() -> None:
    with pytest.raises(BadBytes, match="malformed PeerId: 2 bytes stand behind the end"):
        layouts.PEER.decode(layouts.PEER.encode(c.PeerId(1, 2, 3)) + b"xx")


@pytest.mark.parametrize("size", [1, 1000, 70_000])
def test_a_number_of_values_that_are_not_there_is_refused_at_once(size: int) -> None:
    with pytest.raises(BadBytes):
        Many(layout.U64).decode(b"\xff\xff\xff\xff" + bytes(size))


def test_a_tag_that_is_not_known_is_refused() -> None:
    with pytest.raises(BadBytes, match="99 is not the tag of any effect of a queue"):
        layouts.EFFECT.decode(b"\x63" + bytes(40))


def test_a_number_that_does_not_fit_is_a_fault_of_the_caller() -> None:
    with pytest.raises(layout.struct.error):
        layouts.PEER.encode(c.PeerId(-1, 0, 0))


REQUEST = c.RequestRef(c.PeerId(2, 3, 4), 1)
SUBSCRIBE = c.Subscribe(c.ConsumerRef(c.PeerId(2, 3, 4), 1), False)


@pytest.mark.parametrize("commands", [[], [c.Purge(REQUEST)], [SUBSCRIBE]])
def test_only_browsers_browse(commands: list[c.Command]) -> None:
    """Their commands are executed without the log."""
    browse = link_codec.BODIES[link_codec.FrameKind.BROWSE]
    with pytest.raises(BadBytes, match="no command, or one that is not of a browser"):
        browse.decode(browse.encode(link_codec.Browse(1, commands)))


def test_a_node_sends_commands_of_sessions_only() -> None:
    letters = link_codec.BODIES[link_codec.FrameKind.COMMANDS]
    body = letters.encode(link_codec.CommandBatch(1, 1, 0, [c.Touch()]))
    with pytest.raises(BadBytes, match="13 is not the tag of any command of a session"):
        letters.decode(body[:-1] + b"\x0d")


def test_the_position_in_a_stream_is_that_of_the_filters() -> None:
    letters = link_codec.BODIES[link_codec.FrameKind.COMMANDS]
    wanted = Filters(Offset(7), None, None, None)
    subscribe = c.Subscribe(SUBSCRIBE.consumer, False, position=Offset(7), filters=wanted, enqueued_time=True)
    batch = link_codec.CommandBatch(1, 1, 0, [subscribe])
    assert letters.decode(letters.encode(batch)).commands == [subscribe]


def test_more_messages_than_a_short_number_counts() -> None:
    messages = [(number.to_bytes(3, "big"), b"") for number in range(70_000)]
    deliver = e.Deliver(SUBSCRIBE.consumer, range(70_000), messages, 0)
    found = layouts.EFFECT.decode(layouts.EFFECT.encode(deliver))
    assert found.messages == messages
