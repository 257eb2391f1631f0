"""Analysis of recordings: windows, figures, what is recommended, and the report."""

from __future__ import annotations

import csv
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JError

from amqp10broker.observe.flow_events import CONFIGURATION, FIELDS, PACK, EventKind
from amqp10broker.observe.recording import RUN_FIELDS, EventWriter, RunRecord, write_run
from amqp10broker.tools.analysis.cells import (
    RATIO,
    ZERO_BUCKET,
    Cell,
    estimate,
    lower_edge_ns,
    quantile,
    quantiles,
    scatter,
)
from amqp10broker.tools.analysis.figures import (
    Measured,
    compare,
    configurations,
    describe_settings,
    groups,
    measure,
)
from amqp10broker.tools.analysis.follow import Ending, first_open_s
from amqp10broker.tools.analysis.recommend import (
    Aim,
    Candidate,
    NoRecommendation,
    Recommendation,
    recommend,
    recommend_all,
    told,
)
from amqp10broker.tools.analysis.report import (
    Analysed,
    LinkWait,
    comparisons,
    report,
    tables_of,
    write_tables,
)
from amqp10broker.tools.analysis.session import SparkFailed, explained
from tests.support import synthetic
from tests.support.flow_oracle import measured


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a recording of two sizes, three repetitions, a rate limit and two streams."""
    folder = tmp_path_factory.mktemp("recording")
    plants = synthetic.sweep(
        credits=(10, 50, 170, 1000), windows=(50, 400), sizes=(100, 10_000), events=40_000, noise=0.005
    )
    plants += synthetic.sweep(
        credits=(50, 170), windows=(400,), rate_limit_per_s=20_000.0, events=10_000, repetitions=1
    )
    synthetic.write(folder, plants + synthetic.two_senders(events=4_000))
    return folder


def analysed(folder: Path, aim: Aim | None = None) -> Analysed:
    found, runs = measured(folder)
    together = groups(configurations(runs))
    chosen = aim or Aim()
    where = {
        "connection": 3,
        "channel": 0,
        "handle": 1,
        "began_ns": found.runs[0]["began_ns"] + 1_500_000_000,
    }
    named = {"link": "a <b> & c", "address": "/queues/q", "client": "shop", "user": "ann", "vhost": "/"}
    unnamed = dict.fromkeys(named)
    waits = [
        LinkWait(
            run_id=found.runs[0]["run_id"],
            side="publisher",
            reason="no credit",
            seconds=s,
            **subject,
            **where,
        )
        for s, subject in ((7.25, named), (1.5, unnamed))
    ]
    return Analysed(found, runs, together, recommend_all(together, chosen), chosen.describe(), waits)


@pytest.fixture(scope="module")
def known(recording: Path) -> Analysed:
    return analysed(recording)


@pytest.fixture(scope="module")
def html(known: Analysed) -> str:
    return report(known)


def tree(html: str) -> ElementTree.Element:
    return ElementTree.fromstring(html.partition("\n")[2])


def text_of(element: ElementTree.Element) -> str:
    return " ".join("".join(element.itertext()).split())


def test_the_planted_optimum_is_recommended(known: Analysed) -> None:
    """The knees are at 100 credits and a window of 200; 170 and 400 are the least tried values beyond."""
    found = [one for one in known.recommended if isinstance(one, Recommendation)]
    assert [one.chosen.settings for one in found] == [(170, 400, 256)] * 2
    assert [one.group.count("10,000 B") for one in found] == [0, 1]


@pytest.mark.parametrize("seed", range(6))
def test_the_table_and_the_recommendation_tell_the_same_settings_apart(tmp_path: Path, seed: int) -> None:
    """Settings that differ in the comparison table are not reported as hidden by noise."""
    plants = synthetic.sweep(
        credits=(10, 50, 170, 1000), windows=(50, 400), noise=0.33, events=4_000, seed=seed
    )
    synthetic.write(tmp_path, plants)
    known = analysed(tmp_path)
    (members,), (one,) = known.groups, known.recommended
    assert isinstance(one, Recommendation)
    compared = compare(members, "throughput_per_s", highest=True)
    hidden = {
        describe_settings(each.configuration[CONFIGURATION.index("max_link_credit") :][:3])
        for each in compared
        if each.distinguishable is False
    }
    apart = sum(each.distinguishable is True for each in compared)
    said = " ".join(one.weak)
    for each in compared:
        name = describe_settings(each.configuration[CONFIGURATION.index("max_link_credit") :][:3])
        if f"{name} (" in said.partition("as good as the best, too: ")[2]:
            assert name in hidden
    assert (one.unproven is None) is (apart > 0)


def test_what_was_not_proven_is_no_recommendation_at_first_sight(tmp_path: Path) -> None:
    """The card begins with the doubt, and is not green."""
    synthetic.write(
        tmp_path, synthetic.sweep(credits=(150, 170, 200), windows=(400,), noise=0.2, events=4_000, seed=1)
    )
    known = analysed(tmp_path)
    (one,) = known.recommended
    assert isinstance(one, Recommendation)
    assert one.unproven is not None
    html = report(known)
    assert '<div class="card none">' in html
    assert '<div class="card">' not in html
    text = text_of(tree(html))
    assert text.index("Not proven: ") < text.index("amqp10broker serve --max-link-credit")


def test_the_report_is_well_formed_and_has_figures_and_reasons_of_each_group(html: str) -> None:
    """Figures are by setting, the recommended one marked; reasons by side, most frequent first."""
    root = tree(html)
    summaries = [text_of(each) for each in root.iter("summary")]
    assert summaries.count("Why links wait") == 4
    assert summaries.count("Figures of 8 configurations") == 2
    chosen = [text_of(next(row.iter("td"))) for row in root.iter("tr") if row.get("class") == "chosen"]
    assert chosen == ["170 / 400 / 256"] * 4
    reasons = [[text_of(cell) for cell in row.iter("td")] for row in root.iter("tr")]
    (row, *_) = [row for row in reasons if row[:1] == ["10 / 50 / 256"] and len(row) == 4]
    assert re.fullmatch(r"credit withheld \d+%, peer window closed \d+%", row[1])


def test_the_report_asks_nothing_of_the_network_and_runs_nothing(html: str) -> None:
    """It has no script and no external reference; its only addresses are XML names."""
    root = tree(html)
    assert not {"script", "link", "img", "iframe", "object", "embed"} & {
        element.tag.rpartition("}")[2] for element in root.iter()
    }
    outside = [
        value
        for element in root.iter()
        for name, value in element.items()
        if name.rpartition("}")[2] in ("href", "src", "data", "action") and not value.startswith("#")
    ]
    assert outside == []
    assert "://" not in html
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)


def test_names_from_elsewhere_are_escaped(tmp_path: Path) -> None:
    evil = '<script>alert("$x_1$ & more")</script>'
    for number, plant in enumerate(synthetic.two_senders(repetitions=1, events=400)):
        settings = '{"streams": ["<b>$fast$</b>", "slow & \\"lazy\\""]}'
        run = replace(plant.run, run_id=f"r{number}", case=evil, machine=evil, settings=settings)
        synthetic.write(tmp_path, [replace(plant, run=run)])
    html = report(analysed(tmp_path))
    assert "<script" not in html
    assert "<b>" not in html
    text = text_of(tree(html))
    assert evil in text
    assert "<b>$fast$</b>" in text
    assert 'slow & "lazy"' in text


def test_control_characters_in_names_leave_the_report_well_formed(tmp_path: Path) -> None:
    """XML cannot represent most of them."""
    plants = []
    for number, case in enumerate(("a\x00b\x1b[31m", "\ufffe\x7f")):
        (plant,) = synthetic.two_senders(repetitions=1, events=400)
        settings = json.dumps({"streams": ["f\x01st", "slow"]})
        plants.append(
            replace(plant, run=replace(plant.run, run_id=f"r{number}", case=case, settings=settings))
        )
    synthetic.write(tmp_path, plants)
    text = text_of(tree(report(analysed(tmp_path))))
    assert "a\ufffdb\ufffd[31m" in text
    assert "f\ufffdst" in text


def test_tables_are_there_as_csv_and_parquet_with_the_same_rows(known: Analysed, tmp_path: Path) -> None:
    """Both formats have all columns, with one figure per cell."""
    tables = tables_of_all(known)
    assert set(tables) == {
        "runs", "configurations", "stalls", "configuration_stalls", "streams", "latencies", "comparison",
        "recommendations", "waits",
    }  # fmt: skip
    written = write_tables(tmp_path, tables)
    assert {path.name for path in written} == {
        f"{name}.{kind}" for name in tables for kind in ("csv", "parquet")
    }
    for name, rows in tables.items():
        table = pq.read_table(tmp_path / f"{name}.parquet")
        with (tmp_path / f"{name}.csv").open(newline="") as file:
            lines = list(csv.reader(file))
        assert table.column_names == lines[0]
        assert {column for row in rows for column in row} == set(lines[0])
        assert table.num_rows == len(lines) - 1 == len(rows)
    by_hand = {run.figures.run_id: run.figures.throughput_per_s for run in known.measured}
    runs = pq.read_table(tmp_path / "runs.parquet")
    assert (
        dict(zip(*(runs[name].to_pylist() for name in ("run_id", "throughput_per_s")), strict=True))
        == by_hand
    )


def tables_of_all(known: Analysed) -> dict[str, list[dict[str, Any]]]:
    found = [each for members in known.groups for each in members]
    return tables_of(known.measured, found, comparisons(known.groups), known.recommended, known.waits)


def candidates(
    rate: Callable[[int, int], float],
    credits: Iterable[int] = (10, 50, 170, 500, 1000),
    windows: Iterable[int] = (50, 400, 2000),
    scatter: tuple[float, ...] = (-0.01, 0.0, 0.01),
    **more: object,
) -> list[Candidate]:
    """Make a sweep whose throughput depends on credit and window, with scatter among repetitions."""
    return [
        Candidate((credit, window, 256), tuple(rate(credit, window) * (1 + each) for each in scatter), **more)  # type: ignore[arg-type]
        for window in windows
        for credit in credits
    ]


def chosen(found: Recommendation | NoRecommendation) -> Recommendation:
    assert isinstance(found, Recommendation), found
    return found


def knee(credit: int, window: int) -> float:
    """Throughput is flat from 170 credits and a window of 400 on."""
    return 60_000 * min(1, credit / 100) * min(1, window / 300)


def test_the_smallest_of_those_as_good_as_the_best_is_recommended() -> None:
    """All settings beyond the knee are equal; the knee costs least. One worse setting is a proof."""
    found = chosen(recommend("g", candidates(knee), Aim()))
    assert found.chosen.settings == (170, 400, 256)
    assert {one.settings[:2] for one in found.as_good} == {
        (credit, window) for credit in (170, 500, 1000) for window in (400, 2000)
    }
    assert found.weak == ()
    assert found.unproven is None
    assert "not proven" not in told(found)


def test_what_is_four_percent_behind_is_recommended_with_the_difference_named() -> None:
    """The reason states the loss of throughput."""
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
    """Neither the page nor the terminal then recommends a setting with confidence."""
    flat = candidates(lambda c, w: 60_000 + c, scatter=(-0.2, 0.0, 0.2))
    found = chosen(recommend("g", flat, Aim()))
    assert "no setting is further than that from the best" in found.unproven
    assert "not proven: repetitions scatter by 20%" in told(found)
    assert "leave the settings as they are" in told(found)


def test_the_lowest_latency_among_those_that_sustain_the_rate() -> None:
    """Small credits give lower latency, but cannot sustain the rate."""
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
    """170 credits keep 97 % of it with half the memory."""
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
    """The load may have differed between settings, and the recording does not show it."""

    def answer(benchmark: str) -> Recommendation:
        runs = [of_run(benchmark, credit, 1000.0 * credit) for credit in (50, 170)]
        (found,) = recommend_all(groups(configurations(runs)), Aim())
        return chosen(found)

    own, swept = answer("broker"), answer("sweep")
    assert own.chosen.settings == swept.chosen.settings == (170, 400, 256)
    assert "a difference may be one of the loads" in own.weak[0]
    assert own.weak[1:] == swept.weak
    assert "python -m benchmarks sweep --record DIR" in told(own)


def test_what_is_pasted_is_understood_by_the_broker() -> None:
    """The broker's parser accepts the command line, and TOML the file; unknown settings are left out."""
    from amqp10broker.cli.main import build_parser
    from amqp10broker.config.settings import FLOW_SETTINGS

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


