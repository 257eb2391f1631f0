"""What is recommended, from figures that are made up so that the right answer is known."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable

from amqp10broker.observe.flow_events import RUN_FIELDS, EventKind
from amqp10broker.tools.analysis.cells import Cell
from amqp10broker.tools.analysis.figures import Measured, configurations, groups, measure
from amqp10broker.tools.analysis.recommend import (
    Aim,
    Candidate,
    NoRecommendation,
    Recommendation,
    recommend,
    recommend_all,
    told,
)


def candidates(
    rate: Callable[[int, int], float],
    credits: Iterable[int] = (10, 50, 170, 500, 1000),
    windows: Iterable[int] = (50, 400, 2000),
    scatter: tuple[float, ...] = (-0.01, 0.0, 0.01),
    **more: object,
) -> list[Candidate]:
    """A sweep whose throughput is a function of credit and window; repetitions scatter around it."""
    return [
        Candidate((credit, window, 256), tuple(rate(credit, window) * (1 + each) for each in scatter), **more)  # type: ignore[arg-type]
        for window in windows
        for credit in credits
    ]


def chosen(found: Recommendation | NoRecommendation) -> Recommendation:
    assert isinstance(found, Recommendation), found
    return found


def knee(credit: int, window: int) -> float:
    """Flat from 170 credits and a window of 400 on."""
    return 60_000 * min(1, credit / 100) * min(1, window / 300)


def test_the_smallest_of_those_as_good_as_the_best_is_recommended() -> None:
    """All beyond the knee are equal; the knee itself costs least."""
    found = chosen(recommend("g", candidates(knee), Aim()))
    assert found.chosen.settings == (170, 400, 256)
    assert {one.settings[:2] for one in found.as_good} == {
        (credit, window) for credit in (170, 500, 1000) for window in (400, 2000)
    }
    assert found.weak == ()


def test_what_is_four_percent_behind_is_recommended_with_the_difference_named() -> None:
    """The reason says how much is given up."""
    found = chosen(recommend("g", candidates(lambda c, w: knee(c, w) * (0.96 if c == 170 else 1)), Aim()))
    assert found.chosen.settings == (170, 400, 256)
    assert "4.0% from the best" in found.reasons[0]
    assert "6 settings within 5%" in found.reasons[0]


def test_the_best_at_the_upper_edge_asks_for_a_wider_sweep() -> None:
    """Throughput still rises at the end of the sweep."""
    found = chosen(recommend("g", candidates(lambda c, w: 10.0 * c * w), Aim()))
    assert found.chosen.settings == (1000, 2000, 256)
    assert [weak for weak in found.weak if "widen the sweep upwards" in weak] == [
        "max_link_credit 1000 is the largest that was tried: widen the sweep upwards",
        "max_incoming_window 2000 is the largest that was tried: widen the sweep upwards",
    ]


def test_noise_that_hides_everything_proves_nothing() -> None:
    """Then nothing is recommended with confidence, on the page or in the terminal."""
    flat = candidates(lambda c, w: 60_000 + c, scatter=(-0.2, 0.0, 0.2))
    found = chosen(recommend("g", flat, Aim()))
    assert found.unproven is not None
    assert "no setting is further than that from the best" in found.unproven
    assert "not proven: repetitions scatter by 20%" in told(found)
    assert "leave the settings as they are" in told(found)


def test_a_difference_that_was_shown_is_a_proof() -> None:
    """One setting that is worse is enough: the choice is better than that."""
    found = chosen(recommend("g", candidates(knee), Aim()))
    assert found.unproven is None
    assert "not proven" not in told(found)


def test_the_lowest_latency_among_those_that_sustain_the_rate() -> None:
    """Small credits are quicker, but too slow for the rate."""
    pool = [
        Candidate(
            (credit, 400, 256),
            (min(rate, 20_000.0),) * 3,
            (p99, p99 * 1.01, p99 * 0.99),
            rate_limit_per_s=20_000.0,
        )
        for credit, rate, p99 in (
            (10, 6_000, 2.0),
            (50, 19_900, 3.0),
            (170, 30_000, 5.0),
            (1000, 30_000, 20.0),
        )
    ]
    found = chosen(recommend("g", pool, Aim("latency", 20_000)))
    assert found.chosen.settings == (50, 400, 256)
    assert found.figure == "end-to-end p99"
    assert "3 of 4 settings sustain 20,000/s" in found.reasons
    assert not any("full speed" in weak for weak in found.weak)


def test_the_least_memory_among_those_that_keep_the_throughput() -> None:
    """170 credits keep 97 % with half the memory."""
    pool = [
        Candidate((credit, 400, 256), (rate, rate * 1.001), (), (), (memory, memory * 1.001))
        for credit, rate, memory in ((50, 30_000.0, 4e7), (170, 58_200.0, 5e7), (1000, 60_000.0, 1e8))
    ]
    found = chosen(recommend("g", pool, Aim("memory")))
    assert found.chosen.settings == (170, 400, 256)
    assert found.figure == "resident memory"
    tight = chosen(recommend("g", pool, Aim("memory", keep=0.99)))
    assert tight.chosen.settings == (1000, 400, 256)


def of_run(benchmark: str, credit: int, per_s: float) -> Measured:
    row = {name: None for name, _ in RUN_FIELDS} | {
        "run_id": f"r{credit}", "benchmark": benchmark, "case": "", "began_ns": 0, "ended_ns": 10**9,
        "max_link_credit": credit, "max_incoming_window": 400, "max_queue_credit": 256, "settings": "{}",
    }  # fmt: skip
    sums = dict.fromkeys(Cell.__dataclass_fields__, 0) | {"kind": int(EventKind.LINK_OUT), "n": round(per_s)}
    return measure(row, [Cell(**{**sums, "run_id": row["run_id"], "bucket": None, "amqp091": False})])  # type: ignore[arg-type]


def test_of_what_a_broker_recorded_by_itself_the_load_is_doubted_first() -> None:
    """It may have been another one with each setting, and nobody knows."""

    def answer(benchmark: str) -> Recommendation:
        runs = [of_run(benchmark, credit, 1000.0 * credit) for credit in (50, 170)]
        (found,) = recommend_all(groups(configurations(runs)), Aim())
        return chosen(found)

    own, swept = answer("broker"), answer("sweep")
    assert own.chosen.settings == swept.chosen.settings == (170, 400, 256)
    assert "nothing shows that it was the same with each setting" in own.weak[0]
    assert own.weak[1:] == swept.weak
    assert "python -m benchmarks sweep --record DIR" in told(own)


def test_what_is_pasted_is_understood_by_the_broker() -> None:
    """The command line by its parser, the file by TOML; settings that are not known are left out."""
    from amqp10broker.cli.main import build_parser
    from amqp10broker.config.records import FLOW_SETTINGS

    found = chosen(recommend("g", candidates(knee), Aim()))
    parsed = vars(build_parser(["serve"]).parse_args(found.command_line.split()[1:]))
    settings = tomllib.loads(found.toml)
    assert set(settings) == set(FLOW_SETTINGS)
    assert {name: str(parsed[name]) for name in settings} == {
        name: str(value) for name, value in settings.items()
    }
    partly = [Candidate((None, window, None), (window * 1.0,)) for window in (50, 400)]
    assert (
        chosen(recommend("g", partly, Aim())).command_line == "amqp10broker serve --max-incoming-window 400"
    )
