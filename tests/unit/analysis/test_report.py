"""The report and the tables, from recordings with planted figures; DuckDB adds them up instead of Spark."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow.parquet as pq
import pytest

from amqp10broker.observe.flow_events import CONFIGURATION
from amqp10broker.tools.analysis.figures import compare, configurations, describe_settings, groups
from amqp10broker.tools.analysis.recommend import Aim, Recommendation, recommend_all
from amqp10broker.tools.analysis.report import Analysed, comparisons, report
from amqp10broker.tools.analysis.tables import LinkWait, tables_of, write_tables
from tests.support import synthetic
from tests.support.flow_oracle import measured


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
    """The knees lie at 100 credits and a window of 200: of what was tried, 170 and 400 suffice."""
    found = [one for one in known.recommended if isinstance(one, Recommendation)]
    assert [one.chosen.settings for one in found] == [(170, 400, 256)] * 2
    assert [one.group.count("10,000 B") for one in found] == [0, 1]


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
    found = [each for members in known.groups for each in members]
    return tables_of(known.measured, found, comparisons(known.groups), known.recommended, known.waits)