BEGAN = 1_790_000_000_000_000_000
S = 1_000_000_000
RUN = RunRecord(
    run_id="r1",
    benchmark="sweep",
    began_ns=BEGAN,
    ended_ns=BEGAN + 10 * S,
    max_link_credit=100,
    max_incoming_window=400,
    max_queue_credit=256,
    protocol="amqp10",
)


def event(at_s: float, kind: EventKind, **values: int) -> bytes:
    """Return one packed event, this many seconds after the start of the run."""
    columns = {"ts_ns": BEGAN + round(at_s * S), "kind": int(kind), **values}
    return PACK.pack(*(columns.get(field.name, 0) for field in FIELDS))


def figures(folder: Path, events: Iterable[bytes], run: RunRecord = RUN) -> Measured:
    with EventWriter(folder, run.run_id) as writer:
        for each in events:
            writer.write(each)
    write_run(folder, run)
    return measured(folder)[1][0]


def test_warm_up_and_what_comes_after_the_end_do_not_count(tmp_path: Path) -> None:
    """An event belongs to the run by its time, and both limits are inside."""
    sent = [(-0.1, 1000), (0.0, 1), (5.0, 10), (10.0, 100), (10.1, 1000)]
    found = figures(tmp_path, [event(at, EventKind.CLIENT_RECEIVED, n=n, value_ns=S) for at, n in sent])
    assert found.figures.throughput_per_s == pytest.approx(111 / 10)
    assert found.figures.events == 3


