"""What other settings would have done to recorded publishers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, median
from typing import Final

from amqp10broker.dataclass import dataclass
from amqp10broker.greeting import Protocol
from amqp10broker.replay.pace import (
    MESSAGES_MIN,
    Pace,
    Publisher,
    Reason,
    Recorded,
    pace_of,
    publishers,
    round_trip_s,
)
from amqp10broker.replay.script import Part, Script
from amqp10broker.replay.simulation import Habits, Run, simulate

OFF: Final = 0.15
"""A model that misses the recording itself by more than this is not believed."""
_ROUNDS: Final = 40
_MESSAGES_MIN: Final = 1000
_MESSAGES_MAX: Final = 20_000


@dataclass(frozen=True, slots=True)
class Settings:
    """What is asked about; None is as it was recorded.

    Attributes:
        max_link_credit: messages.
        max_incoming_window: transfers.
        round_trip_ms: milliseconds.
    """

    max_link_credit: int | None = None
    max_incoming_window: int | None = None
    round_trip_ms: float | None = None

    def __str__(self) -> str:
        said = (
            (self.max_link_credit, "credit {}"),
            (self.max_incoming_window, "incoming-window {}"),
            (self.round_trip_ms, "round trip {:g} ms"),
        )
        return ", ".join(text.format(each) for each, text in said if each is not None) or "as recorded"


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of one publisher.

    Attributes:
        connection: its number.
        link: in words.
        messages: that were recorded.
        rate: of them, a second.
        credit, window, round_trip_s: of the recording.
        waits: shares of the recorded time by what it waited for.
        check: the model with the settings of the recording.
        run: the model with the settings that are asked about.
        unknown: what the recording does not tell, one sentence each.
    """

    connection: int
    link: str
    messages: int
    rate: float
    credit: int
    window: int
    round_trip_s: float
    waits: dict[Reason, float]
    check: Run
    run: Run
    unknown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Known:
    """What a recording tells of the publishers of one session, before anything is asked.

    Attributes:
        connection: its number.
        over: what carries it.
        publishers, paces: in the same order, one at least.
        window: the broker's incoming-window.
        round_trip_s: of the connection.
        checks: the model with the settings of the recording, for each publisher.
    """

    connection: int
    over: str
    publishers: tuple[Publisher, ...]
    paces: tuple[Pace, ...]
    window: int
    round_trip_s: float
    checks: tuple[Run, ...]

    def forecasts(self, asked: Settings) -> Iterator[Forecast]:
        """One for each publisher."""
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
            whole = sum(pace.waits.values()) or 1.0
            yield Forecast(
                self.connection,
                str(publisher.link),
                len(publisher.arrivals),
                publisher.rate,
                credit,
                self.window,
                self.round_trip_s,
                {reason: wait / whole for reason, wait in pace.waits.items()},
                check,
                run,
                (*_unknown(publisher, pace, check, run), *self._of_the_way()),
            )

    def _of_the_way(self) -> Iterator[str]:
        if self.over != "TCP":
            yield (
                f"the connection was over {self.over}, which packs frames anew: what that costs is taken to "
                "be as it was, and forecasts have been compared with rates over plain TCP alone"
            )


def known(script: Script) -> tuple[list[Known], list[str]]:
    """What a recording tells of its publishers, and of whom there can be no forecast and why.

    Args:
        script: a recording.
    """
    found: list[Known] = []
    without = list(script.left_out)
    for part in script.parts:
        if part.protocol is Protocol.AMQP_091:
            without.append(
                f"connection {part.number} speaks AMQP 0-9-1, which has no credit for publishers; "
                "what another prefetch would do to its consumers is not told either"
            )
            continue
        sessions = publishers(part)
        round_trip = round_trip_s([each for session in sessions for each in session.publishers])
        for session in sessions:
            found += _of_session(part, session, round_trip, without)
        if not any(session.publishers for session in sessions):
            without.append(
                f"connection {part.number} sends nothing: what a consumer is granted is its client's decision"
            )
    return found, without


def forecasts(script: Script, asked: Settings) -> tuple[list[Forecast], list[str]]:
    """A forecast for each publisher, and of whom there is none and why.

    Args:
        script: a recording.
        asked: the settings.
    """
    found, without = known(script)
    return [forecast for each in found for forecast in each.forecasts(asked)], without


def _of_session(
    part: Part, session: Recorded, round_trip: float | None, without: list[str]
) -> Iterator[Known]:
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
    credit, window = max(map(_credit, spoken)), session.session.window
    checks = _simulated(spoken, paces, credit, window, round_trip)
    yield Known(part.number, part.over, tuple(spoken), tuple(paces), window, round_trip, tuple(checks))


def _credit(publisher: Publisher) -> int:
    return publisher.link.first_credit or 1


def _simulated(
    spoken: Sequence[Publisher], paces: Sequence[Pace], credit: int, window: int, round_trip: float
) -> list[Run]:
    # What waits for an answer waits for the other side to react as well, as long as that took on the average.
    reaction = fmean(pace.reaction_s for pace in paces)
    return simulate(
        [_habits(publisher, pace) for publisher, pace in zip(spoken, paces, strict=True)],
        max_link_credit=credit,
        window=window,
        round_trip_s=round_trip + reaction,
        messages=min(_MESSAGES_MAX, max(_MESSAGES_MIN, _ROUNDS * credit)),
    )


def _habits(publisher: Publisher, pace: Pace) -> Habits:
    return Habits(
        pace.own_s,
        pace.limit,
        publisher.confirm_s,
        publisher.frames,
        publisher.sizes,
        settled=publisher.settled,
    )


def _unknown(publisher: Publisher, pace: Pace, check: Run, run: Run) -> Iterator[str]:
    if not publisher.rate / (1 + OFF) <= check.rate <= publisher.rate * (1 + OFF):
        yield (
            f"with the settings of the recording the model comes to {check.rate:.0f} messages/s, and not to "
            f"the {publisher.rate:.0f} that were recorded: do not believe the forecast"
        )
    waited = pace.waits[Reason.CREDIT] + pace.waits[Reason.WINDOW]
    if pace.limit is None and waited > OFF * sum(pace.waits.values()):
        yield (
            "the client was held up by credit or window: whether it has a limit of its own above that, is "
            "not to be seen"
        )
    if pace.limit is None and not publisher.settled and waited <= OFF * sum(pace.waits.values()):
        yield (
            "the client hardly waited: why it was no faster, be it its work or what it got to send, is not "
            "to be seen"
        )
    if not pace.seen:
        yield "nearly every message waited: how fast the client is when it need not, is not to be seen"
    fastest = _fastest(publisher)
    if run.rate > fastest:
        yield (
            f"the forecast is faster than the fastest {_BURST} messages of the recording ({fastest:.0f}/s): "
            "client, broker or disk may be the limit before that"
        )
    if publisher.confirm_s:
        yield (
            f"outcomes took {1000 * median(publisher.confirm_s):.1f} ms (median) at the broker, and are "
            "taken to do so at any rate"
        )


_BURST: Final = 25


def _fastest(publisher: Publisher) -> float:
    """Messages a second that came at most, over a stretch that is longer than one read."""
    arrivals = publisher.arrivals
    times = [after - at for at, after in zip(arrivals, arrivals[_BURST:], strict=False) if after > at]
    return _BURST / min(times) if times else float("inf")
