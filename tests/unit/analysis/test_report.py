"""The report and the tables, from recordings with planted figures; DuckDB adds them up instead of Spark."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow.parquet as pq
import pytest

from amqp10broker.observe.flow_events.schema import CONFIGURATION
from amqp10broker.observe.recording.runs import write_run
from amqp10broker.tools.analysis.configurations import compare, configurations, describe_settings, groups
from amqp10broker.tools.analysis.recommend import Aim, NoRecommendation, Recommendation, recommend_all
from amqp10broker.tools.analysis.report import Analysed, comparisons, report
from amqp10broker.tools.analysis.tables import tables_of, write_tables
from amqp10broker.tools.analysis.waits import LinkWait
from tests.support import synthetic
from tests.support.flow_oracle import measured

Read = Callable[..., Analysed]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sizes, three repetitions, a rate limit, and two streams."""
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
    """All that the report tells, without Spark."""
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
    """For the highest throughput."""
    return analysed(recording)


@pytest.fixture(scope="module")
def html(known: Analysed) -> str:
    """The report."""
    return report(known)


def tree(html: str) -> ElementTree.Element:
    """As XML: nothing is left open."""
    return ElementTree.fromstring(html.partition("\n")[2])


def text_of(element: ElementTree.Element) -> str:
    """All text inside."""
    return " ".join("".join(element.itertext()).split())


def test_the_planted_optimum_is_recommended(known: Analysed) -> None:
    """The knees lie at 100 credits and a window of 200: of what was tried, 170 and 400 suffice."""
    found = [one for one in known.recommended if isinstance(one, Recommendation)]
    assert [one.chosen.settings for one in found] == [(170, 400, 256)] * 2
    assert [one.group.count("10,000 B") for one in found] == [0, 1]


def test_what_cannot_be_chosen_is_not_recommended(known: Analysed) -> None:
    """two_senders was run with one setting."""
    (found,) = [one for one in known.recommended if isinstance(one, NoRecommendation)]
    assert found.group.startswith("two_senders")


@pytest.mark.parametrize("seed", range(6))
def test_the_table_and_the_recommendation_tell_the_same_settings_apart(tmp_path: Path, seed: int) -> None:
    """Settings that the table of comparisons has as told apart are not called hidden by noise."""
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


def test_the_report_is_called_by_the_recording(html: str, known: Analysed) -> None:
    """In the browser's title, too, also where a benchmark has cases beside each other."""
    name = known.recording.folder.name
    texts = [text_of(element) for tag in ("title", "h1") for element in tree(html).iter(tag)]
    assert texts == [f"Flow control: {name}", f"Flow control: what {name} shows"]


def test_what_was_not_proven_is_no_recommendation_at_first_sight(tmp_path: Path) -> None:
    """The card begins with the doubt, and is not the green one."""
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


def test_noise_that_hides_the_optimum_is_said(tmp_path: Path) -> None:
    """Repetitions that scatter by a third."""
    synthetic.write(tmp_path, synthetic.sweep(noise=0.33, events=30_000, repetitions=2, seed=5))
    (found,) = analysed(tmp_path).recommended
    assert isinstance(found, Recommendation)
    assert any("repetitions scatter by" in weak for weak in found.weak)


def test_the_aim_changes_what_is_recommended(recording: Path) -> None:
    """At 20 000 a second 50 credits are enough, and quicker."""
    small = analysed(recording, Aim("latency", 20_000.0)).recommended[0]
    assert isinstance(small, Recommendation)
    assert (small.chosen.settings, small.chosen.rate_limit_per_s) == ((50, 400, 256), 20_000.0)
    assert any("measured once" in weak for weak in small.weak)


def test_the_report_is_well_formed_and_has_figures_and_reasons_of_each_group(html: str) -> None:
    """By setting, with the recommended one emphasised; reasons by side, the most frequent first."""
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
    """No script, no reference outside, no address but names of XML."""
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


def test_the_report_says_what_to_set_why_and_how_sure_it_is(html: str) -> None:
    """With the interval, ready to paste."""
    text = text_of(tree(html))
    assert "amqp10broker serve --max-link-credit 170 --max-incoming-window 400 --max-queue-credit 256" in text
    assert "max_link_credit = 170" in text
    assert re.search(r"throughput [\d,]+ ± [\d,]+ \(95 %, 3 repetitions\) messages/s", text)
    assert "smallest credits and windows of the" in text or "the smallest of" in text
    assert "there is nothing to choose from" in text


def test_the_same_recording_gives_the_same_report(tmp_path: Path) -> None:
    """No date and no random name in it."""
    synthetic.write(tmp_path, synthetic.two_senders(repetitions=2, events=400))
    assert report(analysed(tmp_path)) == report(analysed(tmp_path))


def test_names_from_elsewhere_are_escaped(tmp_path: Path) -> None:
    """A case, a machine and a stream may be called anything."""
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
    """XML has no way to write most of them."""
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


def test_the_longest_waits_are_listed(html: str) -> None:
    """Which link, when, for how long and why; by numbers if nobody wrote its name down."""
    rows = [[text_of(cell) for cell in row.iter("td")] for row in tree(html).iter("tr")]
    first, second = (row for row in rows if row[3:4] == ["no credit"])
    assert first[:3] == ["publisher a <b> & c (connection 3, channel 0)", "/queues/q", "ann / shop"]
    assert second[:3] == ["publisher, connection 3, channel 0, handle 1", "-", "-"]
    assert (first[4], second[4]) == ("7.250", "1.500")
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3}", first[5])
    assert (first[6], second[6]) == ("1.5", "1.5")


