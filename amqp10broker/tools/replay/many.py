"""Forecasts for many recordings and several settings, as one table.

Each recording is processed alone, so that the process and the order do not matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import product
from pathlib import Path
from typing import Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BrokerError
from amqp10broker.observe.frames.records import NoFrames, Record, read_lines
from amqp10broker.tools.replay.forecast import Forecast, Settings, known
from amqp10broker.tools.replay.pace import PublisherWait
from amqp10broker.tools.replay.script import read_script
from amqp10broker.tools.replay.simulation import SimulationResult

# Of the files of ``serve --record-frames``.
SUFFIX: Final = ".jsonl"


class NoRecordings(BrokerError):
    """A folder has no recordings of frames."""


@dataclass(frozen=True, slots=True)
class Forecasts:
    """The forecasts for one recording. `problem`: why the recording is unusable; None if it is usable."""

    recording: str
    forecasts: list[tuple[Settings, Forecast]] = field(default_factory=list)
    without: list[str] = field(default_factory=list)
    problem: str | None = None


def answer(
    recording: str, records: Iterable[Record], settings: Sequence[Settings], connection: int | None = None
) -> Forecasts:
    """Forecast one recording with each of the settings. `connection`: this one alone; None for all. Raises
    `NoFrames` if it is not a recording.
    """
    found, without = known(read_script(records, connection))
    forecasts: list[tuple[Settings, Forecast]] = []
    for each in found:
        # By link, and of each link by setting.
        for of_link in zip(*(each.forecasts(asked) for asked in settings), strict=True):
            forecasts += zip(settings, of_link, strict=True)
    return Forecasts(recording, forecasts, without)


def answer_of_file(path: str, settings: Sequence[Settings], connection: int | None = None) -> Forecasts:
    """Forecast one file; a file that is unreadable or not a recording gives an answer with a problem.

    Args:
        connection: this one alone; None for all.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as lines:
            return answer(path, read_lines(lines), settings, connection)
    except OSError as error:
        return Forecasts(path, problem=f"it cannot be read: {error.strerror}")
    except NoFrames as error:
        return Forecasts(path, problem=str(error))


def files_of(names: Sequence[str]) -> list[str]:
    """Return the files, with ``*.jsonl`` of a folder in order, and each only once.

    Raises:
        NoRecordings: a folder has none.
    """
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
    """Return all combinations; None, and an empty list, stand for the recorded value."""
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
        **{_WAITS[reason]: share for reason, share in shares(forecast.run).items()},
        "messages_held": forecast.run.held,
        "bytes_held": forecast.run.held_bytes,
        "unknown": "; ".join(forecast.unknown),
    }


def shares(run: SimulationResult) -> dict[PublisherWait, float]:
    whole = sum(run.waits.values()) or 1.0
    return {reason: wait / whole for reason, wait in run.waits.items()}


def finite(rate: float) -> float | None:
    """Return a rate, or None if it is unlimited: JSON and tables have no infinity."""
    return rate if math.isfinite(rate) else None