def test_a_run_that_is_still_recorded_counts_up_to_its_last_event(tmp_path: Path) -> None:
    run = replace(RUN, ended_ns=None)
    found = figures(
        tmp_path, [event(at, EventKind.CLIENT_RECEIVED, n=50, value_ns=S) for at in (1, 2, 4)], run
    )
    assert found.figures.complete is False
    assert found.figures.duration_s == pytest.approx(4)
    assert found.figures.throughput_per_s == pytest.approx(150 / 4)


def test_throughput_is_what_came_furthest(tmp_path: Path) -> None:
    """It is the received rate, else confirmed or sent by stream, else the broker's output or input."""
    into = event(1, EventKind.LINK_IN, n=400, value_ns=S)
    out = event(1, EventKind.LINK_OUT, n=300, value_ns=S)
    sent = [event(1, EventKind.CLIENT_SENT, n=200, value_ns=S, channel=stream) for stream in (0, 1)]
    confirmed = event(1, EventKind.CLIENT_CONFIRM, n=150, value_ns=S, channel=1)
    received = event(1, EventKind.CLIENT_RECEIVED, n=100, value_ns=S)
    steps = [([into], 40), ([out], 30), (sent, 40), ([confirmed], 35), ([received], 10)]
    known: list[bytes] = []
    for number, (more, rate) in enumerate(steps):
        known += more
        found = figures(tmp_path / str(number), known)
        assert found.figures.throughput_per_s == pytest.approx(rate), found.figures.throughput_source


