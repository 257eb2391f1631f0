"""What a load process keeps of a recorded run: every message once, within its bound."""

from __future__ import annotations

from amqp10broker.observe.flow_events import FIELDS, PACK, EventKind
from benchmarks import spec
from benchmarks.client_events import SAMPLE_NS, ClientEvents, ClientRecorder
from benchmarks.pace import Pace
from benchmarks.stream import Counts, Stream

ENDPOINT = spec.Endpoint("127.0.0.1", 1)
OFFSET_NS = 1_000_000_000
NAMES = [field.name for field in FIELDS]


def told(events: ClientEvents | bytes) -> list[dict[str, int]]:
    packed = events if isinstance(events, bytes) else events.packed()
    return [
        {name: value for name, value in zip(NAMES, values, strict=True) if value}
        for values in PACK.iter_unpack(packed)
    ]


def test_deliveries_of_one_burst_are_one_event() -> None:
    """Messages that carry the same time are told together; the tables' latencies have each of them."""
    events = ClientEvents(0)
    stream = Stream(1, events)
    stream.sample_deliveries([100, 100, 100, 250], 1000)
    assert told(events) == [
        {"ts_ns": 1000, "kind": 6, "channel": 1, "n": 3, "value_ns": 900},
        {"ts_ns": 1000, "kind": 6, "channel": 1, "n": 1, "value_ns": 750},
    ]
    assert list(stream.delivery_ns) == [900, 900, 900, 750]


def test_confirms_are_told_first_in_first_out_and_none_twice() -> None:
    """A confirm that names part of a batch and the next one is two events; the counts add up."""
    events = ClientEvents(0)
    stream = Stream(0, events)
    pace = Pace(spec.Publish(("q",)), [stream])
    pace.sent(0, 4, 100)
    pace.sent(4, 6, 200)
    pace.confirmed(3, 0, 2, accepted=True, now_ns=1000)
    pace.confirmed(5, 3, 7, accepted=True, now_ns=2000)
    assert [(one["n"], one["value_ns"]) for one in told(events)] == [(3, 900), (1, 1900), (4, 1800)]
    assert sum(one["n"] for one in told(events)) == stream.confirmed == 8


def load_of(*parts: spec.Session) -> spec.Load:
    """Return a load of one connection with two streams."""
    return spec.Load(ENDPOINT, (parts,), streams=2, record=True)


def test_the_events_of_a_window_add_up_to_what_its_edges_counted() -> None:
    """Whatever happens between two edges is told after the first one's time and not after the second's."""
    events = ClientEvents(OFFSET_NS)
    streams = [Stream(0, events), Stream(1, events)]
    what = load_of(
        spec.Session(
            publish=(spec.Publish(("a",), size_bytes=10),), consume=(spec.Consume(("b",), stream=1),)
        )
    )
    recorder = ClientRecorder(what, events, streams)
    assert recorder.due_ns > 2**63, "nothing is due before the load starts"
    recorder.start(1000)
    assert recorder.due_ns == 1000 + SAMPLE_NS
    streams[0].published, streams[1].delivered = 5, 1
    recorder.edge(2000)
    streams[0].published = 11
    recorder.sample(3000)
    streams[1].delivered = 8
    recorder.edge(4000)
    streams[0].published = 12
    recorded = recorder.end(5000)
    first, second = recorded.edges
    assert (first.wall_ns, second.wall_ns) == (OFFSET_NS + 2000, OFFSET_NS + 4000)
    assert second.counts == (Counts(11, 0, 0, 0, 0), Counts(0, 0, 0, 8, 0))
    inside = [one for one in told(recorded.events) if first.wall_ns < one["ts_ns"] <= second.wall_ns]
    assert sum(one.get("n", 0) for one in inside if one["kind"] == EventKind.CLIENT_SENT) == 11 - 5
    assert sum(one.get("n", 0) for one in inside if one["kind"] == EventKind.CLIENT_RECEIVED) == 8 - 1
    assert sum(one.get("bytes", 0) for one in inside if one["kind"] == EventKind.CLIENT_SENT) == 60
    sent = [one for one in told(recorded.events) if one["kind"] == EventKind.CLIENT_SENT]
    assert sum(one["value_ns"] for one in sent) == 5000 - 1000, "elapsed times leave no gap"
    assert sum(one.get("n", 0) for one in sent) == recorded.totals[0].published == 12