def test_that_nothing_waited_is_said(tmp_path: Path) -> None:
    """Instead of a table without a row."""
    synthetic.write(tmp_path, synthetic.two_senders(repetitions=1, events=400))
    assert "No link waited for anything but messages" in report(replace(analysed(tmp_path), waits=()))


def test_one_run_is_one_run(tmp_path: Path) -> None:
    """And not 1 runs."""
    synthetic.write(tmp_path, synthetic.two_senders(repetitions=1, events=400))
    assert "1 run of 1 configuration from" in report(analysed(tmp_path))


def test_what_is_missing_from_a_recording_is_said(recording: Path, tmp_path: Path) -> None:
    """Runs without events, events without a run, runs that still go on, events that were dropped."""
    plants = synthetic.sweep(credits=(50, 170), windows=(400,), repetitions=1, events=2_000)
    synthetic.write(tmp_path, plants)
    live = replace(plants[0].run, ended_ns=None, events_dropped=77)
    write_run(tmp_path, live)
    write_run(tmp_path, replace(live, run_id="never-started"))
    (tmp_path / "events" / "run_id=stray").mkdir()
    (part,) = (tmp_path / "events" / f"run_id={live.run_id}").iterdir()
    (tmp_path / "events" / "run_id=stray" / "part-00000.parquet").write_bytes(part.read_bytes())
    text = text_of(tree(report(analysed(tmp_path))))
    assert f"Still being recorded, counted up to the last event: {live.run_id}." in text
    assert "there are no events of it: never-started." in text
    assert "nobody has said what it was: stray." in text
    assert "77 dropped" in text
    assert "buffers were full" in text


def test_tables_are_there_as_csv_and_parquet_with_the_same_rows(known: Analysed, tmp_path: Path) -> None:
    """Both have all columns; a figure is one figure."""
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
    """As the job makes them."""
    found = [each for members in known.groups for each in members]
    return tables_of(known.measured, found, comparisons(known.groups), known.recommended, known.waits)


def test_recommendations_and_stalls_are_there_as_numbers(known: Analysed) -> None:
    """Nobody has to read them out of a sentence."""
    tables = tables_of_all(known)
    decided = [row for row in tables["recommendations"] if row.get("settings")]
    assert [
        (row["benchmark"], row["message_size_bytes"], row["max_link_credit"], row["max_incoming_window"])
        for row in decided
    ] == [("sweep", 100, 170, 400), ("sweep", 10_000, 170, 400)]
    assert {row["benchmark"] for row in tables["recommendations"]} == {"sweep", "two_senders"}
    for row in tables["configuration_stalls"]:
        own = [
            stall["seconds"]
            for stall in tables["stalls"]
            if all(stall[name] == row[name] for name in (*CONFIGURATION, "side", "reason"))
        ]
        assert len(own) <= row["repetitions"]
        assert row["seconds"] == pytest.approx(sum(own))


def test_types_of_columns_do_not_follow_the_data_and_no_file_is_left_over(
    known: Analysed, tmp_path: Path
) -> None:
    """The broker's own recording names no protocol and has no streams; it is the second in the folder."""
    write_tables(tmp_path, tables_of_all(known))
    first = {path.name: pq.read_schema(path) for path in tmp_path.glob("*.parquet")}
    folder = tmp_path / "own"
    (plant,) = synthetic.two_senders(repetitions=1, events=400)
    run = replace(plant.run, benchmark="broker", protocol=None, queue_type=None, message_size_bytes=None)
    synthetic.write(folder, [replace(plant, run=run, streams=())])
    write_tables(tmp_path, tables_of_all(analysed(folder)))
    assert {path.name: pq.read_schema(path) for path in tmp_path.glob("*.parquet")} == first
    assert pq.read_table(tmp_path / "streams.parquet").num_rows == 0
    (line,) = (tmp_path / "streams.csv").read_text().splitlines()
    assert line.startswith('"run_id","benchmark"')


@pytest.mark.parametrize("name", ["=HYPERLINK()", "@SUM(A1)", "+1", "-1", "\t=1"])
def test_names_are_no_formulas_for_a_spreadsheet(tmp_path: Path, name: str) -> None:
    """With an apostrophe in the CSV, as they are in Parquet; numbers below zero are numbers."""
    (plant,) = synthetic.two_senders(repetitions=1, events=400)
    synthetic.write(tmp_path, [replace(plant, run=replace(plant.run, case=name))])
    output = tmp_path / "output"
    output.mkdir()
    write_tables(output, tables_of_all(analysed(tmp_path)))
    with (output / "runs.csv").open(newline="") as file:
        assert {row["case"] for row in csv.DictReader(file)} == {f"'{name}"}
    assert set(pq.read_table(output / "runs.parquet")["case"].to_pylist()) == {name}
    assert "'-" not in (output / "comparison.csv").read_text().replace("'-1", "")


def test_cases_with_one_setting_are_beside_each_other_under_the_shortest_names(tmp_path: Path) -> None:
    """What is common to all is left out, unless they differ in nothing else."""
    plants = []
    for number, (case, protocol) in enumerate((("5 ms", "amqp10"), ("5 ms", "amqp091"), ("50 ms", "amqp10"))):
        (plant,) = synthetic.two_senders(repetitions=1, events=400)
        run = replace(plant.run, run_id=f"r{number}", case=case, protocol=protocol)
        plants.append(replace(plant, run=run))
    synthetic.write(tmp_path, plants)
    text = text_of(tree(report(analysed(tmp_path))))
    assert "two_senders: cases with one setting each" in text
    for name in ("5 ms, AMQP 1.0", "5 ms, AMQP 0-9-1", "50 ms, AMQP 1.0"):
        assert name in text
