"""What is recommended, from figures that are made up so that the right answer is known."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable

import pytest

from amqp10broker.config import FlowSettings
from amqp10broker.observe.flow_events.schema import RUN_FIELDS, EventKind
from amqp10broker.tools.analysis.cells import Cell
from amqp10broker.tools.analysis.configurations import DEFAULTS, SETTINGS, configurations, groups
from amqp10broker.tools.analysis.figures import Measured, measure
from amqp10broker.tools.analysis.messages import all_told, told
from amqp10broker.tools.analysis.recommend import (
    Aim,
    Candidate,
    NoRecommendation,
    Recommendation,
    recommend,
    recommend_all,
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
    """It must be one."""
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


def test_what_is_more_than_five_percent_behind_is_not_recommended() -> None:
    """Smaller, but 6 % slower."""
    found = chosen(recommend("g", candidates(lambda c, w: knee(c, w) * (0.94 if c == 170 else 1)), Aim()))
    assert found.chosen.settings == (500, 400, 256)


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


def test_the_choice_at_the_lower_edge_asks_for_smaller_values() -> None:
    """Everything is equally fast."""
    found = chosen(recommend("g", candidates(lambda c, w: 60_000), Aim()))
    assert found.chosen.settings == (10, 50, 256)
    assert sum("widen the sweep downwards" in weak for weak in found.weak) == 2


def test_a_gap_in_the_sweep_is_named() -> None:
    """The optimum may lie where nothing was tried."""
    found = chosen(recommend("g", candidates(knee, credits=(10, 1000), windows=(400, 2000)), Aim()))
    assert "nothing was tried between max_link_credit 10 and 1000" in found.weak


def test_one_repetition_is_called_weak_and_has_no_interval() -> None:
    """The figure says so, too."""
    found = chosen(recommend("g", candidates(knee, scatter=(0.0,)), Aim()))
    assert found.chosen_figure.low is None
    assert any("measured once" in weak for weak in found.weak)
    assert "one repetition" in told(found)


def test_noise_larger_than_what_is_allowed_is_said() -> None:
    """Repetitions that scatter by 20 % cannot show 5 %."""
    found = chosen(recommend("g", candidates(knee, scatter=(-0.2, 0.0, 0.2)), Aim()))
    assert any("scatter by 20.0%" in weak for weak in found.weak)
    assert not any("lie within the noise" in weak for weak in found.weak)


def test_noise_that_hides_everything_proves_nothing() -> None:
    """Then nothing is recommended with confidence, on the page or in the terminal."""
    flat = candidates(lambda c, w: 60_000 + c, scatter=(-0.2, 0.0, 0.2))
    found = chosen(recommend("g", flat, Aim()))
    assert found.unproven is not None
    assert "no setting is further than that from the best" in found.unproven
    assert "not proven: repetitions scatter by 20%" in told(found)
    assert "leave the settings as they are" in told(found)


def test_settings_measured_once_prove_nothing() -> None:
    """However far apart they are."""
    found = chosen(recommend("g", candidates(knee, scatter=(0.0,)), Aim()))
    assert found.unproven == (
        "each setting was measured once, which shows of none that it is better than another"
    )


def test_a_difference_that_was_shown_is_a_proof() -> None:
    """One setting that is worse is enough: the choice is better than that."""
    found = chosen(recommend("g", candidates(knee), Aim()))
    assert found.unproven is None
    assert "not proven" not in told(found)


def test_that_the_defaults_are_recommended_is_said() -> None:
    """Nobody has to set what is set."""
    found = chosen(recommend("g", candidates(knee), Aim()))
    assert found.is_default
    assert "because these are the defaults: nothing has to be set" in told(found)
    other = chosen(recommend("g", candidates(lambda c, w: c), Aim()))
    assert not other.is_default
    assert "defaults" not in told(other)


def test_the_defaults_are_the_brokers() -> None:
    """The analysis knows no broker, and its settings all the same."""
    flow = FlowSettings()
    assert tuple(getattr(flow, name) for name in SETTINGS) == DEFAULTS


def test_settings_that_noise_hides_are_named() -> None:
    """8 % behind, with repetitions that do not show 8 %."""
    noisy = candidates(lambda c, w: knee(c, w) * (0.92 if c == 170 else 1), scatter=(-0.1, 0.0, 0.1))
    found = chosen(recommend("g", noisy, Aim()))
    assert found.chosen.settings == (500, 400, 256)
    assert any(
        "noise hides whether these are as good" in weak and "170 / 400 / 256 (8% behind in the mean)" in weak
        for weak in found.weak
    )


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


def test_latencies_at_full_speed_are_weak_evidence_for_a_rate() -> None:
    """Nothing was limited to that rate."""
    pool = candidates(knee, end_to_end_p99_ms=(5.0, 5.1))
    found = chosen(recommend("g", pool, Aim("latency", 20_000)))
    assert any("full speed" in weak for weak in found.weak)


def test_confirms_serve_where_no_deliveries_were_timed() -> None:
    """Publishers alone were measured."""
    pool = [Candidate((c, 400, 256), (20_000.0,), (), (c / 10,), (), 20_000.0) for c in (50, 170)]
    found = chosen(recommend("g", pool, Aim("latency", 20_000)))
    assert (found.figure, found.chosen.settings[0]) == ("confirm p99", 50)


def test_a_rate_that_nothing_sustains_is_said() -> None:
    """With the most that was reached."""
    found = recommend("g", candidates(knee, scatter=(0.0,)), Aim("latency", 90_000))
    assert isinstance(found, NoRecommendation)
    assert found.reason == "no setting sustains that rate; the most was 60,000/s"


def test_latencies_that_were_not_recorded_are_said() -> None:
    """There is throughput alone."""
    found = recommend("g", candidates(knee), Aim("latency", 10_000))
    assert isinstance(found, NoRecommendation)
    assert "not recorded" in found.reason


def test_runs_limited_to_a_rate_do_not_show_the_highest_throughput() -> None:
    """Unlimited runs are preferred; without any, it is said."""
    limited = candidates(lambda c, w: 20_000, rate_limit_per_s=20_000.0)
    found = chosen(recommend("g", limited, Aim()))
    assert any("limited to a rate" in weak for weak in found.weak)
    both = chosen(recommend("g", limited + candidates(knee), Aim()))
    assert both.chosen.settings == (170, 400, 256)
    assert both.chosen.rate_limit_per_s is None


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


def test_without_a_record_of_memory_the_smallest_settings_are_taken() -> None:
    """And it is said."""
    found = chosen(recommend("g", candidates(knee), Aim("memory", keep=0.4)))
    assert found.chosen.settings == (50, 400, 256)
    assert any("memory was not recorded" in weak for weak in found.weak)


NOISY = (
    Candidate((50, 400, 256), (100.0, 55.0, 145.0), memory_bytes=(4.0e7, 4.01e7, 4.02e7)),
    Candidate((170, 400, 256), (20.0, 19.0, 21.0), memory_bytes=(3.0e7, 3.01e7, 3.02e7)),
    Candidate((1000, 400, 256), (110.0, 70.0, 150.0), memory_bytes=(9.0e7, 9.01e7, 9.02e7)),
)
"""Throughputs that nobody can tell apart, and memory that everybody can."""


def test_noise_that_hides_whether_a_setting_keeps_the_throughput_is_said() -> None:
    """100 and 110 messages a second are no difference here, and 40 and 90 MB hang on it."""
    found = chosen(recommend("g", NOISY, Aim("memory")))
    assert found.chosen.settings == (1000, 400, 256)
    (weak,) = [weak for weak in found.weak if "keep 95% of the best" in weak]
    assert weak.startswith("noise hides whether these keep 95% of the best throughput (it hides ")
    assert weak.endswith("): 50 / 400 / 256 (91% of it)")


def test_a_setting_that_may_not_keep_the_throughput_is_named_though_it_is_chosen() -> None:
    """The bound is 99, below its mean of 100."""
    found = chosen(recommend("g", NOISY, Aim("memory", keep=0.9)))
    assert found.chosen.settings == (50, 400, 256)
    assert any("whether these keep 90%" in weak and "50 / 400 / 256 (91%" in weak for weak in found.weak)


def test_throughputs_that_are_told_apart_hide_nothing() -> None:
    """Repetitions that scatter by a thousandth."""
    pool = [
        Candidate((credit, 400, 256), (rate, rate * 1.001, rate * 0.999), memory_bytes=(memory,) * 2)
        for credit, rate, memory in ((50, 30_000.0, 4e7), (170, 58_200.0, 5e7), (1000, 60_000.0, 1e8))
    ]
    found = chosen(recommend("g", pool, Aim("memory")))
    assert not any("keep 95%" in weak for weak in found.weak)


def at_rate(credit: int, rates: tuple[float, ...], p99_ms: float) -> Candidate:
    """Measured at 100 messages a second."""
    return Candidate((credit, 400, 256), rates, (p99_ms,) * len(rates), rate_limit_per_s=100.0)


def test_noise_that_hides_whether_a_setting_sustains_the_rate_is_said() -> None:
    """60 to 140 messages a second are 100 in the mean; what holds the rate is not blamed for it."""
    pool = [at_rate(170, (100.0, 60.0, 140.0), 1.0), at_rate(1000, (100.0, 99.9, 100.1), 3.0)]
    found = chosen(recommend("g", pool, Aim("latency", 100)))
    assert found.chosen.settings == (170, 400, 256)
    (weak,) = [weak for weak in found.weak if "sustain" in weak]
    assert weak == "noise hides whether these sustain 100/s: 170 / 400 / 256 at 100/s (100 ± 99/s)"


def test_noise_that_hides_whether_anything_sustains_the_rate_is_said() -> None:
    """There is no recommendation, and perhaps there could be one."""
    found = recommend(
        "g", [at_rate(50, (90.0, 70.0, 110.0), 1.0), at_rate(170, (20.0, 20.0), 1.0)], Aim("latency", 100)
    )
    assert isinstance(found, NoRecommendation)
    assert found.reason == (
        "no setting sustains that rate; the most was 90/s; noise hides whether these sustain 100/s: "
        "50 / 400 / 256 at 100/s (90 ± 50/s)"
    )


def of_run(benchmark: str, credit: int, per_s: float) -> Measured:
    """One run with a throughput."""
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


def test_dropped_events_and_unfinished_runs_are_weak_evidence() -> None:
    """Counts are too low there."""
    found = chosen(recommend("g", candidates(knee, dropped_share=0.02, complete=False), Aim()))
    assert any("2.00% of the events" in weak for weak in found.weak)
    assert any("still being recorded" in weak for weak in found.weak)


def test_a_credit_that_fills_its_window_is_pointed_out() -> None:
    """The broker's rule of thumb: twice the credit below the window."""
    found = chosen(recommend("g", candidates(lambda c, w: 10.0 * c, windows=(400,)), Aim()))
    assert "fill a window of 400" in found.notes[0]
    assert not any("fill a window" in reason for reason in found.reasons)
    assert "    mind: one link with" in told(found)


