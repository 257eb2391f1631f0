"""The questions that are a list of cases and nothing more, and the answers' own columns and notes.

The function of each says what is asked and why it is measured so; those that compare, or that measure
something other than a load on a broker, have files of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from benchmarks.cases import QUEUE, STREAM, Case, consuming, passing, publishing, run_cases
from benchmarks.measure import STANDARD_COLUMNS, Benchmark, Context, options
from benchmarks.results import Outcome, median_of
from benchmarks.spec import Settle

QUESTIONS: Final[list[Benchmark]] = []
_STOP: Final = "stop a publish case at so many queued messages, for the sake of memory"
_FILL: Final = "messages to fill it with (default 2 000 000, with --quick 600 000)"
_SIDES: Final = ["sending", "receiving", "both"]

_Cases = Callable[[Context], list[Case]]


def _question(
    name: str,
    question: str,
    *,
    warmup_max_s: float = 60.0,
    columns: tuple[str, ...] = STANDARD_COLUMNS,
    finish: Callable[[Context, Outcome], None] = lambda context, outcome: None,
    **known: tuple[Any, ...],
) -> Callable[[_Cases], _Cases]:
    """Make a question of a function that returns its cases.

    Args:
        name: what it is called.
        question: what it asks.
        warmup_max_s: of each case.
        columns: of its table.
        finish: adds to the answer.
        **known: options of the command line.
    """

    def made(cases: _Cases) -> _Cases:
        def run(context: Context) -> Outcome:
            context.warmup_s = min(context.warmup_s, warmup_max_s)
            outcome = Outcome(columns, context.described_settings(), run_cases(context, cases(context)))
            finish(context, outcome)
            return outcome

        QUESTIONS.append(Benchmark(name, question, run, options(**known)))
        return cases

    return made


def size_name(size_bytes: int) -> str:
    """Write a size the way people say it."""
    for unit, name in ((1024 * 1024, "MiB"), (1024, "KiB")):
        if size_bytes >= unit and size_bytes % unit == 0:
            return f"{size_bytes // unit} {name}"
    return f"{size_bytes} B"


def _room_of_backlog(context: Context, outcome: Outcome) -> None:
    backlogs: list[int] = sorted(context.options.backlogs)
    first, last = backlogs[0], backlogs[-1]
    low, high = (
        median_of(row.get("rss_before_mb") for row in outcome.samples if row["case"] == f"{count} queued")
        for count in (first, last)
    )
    if low is not None and high is not None and last > first:
        outcome.notes.append(
            f"A queued message of {context.size_bytes} bytes takes {(high - low) * 1e6 / (last - first):.0f} "
            f"bytes of resident memory ({high:.0f} MB with {last} queued, {low:.0f} MB with {first})."
        )


def _bytes_per_s(context: Context, outcome: Outcome) -> None:
    by_name = {size_name(size): size for size in context.options.sizes}
    for row in outcome.samples:
        if "rate_per_s" in row:
            row["bytes_per_s_mb"] = row["rate_per_s"] * by_name[row["case"]] / 1e6


@_question(
    "publish", "What does it cost to take a message in?", warmup_max_s=0.5, publish_max=(3_000_000, _STOP)
)
def _publish(context: Context) -> list[Case]:
    """One connection, one session, one sending link to one queue that nobody reads.

    Settled: fire and forget. Unsettled: each message is confirmed, and the broker's credit is what limits
    the messages in flight.
    """
    count_max: int = context.options.publish_max
    return [
        publishing(context, "publish settled", settled=True, count_max=count_max),
        publishing(context, "publish unsettled", count_max=count_max),
    ]


@_question(
    "consume", "What does it cost to give a message out?", warmup_max_s=0.3, consume_count=(int, _FILL)
)
def _consume(context: Context) -> list[Case]:
    """A queue is filled first; then one receiving link empties it.

    It settles by range (one disposition for a socket read), each singly, or not at all (pre-settled). The
    window ends before the queue is empty.
    """
    count = _count(context, context.options.consume_count)
    return [consuming(context, f"consume, settle {how.value}", count=count, settle=how) for how in Settle]


def _count(context: Context, asked: int) -> int:
    return asked or (600_000 if context.quick else 2_000_000)


_BOTH: Final[dict[str, dict[str, Any]]] = {
    "unsettled, settle range": {},
    "unsettled, settle each": {"settle": Settle.EACH},
    "settled, presettled": {"settle": Settle.PRESETTLED, "settled": True},
    "unsettled, settle range, durable": {"durable": True},
    "unsettled, settle range, all sections": {"durable": True, "sections": True},
    "unsettled, settle range, mixed sizes": {"mixed": True},
}


@_question("both", "What does a message cost from publish to settlement?")
def _both(context: Context) -> list[Case]:
    """One connection publishes unsettled to a queue, another receives from it and settles, in step.

    At most a few thousand messages are under way, so that the queue stays short. Further cases settle in
    other ways, or send other messages: with the sections that client libraries add, and of sizes that change
    from message to message, so that nothing about a message can be foretold from the one before.
    """
    return [passing(context, name, **what) for name, what in _BOTH.items()]


@_question(
    "latency",
    "How long does a message take at a given rate?",
    rates=([1_000.0, 10_000.0, 50_000.0], "messages a second"),
)
def _latency(context: Context) -> list[Case]:
    """Messages are published at a fixed rate by the clock, each carrying the time at which it was due.

    The receiver reads it. A broker that pauses is charged for every message that was due meanwhile. The load
    process spins on the clock, so that its own waking up is not in the figures; both clocks are one.
    """
    duration_s = max(context.duration_s, 2.0 if context.quick else 5.0)
    return [
        replace(
            passing(context, f"{rate:,.0f} msgs/s", rate_per_s=rate, stamp=True, follow=None),
            floor=("--keep",),
            duration_s=duration_s,
        )
        for rate in context.options.rates
    ]


@_question("sync_publisher", "How fast is a lone publisher that waits for every confirm?")
def _sync_publisher(context: Context) -> list[Case]:
    """One message in flight: the rate is one over the round trip, and batching helps nobody.

    This is what a simple program sees that sends a message and blocks until it is safe.
    """
    return [publishing(context, "one message in flight", in_flight_max=1)]


@_question(
    "links",
    "Does the cost of a message depend on the number of links?",
    links=([1, 10, 100, 1000], "links"),
    sides=(_SIDES, "where there are many links", _SIDES),
    bursts=([32], "messages a turn"),
)
def _links(context: Context) -> list[Case]:
    """1 to 1000 links to one queue: sending, receiving, or on both sides, at most 250 to a session.

    Senders take turns; a turn is `--bursts` messages on one link. A burst of 1 is the worst case for any
    batching, as successive frames always belong to different links; 32 is what many busy clients on one
    connection look like. The queue hands out in turns as well, by its own rules.
    """

    def case(links: int, side: str, burst: int) -> Case:
        sending = links if side in ("sending", "both") else 1
        receiving = links if side in ("receiving", "both") else 1
        name = f"1 link, burst {burst}" if links == 1 else f"{links} links {side}, burst {burst}"
        return passing(context, name, sending=(QUEUE,) * sending, receiving=(QUEUE,) * receiving, burst=burst)

    asked = context.options
    cases = [
        case(links, side, burst) for burst in asked.bursts for side in asked.sides for links in asked.links
    ]
    # One link is the same case on every side: measured once, compared with all.
    return list({one.name: one for one in cases}.values())


@_question(
    "backlog",
    "Does the cost depend on how many lie in the queue?",
    finish=_room_of_backlog,
    backlogs=([10, 1000, 100_000, 1_000_000], "messages in the queue"),
)
def _backlog(context: Context) -> list[Case]:
    """The queue is filled; then as many are published as are delivered and settled.

    Its length stays the same while every message in it passes. Resident memory before the traffic, less that
    of the shortest queue, gives the bytes a queued message takes. The floor keeps no messages: a backlog
    means nothing to it.
    """
    return [
        replace(passing(context, f"{count} queued"), preload=count, floor=None)
        for count in sorted(context.options.backlogs)
    ]


@_question("scatter", "What does a message cost over many queues?", queues=([1, 10, 100, 1000], "queues"))
def _scatter(context: Context) -> list[Case]:
    """1000 queues, each with one sending and one receiving link; successive messages go to successive queues.

    A broker cannot batch then: each message wakes another queue. This is the worst case; most applications
    have a few busy queues and many quiet ones.
    """
    return [
        passing(
            context,
            f"{count} queues",
            sending=[f"{QUEUE}-{number}" for number in range(count)],
            burst=1 if count > 1 else 1024,
        )
        for count in context.options.queues
    ]


@_question(
    "sizes",
    "How do cost and throughput depend on message size?",
    columns=(STANDARD_COLUMNS[0], "bytes_per_s_mb", *STANDARD_COLUMNS[1:]),
    finish=_bytes_per_s,
    sizes=([12, 100, 1024, 10 * 1024, 100 * 1024, 1024 * 1024], "bytes in a message"),
)
def _sizes(context: Context) -> list[Case]:
    """Publish, deliver and settle at sizes from 12 bytes to 1 MiB.

    A message larger than the max-frame-size (128 KiB on the generator's side) goes in several frames both
    ways, and each frame takes one unit of the session window.
    """
    return [passing(context, size_name(size), size_bytes=size) for size in context.options.sizes]


@_question("streams", "What does a stream cost?", warmup_max_s=0.3, stream_count=(int, _FILL))
def _streams(context: Context) -> list[Case]:
    """Publishing into a stream, and reading it from its first message.

    Over one link, over two at once (each gets every message), and in AMQP 0-9-1, where a message is
    converted. A stream keeps what was read, so a window may last as long as there are messages that were not.
    """
    count = _count(context, context.options.stream_count)

    def read(settle: Settle, links: int = 1) -> Case:
        name = f"read, settle {settle.value}" + (f", {links} links" if links > 1 else "")
        return consuming(context, name, count=count, settle=settle, links=links, offset="first")

    cases = (
        publishing(context, "publish settled", settled=True),
        publishing(context, "publish unsettled"),
        read(Settle.PRESETTLED),
        read(Settle.RANGE),
        read(Settle.PRESETTLED, links=2),
        passing(context, "publish and read at the end"),
        passing(context, "the same in AMQP 0-9-1", amqp091=True, in_flight_max=10_000),
    )
    return [replace(case, floor=None, queue_type=STREAM) for case in cases]
