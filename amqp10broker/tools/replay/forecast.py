"""Forecasts the effect of other settings on recorded publishers and consumers.

Several settings and many recordings make one table; each recording is processed alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from heapq import heappop, heappush
from itertools import count, product
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BrokerError
from amqp10broker.observe.frames.records import NoFrames, Record, read_lines
from amqp10broker.protocols.amqp10.credit import INITIAL_DELIVERY_COUNT, ReceiverCredit, SenderCredit
from amqp10broker.protocols.connection import WireProtocol
from amqp10broker.tools.replay.pace import (
    MESSAGES_MIN,
    Habits,
    Pace,
    PublisherWait,
    RecordedConsumer,
    RecordedPublisher,
    RecordedSession,
    SimulationResult,
    Work,
    consumers,
    consumers_round_trip_s,
    pace_of,
    publishers,
    rate_of,
    round_trip_s,
    simulate,
    work_of,
)
from amqp10broker.tools.replay.player import RecordedConnection, Script, read_script


@dataclass(frozen=True, slots=True)
class ConsumerModel:
    """A consumer in the simulation, from its `Work`. `sizes` repeats in a cycle."""

    own_s: float
    supply_s: float
    renew_at: float
    bound: float
    by_finish: bool
    sizes: Sequence[int]


class Delivering:
    """Simulates one link of a broker that always has a message, at its pace."""

    def __init__(self, habits: ConsumerModel, credit: int, way_s: float) -> None:
        self._habits = habits
        self._credit = credit
        self._way_s = way_s
        self._sending = SenderCredit()
        # It is granted explicitly: clients have different rules for granting, and the engine has its own.
        self._granting = ReceiverCredit(INITIAL_DELIVERY_COUNT, 0)
        self._events: list[tuple[float, int, str, tuple[float, ...]]] = []
        self._numbers = count()
        self._sent: list[float] = []
        self._came: list[float] = []
        self._finished = 0
        self._busy_until = 0.0
        self._ready_at = 0.0
        self._waits_since: float | None = None
        self._waits = dict.fromkeys(PublisherWait, 0.0)
        self._settled = self._held = self._held_bytes = self._held_max = self._held_bytes_max = 0

    def told(self, at: float, kind: str, content: tuple[float, ...]) -> None:
        """Observe a frame at the broker; for subclasses. `content`: delivery-count and link-credit; nothing;
        or bytes.
        """

    def run(self, messages: int) -> SimulationResult:
        """Deliver so many messages, at least 2."""
        self._grant(0.0, self._credit)
        while self._events and len(self._sent) < messages:
            now, _, kind, content = heappop(self._events)
            self._take(now, kind, content)
        return SimulationResult(rate_of(self._sent), self._waits, self._held_max, self._held_bytes_max)

    def _later(self, at: float, kind: str, *content: float) -> None:
        heappush(self._events, (at, next(self._numbers), kind, content))

    def _take(self, now: float, kind: str, content: tuple[float, ...]) -> None:
        match kind:
            case "grant":
                self.told(now, kind, content[:2])
                self._sending.set(int(content[0]), int(content[1]), drain=False)
                self._send(now, content[2])
            case "ready":
                self._send(now, 0.0)
            case "delivery":
                self._came.append(now)
                self._busy_until = max(self._busy_until, now) + self._habits.own_s
                self._later(self._busy_until, "finished")
                if not self._habits.by_finish:
                    self._granting.receive(1)
                    self._renew(now)
            case "finished":
                if self._habits.by_finish:
                    self._granting.receive(1)
                self._finished += 1
                self._later(now + self._way_s, "outcome")
                self._granting.finish(1)
                self._renew(now)
            case _:
                self.told(now, kind, content)
                self._held_bytes -= self._size(self._settled)
                self._settled += 1
                self._held -= 1

    def _size(self, place: int) -> int:
        return self._habits.sizes[place % len(self._habits.sizes)]

    def _send(self, now: float, worked: float) -> None:
        # `worked` is how long the client worked before it granted.
        if now < self._ready_at:
            return
        if self._waits_since is not None:
            wait = now - self._waits_since
            work = min(wait, worked)
            self._waits[PublisherWait.WORK] += work
            self._waits[PublisherWait.CREDIT] += wait - work
            self._waits_since = None
        if not self._sending.link_credit:
            self._waits_since = now
            return
        self._sending.spend(1)
        size = self._size(len(self._sent))
        self.told(now, "transfer", (size,))
        self._sent.append(now)
        self._held += 1
        self._held_bytes += size
        self._held_max = max(self._held_max, self._held)
        self._held_bytes_max = max(self._held_bytes_max, self._held_bytes)
        self._later(now + self._way_s, "delivery")
        self._waits[PublisherWait.SUPPLY] += self._habits.supply_s
        self._ready_at = now + self._habits.supply_s
        self._later(self._ready_at, "ready")

    def _renew(self, now: float) -> None:
        left = self._granting.link_credit
        if left > self._habits.renew_at * self._credit:
            return
        room = round(self._habits.bound * self._credit) - self._granting.outstanding
        if min(room, self._credit) > left:
            self._grant(now, min(room, self._credit))

    def _grant(self, now: float, credit: int) -> None:
        granting = self._granting
        granting.grant(credit)
        worked = now - self._came[granting.delivery_count - 1] if granting.delivery_count else 0.0
        self._later(now + self._way_s, "grant", granting.delivery_count, credit, worked)


# A model with a larger error for the recording itself is rejected.
OFF: Final = 0.15
_ROUNDS: Final = 40
_MESSAGES_MIN: Final = 1000
_MESSAGES_MAX: Final = 20_000


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a forecast; None is as recorded."""

    max_link_credit: int | None = None
    max_incoming_window: int | None = None
    round_trip_ms: float | None = None
    client_credit: int | None = None

    def __str__(self) -> str:
        said = (
            (self.max_link_credit, "credit {}"),
            (self.max_incoming_window, "incoming-window {}"),
            (self.round_trip_ms, "round trip {:g} ms"),
            (self.client_credit, "client's credit {}"),
        )
        return ", ".join(text.format(each) for each, text in said if each is not None) or "as recorded"


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast for one publisher or consumer. `receives`: the client receives: `credit` is its own then,
    and `window`, which is not modelled, None.
    """

    connection: int
    link: str
    receives: bool
    messages: int
    rate: float
    credit: int
    window: int | None
    round_trip_s: float
    waits: dict[PublisherWait, float]
    check: SimulationResult
    run: SimulationResult
    unknown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KnownSession:
    """The publishers of one session of a recording."""

    connection: int
    over: str
    publishers: tuple[RecordedPublisher, ...]
    paces: tuple[Pace, ...]
    window: int
    round_trip_s: float
    checks: tuple[SimulationResult, ...]

    def forecasts(self, asked: Settings) -> Iterator[Forecast]:
        credits = [_credit(publisher) for publisher in self.publishers]
        runs = _simulated(
            self.publishers,
            self.paces,
            asked.max_link_credit or max(credits),
            asked.max_incoming_window or self.window,
            self.round_trip_s if asked.round_trip_ms is None else asked.round_trip_ms / 1000,
        )
        for publisher, pace, credit, check, run in zip(
            self.publishers, self.paces, credits, self.checks, runs, strict=True
        ):
            yield Forecast(
                self.connection,
                str(publisher.link),
                False,
                len(publisher.arrivals),
                publisher.rate,
                credit,
                self.window,
                self.round_trip_s,
                shares(pace.waits),
                check,
                run,
                (*_unknown(publisher, pace, check, run), *_of_the_way(self.over)),
            )


@dataclass(frozen=True, slots=True)
class KnownConsumer:
    """A consumer of a recording. `check`: the model with the credit and the round trip of the recording."""

    connection: int
    over: str
    consumer: RecordedConsumer
    work: Work
    round_trip_s: float
    check: SimulationResult

    def forecasts(self, asked: Settings) -> Iterator[Forecast]:
        consumer, work = self.consumer, self.work
        run = _delivered(
            consumer,
            work,
            asked.client_credit or consumer.credit,
            self.round_trip_s if asked.round_trip_ms is None else asked.round_trip_ms / 1000,
        )
        yield Forecast(
            self.connection,
            str(consumer.link),
            True,
            len(consumer.sent),
            consumer.rate,
            consumer.credit,
            None,
            self.round_trip_s,
            shares(work.waits),
            self.check,
            run,
            (*_unknown_of_consumer(consumer, work, self.check, run), *_of_the_way(self.over)),
        )


def known(script: Script) -> tuple[list[KnownSession | KnownConsumer], list[str]]:
    """Return the publishers and consumers of a recording, and sentences on those without a forecast."""
    found: list[KnownSession | KnownConsumer] = []
    without = list(script.left_out)
    for part in script.parts:
        if part.protocol is WireProtocol.AMQP_091:
            without.append(
                f"connection {part.number} speaks AMQP 0-9-1, which has no credit for publishers; another "
                "prefetch of its consumers is not forecast either"
            )
            continue
        sessions = publishers(part)
        receivers = consumers(part)
        times = (
            round_trip_s([each for session in sessions for each in session.publishers]),
            consumers_round_trip_s(receivers),
        )
        round_trip = min((each for each in times if each is not None), default=None)
        for session in sessions:
            found += _of_session(part, session, round_trip, without)
        for consumer in receivers:
            found += _of_consumer(part, consumer, round_trip, without)
        if not receivers and not any(session.publishers for session in sessions):
            without.append(f"connection {part.number} neither sends nor receives")
    return found, without


def _of_session(
    part: RecordedConnection, session: RecordedSession, round_trip: float | None, without: list[str]
) -> Iterator[KnownSession]:
    spoken = []
    for publisher in session.publishers:
        if len(publisher.arrivals) >= MESSAGES_MIN and round_trip is not None:
            spoken.append(publisher)
        else:
            sent = f"{len(publisher.arrivals)} messages"
            without.append(
                f"connection {part.number}, {publisher.link}: {sent}, and {MESSAGES_MIN} are needed to know "
                "its pace"
            )
    if not spoken or round_trip is None:
        return
    paces = [pace_of(publisher, round_trip) for publisher in spoken]
    credit, window = max(map(_credit, spoken)), session.session.begun["out"].incoming_window
    checks = _simulated(spoken, paces, credit, window, round_trip)
    yield KnownSession(part.number, part.over, tuple(spoken), tuple(paces), window, round_trip, tuple(checks))


def _of_consumer(
    part: RecordedConnection, consumer: RecordedConsumer, round_trip: float | None, without: list[str]
) -> Iterator[KnownConsumer]:
    subject = f"connection {part.number}, {consumer.link}"
    if consumer.drains:
        without.append(f"{subject}: it drains: it asks for messages when it wants some, for unknown reasons")
    elif round_trip is None or len(consumer.sent) < MESSAGES_MIN:
        got = f"{len(consumer.sent)} messages"
        without.append(f"{subject}: {got}, and {MESSAGES_MIN} are needed to know its pace")
    else:
        work = work_of(consumer, round_trip)
        check = _delivered(consumer, work, consumer.credit, round_trip)
        yield KnownConsumer(part.number, part.over, consumer, work, round_trip, check)


def _delivered(consumer: RecordedConsumer, work: Work, credit: int, round_trip: float) -> SimulationResult:
    habits = ConsumerModel(
        work.own_s, work.supply_s, work.renew_at, work.bound, work.by_finish, consumer.sizes
    )
    return Delivering(habits, credit, (round_trip + work.reaction_s) / 2).run(_messages(credit))


def _messages(credit: int) -> int:
    return min(_MESSAGES_MAX, max(_MESSAGES_MIN, _ROUNDS * credit))


def _credit(publisher: RecordedPublisher) -> int:
    return publisher.link.first_credit or 1


def _simulated(
    spoken: Sequence[RecordedPublisher], paces: Sequence[Pace], credit: int, window: int, round_trip: float
) -> list[SimulationResult]:
    # A wait for an answer includes the reaction of the other side, by its average.
    reaction = fmean(pace.reaction_s for pace in paces)
    return simulate(
        [
            Habits(*(pace.own_s, pace.limit, each.confirm_s, each.frames, each.sizes), settled=each.settled)
            for each, pace in zip(spoken, paces, strict=True)
        ],
        max_link_credit=credit,
        window=window,
        round_trip_s=round_trip + reaction,
        messages=_messages(credit),
    )


def _unknown(
    publisher: RecordedPublisher, pace: Pace, check: SimulationResult, run: SimulationResult
) -> Iterator[str]:
    yield from _not_believed(publisher.rate, check)
    waited = pace.waits[PublisherWait.CREDIT] + pace.waits[PublisherWait.WINDOW]
    if pace.limit is None and waited > OFF * sum(pace.waits.values()):
        yield ("the client was held up by credit or window: a limit of its own above that cannot be seen")
    if pace.limit is None and not publisher.settled and waited <= OFF * sum(pace.waits.values()):
        yield (
            "the client hardly waited: whether its work or what it got to send kept it from being faster "
            "cannot be seen"
        )
    if not pace.seen:
        yield "nearly every message waited: how fast the client is without waits cannot be seen"
    yield from _faster(publisher.arrivals, run)
    if publisher.confirm_s:
        yield (
            f"outcomes took {1000 * median(publisher.confirm_s):.1f} ms (median) at the broker, which is "
            "assumed at any rate"
        )


def _unknown_of_consumer(
    consumer: RecordedConsumer, work: Work, check: SimulationResult, run: SimulationResult
) -> Iterator[str]:
    yield from _not_believed(consumer.rate, check)
    if not work.work_seen:
        yield (
            "the client was done with nearly each message before the next one came: how fast it is when more "
            "come cannot be seen"
        )
    if not work.supply_seen:
        yield (
            "nearly every delivery waited for credit: how fast queue and broker are without waits cannot be "
            "seen"
        )
    elif work.waits[PublisherWait.SUPPLY] > OFF * sum(work.waits.values()):
        yield (
            "there was credit and nothing was delivered at times: whether the queue was empty or the broker "
            "busy cannot be seen, and is assumed to stay so"
        )
    if consumer.window_used_up:
        yield "the client's incoming-window was used up at times: it is not in the model"
    yield from _faster(consumer.sent, run)


def _not_believed(rate: float, check: SimulationResult) -> Iterator[str]:
    if not rate / (1 + OFF) <= check.rate <= rate * (1 + OFF):
        yield (
            f"with the recorded settings the model has {check.rate:.0f} messages/s, and not the {rate:.0f} "
            "that were recorded: do not believe the forecast"
        )


def _of_the_way(over: str) -> Iterator[str]:
    if over != "TCP":
        yield (
            f"the connection was over {over}, whose cost is assumed to stay: forecasts have been compared "
            "with rates over plain TCP alone"
        )


_BURST: Final = 25


def _faster(times: Sequence[float], run: SimulationResult) -> Iterator[str]:
    took = [after - at for at, after in zip(times, times[_BURST:], strict=False) if after > at]
    fastest = _BURST / min(took) if took else float("inf")
    if run.rate > fastest:
        yield (
            f"the forecast is faster than the fastest {_BURST} messages of the recording ({fastest:.0f}/s): "
            "client, broker or disk may be the limit before that"
        )


# The suffix of the files of ``serve --record-frames``.
SUFFIX: Final = ".jsonl"


class NoRecordings(BrokerError):
    """A folder has no recordings of frames."""


@dataclass(frozen=True, slots=True)
class Forecasts:
    """The forecasts for one recording. `problem`: why it is unusable; None if it is usable."""

    recording: str
    forecasts: list[tuple[Settings, Forecast]] = field(default_factory=list)
    without: list[str] = field(default_factory=list)
    problem: str | None = None


def answer(
    recording: str, records: Iterable[Record], settings: Sequence[Settings], connection: int | None = None
) -> Forecasts:
    """Forecast one recording with each of the settings. `connection`: None: all. Raises `NoFrames`."""
    found, without = known(read_script(records, connection))
    forecasts: list[tuple[Settings, Forecast]] = []
    for each in found:
        # The result is ordered by link, and for each link by setting.
        for of_link in zip(*(each.forecasts(asked) for asked in settings), strict=True):
            forecasts += zip(settings, of_link, strict=True)
    return Forecasts(recording, forecasts, without)


def answer_of_file(path: str, settings: Sequence[Settings], connection: int | None = None) -> Forecasts:
    """Forecast one file; one that is unreadable or not a recording gives an answer with a problem."""
    try:
        with open(path, encoding="utf-8", errors="replace") as lines:
            return answer(path, read_lines(lines), settings, connection)
    except OSError as error:
        return Forecasts(path, problem=f"it cannot be read: {error.strerror}")
    except NoFrames as error:
        return Forecasts(path, problem=str(error))


def files_of(names: Sequence[str]) -> list[str]:
    """Return the files, with ``*.jsonl`` of a folder in order, and each only once. Raises `NoRecordings`."""
    found: dict[str, None] = {}
    for name in names:
        if not Path(name).is_dir():
            found[name] = None
            continue
        inside = sorted(str(path) for path in Path(name).glob(f"*{SUFFIX}") if path.is_file())
        if not inside:
            advice = "name a folder that `serve --record-frames` has written to, or a file"
            raise NoRecordings(f"{name}: it has no file *{SUFFIX}; {advice}")
        found |= dict.fromkeys(inside)
    return list(found)


def grid(
    credits: Sequence[int | None] = (),
    windows: Sequence[int | None] = (),
    round_trips_ms: Sequence[float | None] = (),
    client_credits: Sequence[int | None] = (),
) -> list[Settings]:
    """Return all combinations; an empty list stands for the recorded value."""
    several = [list(each) or [None] for each in (credits, windows, round_trips_ms, client_credits)]
    return [Settings(*each) for each in product(*several)]  # type: ignore[arg-type]


_WAITS: Final[Mapping[PublisherWait, str]] = {
    reason: f"waits_{reason.name.lower()}" for reason in PublisherWait
}
COLUMNS: Final = (
    *("recording", "connection", "link", "messages"),
    *("recorded_rate", "recorded_link_credit", "recorded_incoming_window", "recorded_round_trip_ms"),
    *("client_credit", "max_link_credit", "max_incoming_window", "round_trip_ms"),
    *("rate", *_WAITS.values(), "messages_held", "bytes_held", "unknown", "no_forecast"),
)


def table_rows(one: Forecasts) -> Iterator[dict[str, Any]]:
    """Yield rows with all `COLUMNS`: first the forecasts, then rows with ``no_forecast`` alone."""
    for asked, forecast in one.forecasts:
        yield dict.fromkeys(COLUMNS) | _row(one.recording, asked, forecast)
    for each in [*one.without, *([one.problem] if one.problem else [])]:
        yield dict.fromkeys(COLUMNS) | {"recording": one.recording, "no_forecast": each}


def _row(recording: str, asked: Settings, forecast: Forecast) -> dict[str, Any]:
    round_trip_ms = 1000 * forecast.round_trip_s
    return {
        "recording": recording,
        "connection": forecast.connection,
        "link": forecast.link,
        "messages": forecast.messages,
        "recorded_rate": finite(forecast.rate),
        "recorded_link_credit": forecast.credit,
        "recorded_incoming_window": forecast.window,
        "recorded_round_trip_ms": round_trip_ms,
        # A receiver's credit is not the broker's, and its window is not modelled.
        "client_credit": (asked.client_credit or forecast.credit) if forecast.receives else None,
        "max_link_credit": None if forecast.receives else asked.max_link_credit or forecast.credit,
        "max_incoming_window": None if forecast.receives else asked.max_incoming_window or forecast.window,
        "round_trip_ms": round_trip_ms if asked.round_trip_ms is None else float(asked.round_trip_ms),
        "rate": finite(forecast.run.rate),
        **{_WAITS[reason]: share for reason, share in shares(forecast.run.waits).items()},
        "messages_held": forecast.run.held,
        "bytes_held": forecast.run.held_bytes,
        "unknown": "; ".join(forecast.unknown),
    }


def shares(waits: Mapping[PublisherWait, float]) -> dict[PublisherWait, float]:
    whole = sum(waits.values()) or 1.0
    return {reason: wait / whole for reason, wait in waits.items()}


def finite(rate: float) -> float | None:
    """Return a rate; None: it is unlimited: JSON and tables have no infinity."""
    return rate if math.isfinite(rate) else None