def test_a_setting_that_links_wait_for_and_nobody_varied_is_named() -> None:
    """A quarter of the time is much; what was varied is not named, and too little neither."""
    waits = {("consumers", "queue credit in flight"): 0.66, ("publishers", "credit withheld"): 0.5}
    found = chosen(recommend("g", candidates(knee, waits=waits), Aim()))
    (weak,) = [weak for weak in found.weak if "vary it" in weak]
    assert weak == (
        "consumers wait 66% of the time (queue credit in flight), and max_queue_credit was 256 in all runs: "
        "vary it, too"
    )
    little = candidates(knee, waits={("consumers", "queue credit in flight"): 0.2})
    assert chosen(recommend("g", little, Aim())).weak == ()


def test_groups_without_a_choice_are_told_together() -> None:
    """One reason, said once."""
    found = [recommend(name, [Candidate((170, 400, 256), (5.0,))], Aim()) for name in ("g", "h")]
    assert all_told([*found, recommend("i", [], Aim())]) == (
        "no recommendation: only 170 / 400 / 256 was measured, so there is nothing to choose from:\n"
        "    g\n    h\n\n"
        "no recommendation: no run of it has a throughput:\n    i\n"
    )


@pytest.mark.parametrize("pool", [[], [Candidate((170, 400, 256), ())]])
def test_without_a_throughput_there_is_no_recommendation(pool: list[Candidate]) -> None:
    """Nothing was counted."""
    found = recommend("g", pool, Aim())
    assert isinstance(found, NoRecommendation)
    assert "no recommendation" in told(found)


def test_a_single_setting_is_no_choice() -> None:
    """It is named, and not recommended."""
    found = recommend("g", [Candidate((170, 400, 256), (5.0, 6.0))], Aim())
    assert isinstance(found, NoRecommendation)
    assert "only 170 / 400 / 256 was measured" in found.reason


def test_what_is_pasted_is_understood_by_the_broker() -> None:
    """The command line by its parser, the file by TOML; settings that are not known are left out."""
    from amqp10broker.cli.main import build_parser
    from amqp10broker.config.records import FLOW_SETTINGS

    found = chosen(recommend("g", candidates(knee), Aim()))
    parsed = vars(build_parser("serve").parse_args(found.command_line.split()[1:]))
    settings = tomllib.loads(found.toml)
    assert set(settings) == set(FLOW_SETTINGS)
    assert {name: str(parsed[name]) for name in settings} == {
        name: str(value) for name, value in settings.items()
    }
    partly = [Candidate((None, window, None), (window * 1.0,)) for window in (50, 400)]
    assert (
        chosen(recommend("g", partly, Aim())).command_line == "amqp10broker serve --max-incoming-window 400"
    )