def test_streams_are_figured_apart_and_named_by_the_run(tmp_path: Path) -> None:
    run = replace(RUN, settings=json.dumps({"streams": ["fast", "slow"]}))
    events = [
        event(1, EventKind.CLIENT_CONFIRM, n=n, value_ns=ms * 1_000_000, channel=stream)
        for stream, n, ms in ((0, 900, 1), (1, 90, 50))
    ]
    found = figures(tmp_path, events, run)
    assert [(one.stream, one.confirmed_per_s, one.sent_per_s) for one in found.streams] == [
        ("fast", 90.0, None),
        ("slow", 9.0, None),
    ]
    assert found.streams[1].confirm_p50_ms == pytest.approx(50, rel=0.045)
    assert found.figures.throughput_per_s == pytest.approx(99)


def test_confirm_latency_is_the_clients_if_it_wrote_it_down(tmp_path: Path) -> None:
    broker = event(1, EventKind.CONFIRM, n=10, value_ns=1_000_000)
    client = event(1, EventKind.CLIENT_CONFIRM, n=10, value_ns=8_000_000)
    alone = figures(tmp_path / "a", [broker]).figures
    both = figures(tmp_path / "b", [broker, client]).figures
    assert (alone.confirm_source, both.confirm_source) == ("broker", "client")
    assert alone.confirm_p50_ms == pytest.approx(1, rel=0.045)
    assert both.confirm_p99_ms == pytest.approx(8, rel=0.045)


