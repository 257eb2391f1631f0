"""What other settings would have done to recorded publishers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

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


def forecasts(script: Script, asked: Settings) -> tuple[list[Forecast], list[str]]:
    """A forecast for each publisher, and of whom there is none and why.

    Args:
        script: a recording.
        asked: the settings.
    """
    found: list[Forecast] = []
    without = list(script.left_out)
    for part in script.parts:
        if part.protocol is Protocol.AMQP_091:
            without.append(f"connection {part.number} speaks AMQP 0-9-1, which has no credit for publishers")
            continue
        sessions = publishers(part)
        known = round_trip_s([each for session in sessions for each in session.publishers])
        for session in sessions:
            found += _of_session(part, session, known, asked, without)
        if not any(session.publishers for session in sessions):
            without.append(
                f"connection {part.number} sends nothing: what a consumer is granted is its client's decision"
            )
    return found, without


def _of_session(
    part: Part, session: Recorded, known: float | None, asked: Settings, without: list[str]
) -> Iterator[Forecast]:
    spoken = []
    for publisher in session.publishers:
        if len(publisher.arrivals) >= MESSAGES_MIN and known is not None:
            spoken.append(publisher)
        else:
            sent = f"{len(publisher.arrivals)} messages"
            without.append(
                f"connection {part.number}, {publisher.link}: {sent}, and {MESSAGES_MIN} are needed to know "
                "its pace"
            )
    if not spoken or known is None:
        return
    paces = [pace_of(publisher, known) for publisher in spoken]
    habits = [_habits(publisher, pace) for publisher, pace in zip(spoken, paces, strict=True)]
    credits = [publisher.link.first_credit or 1 for publisher in spoken]
    window = session.session.window

    # What waits for an answer waits for the other side to react as well, as long as that took on the average.
    reaction = fmean(pace.reaction_s for pace in paces)

    def run(credit: int, window: int, round_trip: float) -> list[Run]:
        messages = min(_MESSAGES_MAX, max(_MESSAGES_MIN, _ROUNDS * credit))
        return simulate(
            habits,
            max_link_credit=credit,
            window=window,
            round_trip_s=round_trip + reaction,
            messages=messages,
        )

    checks = run(max(credits), window, known)
    runs = run(
        asked.max_link_credit or max(credits),
        asked.max_incoming_window or window,
        known if asked.round_trip_ms is None else asked.round_trip_ms / 1000,
    )
    for publisher, pace, credit, check, done in zip(spoken, paces, credits, checks, runs, strict=True):
        whole = sum(pace.waits.values()) or 1.0
        yield Forecast(
            part.number,
            str(publisher.link),
            len(publisher.arrivals),
            publisher.rate,
            credit,
            window,
            known,
            {reason: wait / whole for reason, wait in pace.waits.items()},
            check,
            done,
            tuple(_unknown(publisher, pace, check, done)),
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