def test_the_depth_of_queues_is_a_mean_over_time(tmp_path: Path) -> None:
    """Many events within a tenth of a second have only a tenth of a second's weight in the mean."""
    burst = [
        event(5 + number / 100, EventKind.QUEUE, queue_depth=1000, handle=1, value_ns=S // 100)
        for number in range(1, 11)
    ]
    quiet = [event(at, EventKind.QUEUE, handle=1, value_ns=S) for at in (1, 2, 3, 4, 5)]
    # It began before the run did: the part inside counts.
    other = event(4.9, EventKind.QUEUE, handle=2, queue_depth=50, value_ns=9 * S)
    found = figures(tmp_path, [*quiet, *burst, other]).figures
    assert found.queue_depth_mean == pytest.approx((0.1 * 1000 + 4.9 * 50) / 10)
    assert found.queue_depth_max == 1000


def test_windows_and_queue_credit_used(tmp_path: Path) -> None:
    """The shares are of the run's limits; a consumer's credit is a share of its maximum."""
    events = [
        event(1, EventKind.LINK_IN, value_ns=S, incoming_window=100, queue_credit=30),
        event(1, EventKind.LINK_OUT, value_ns=S, queue_credit=64, link_credit=20),
        event(2, EventKind.LINK_OUT, value_ns=S, queue_credit=64, link_credit=40),
    ]
    found = figures(tmp_path, events).figures
    assert found.window_utilisation == pytest.approx(0.75)
    assert found.queue_credit_utilisation == pytest.approx(0.75)
    assert found.consumer_credit_utilisation == pytest.approx(0.25)
    assert found.unconfirmed_mean == pytest.approx(30)


def test_repetitions_are_taken_together_and_other_settings_apart(tmp_path: Path) -> None:
    """Rows are grouped by the configuration columns, so groups may differ in rate limit alone."""
    for number, (credit, n) in enumerate(((100, 900), (100, 1100), (50, 400))):
        run = replace(RUN, run_id=f"r{number}", repetition=number, max_link_credit=credit)
        figures(tmp_path, [event(1, EventKind.CLIENT_RECEIVED, n=n, value_ns=S)], run)
    other = replace(RUN, run_id="other", message_size_bytes=10)
    figures(tmp_path, [event(1, EventKind.CLIENT_RECEIVED, n=1, value_ns=S)], other)
    found = configurations(measured(tmp_path)[1])
    assert [(each["max_link_credit"], each.values("throughput_per_s")) for each in found] == [
        (50, (40.0,)),
        (100, (90.0, 110.0)),
        (100, (0.1,)),
    ]
    together = groups(found)
    assert [len(members) for members in together] == [2, 1]
    compared = compare(together[0], "throughput_per_s", highest=True)
    assert [(one.mean, one.difference, one.distinguishable) for one in compared] == [
        (100.0, 0.0, None),
        (40.0, -60.0, None),
    ]


def test_an_interval_is_students() -> None:
    """10, 12, 14 have deviation 2; t with two degrees of freedom is 4.303."""
    known = estimate([10.0, 12.0, 14.0])
    assert known.mean == 12
    assert known.deviation == pytest.approx(2)
    assert known.half_width == pytest.approx(4.3026527297 * 2 / math.sqrt(3))
    assert known.low == pytest.approx(12 - known.half_width)  # type: ignore[operator]


def test_what_the_scatter_hides_is_that_of_a_worked_example() -> None:
    """Two settings scatter by 14.1 % of their means, with two degrees of freedom: t is 4.303, and
    sqrt(1/2 + 1/2) is 1."""
    known = scatter([[90, 110], [900, 1100], [7]])
    assert (known.noise, known.freedom) == (pytest.approx(math.sqrt(0.02)), 2)
    assert known.visible(2, 2) == pytest.approx(4.3026527297 * math.sqrt(0.02))
    assert known.visible(4, 4) == pytest.approx(known.visible(2, 2) / math.sqrt(2))
    assert scatter([[0.0, 0.0], []]) is None


def test_sixteen_buckets_double_a_value() -> None:
    """Bucket edges are powers of two every sixteen buckets."""
    assert lower_edge_ns(0) == 1
    assert lower_edge_ns(16 * 20) == 2**20
    assert pytest.approx(2) == RATIO**16


def test_latencies_of_clocks_that_disagree_read_as_zero() -> None:
    """They are counted, in a place below all others."""
    assert quantiles({ZERO_BUCKET: 3, 160: 1}, (0.5, 1.0)) == [0.0, pytest.approx(2**10 * RATIO)]


def test_a_quantile_is_interpolated_inside_its_bucket() -> None:
    """Half of one bucket is at its middle on the logarithmic scale."""
    assert quantile({160: 10}, 0.5) == pytest.approx(2**10 * RATIO**0.5)
    assert quantile({160: 10}, 1.0) == pytest.approx(2**10 * RATIO)
    assert quantile({160: 10}, 0.0) == pytest.approx(2**10)


SAID = """An error occurred while calling o91.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult: [FAILED_READ_FILE] Error while reading
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:53)
Caused by: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///a%20b/part-3.parquet.
"""


@pytest.mark.parametrize(
    ("said", "parts"),
    [
        (
            SAID,
            (
                "/a b/part-3.parquet: Spark has given up: [FAILED_READ_FILE.NO_HINT] Encountered error",
                "move it away and analyse again",
            ),
        ),
        ("java.lang.OutOfMemoryError: Java heap space", ("/rec: Spark has", "give it more with --memory")),
        ("", ("it has said nothing; analyse it again",)),
    ],
)
def test_what_spark_throws_is_explained(said: str, parts: tuple[str, ...]) -> None:
    """The explanation has one line and no Java trace."""
    with pytest.raises(SparkFailed) as failed, explained(Path("/rec")):
        raise Py4JError(said)
    assert "\n" not in str(failed.value)
    assert "scala" not in str(failed.value)
    for part in parts:
        assert part in str(failed.value)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def due(ending: Ending, clock: Clock, now: float, *, idle: bool = True) -> bool:
    clock.now = now
    return ending.looks() and ending.due(idle=idle)


def test_a_recording_is_over_when_its_runs_are_and_nothing_comes(tmp_path: Path) -> None:
    """It is over once, and again after another file has come."""
    first, second = synthetic.two_senders(repetitions=2, events=400)
    synthetic.write(tmp_path, [first])
    write_run(tmp_path, replace(first.run, ended_ns=None))
    clock = Clock()
    ending = Ending(tmp_path, 20, clock)
    assert not due(ending, clock, 10), "files may still come"
    assert not due(ending, clock, 31), "the run goes on"
    write_run(tmp_path, first.run)
    assert not due(ending, clock, 34, idle=False), "the stream is still reading"
    assert not due(ending, clock, 35), "it is too early to look again"
    assert due(ending, clock, 40)
    assert not due(ending, clock, 50), "that was said"
    synthetic.write(tmp_path, [second])
    assert not due(ending, clock, 60)
    assert not due(ending, clock, 79)
    assert due(ending, clock, 81)


def test_the_first_second_that_is_open(tmp_path: Path) -> None:
    """A second that ends at the mark of the last finished batch is closed."""
    assert first_open_s(tmp_path) is None
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    assert first_open_s(tmp_path) is None
    marks = (0, 100_000, 100_999, 200_000)
    expected = (None, 100, 100)
    for number, mark in enumerate(marks):
        text = f'v1\n{{"batchWatermarkMs":{mark},"conf":{{}}}}\n{{"logOffset":0}}'
        (tmp_path / "offsets" / str(number)).write_text(text)
    for number, second in enumerate(expected):
        (tmp_path / "commits" / str(number)).write_text("v1\n{}")
        assert first_open_s(tmp_path) == second
