"""Many recordings by several settings: one answer each, and one table."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from amqp10broker.cli.main import main
from amqp10broker.observe.frames.records import read_lines
from amqp10broker.tools.replay.forecast import answer, answer_of_file, grid, table_rows
from amqp10broker.tools.replay.player import read_script
from tests.support.forecasts import forecasts
from tests.support.tape import Tape, write_tape
from tests.support.taped_publisher import BUSY, taped

Output = pytest.CaptureFixture[str]
SETTINGS = grid([20, 100], [], [50.0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recordings, a file that is none, one of another kind, and an empty folder."""
    folder = tmp_path_factory.mktemp("frames")
    write_tape(folder / "a.jsonl", taped(BUSY, credit=10, window=400, trip_s=0.05, messages=300))
    write_tape(
        folder / "b.jsonl", taped(BUSY, credit=20, window=400, trip_s=0.05, messages=300), Tape(number=2)
    )
    (folder / "c.jsonl").write_text("no JSON\n")
    (folder / "notes.txt").write_text("not meant by the folder\n")
    (folder / "empty").mkdir()
    return folder


def test_an_answer_has_what_each_setting_alone_would_get(folder: Path) -> None:
    """By link, in the order of the settings."""
    path = folder / "b.jsonl"
    lines = path.read_text().splitlines()
    found = answer("b", read_lines(lines), SETTINGS)
    assert [asked for asked, _ in found.forecasts] == SETTINGS
    for asked, forecast in found.forecasts:
        assert forecasts(read_script(read_lines(lines)), asked) == ([forecast], found.without)
    assert answer_of_file(str(path), SETTINGS).forecasts == found.forecasts
    assert found.problem is None


def test_a_file_that_is_none_is_an_answer(folder: Path) -> None:
    """With its problem, and so is one that is not there."""
    assert "line 1 of the recording of frames" in str(
        answer_of_file(str(folder / "c.jsonl"), SETTINGS).problem
    )
    (row,) = table_rows(answer_of_file(str(folder / "d.jsonl"), SETTINGS))
    assert row["no_forecast"] == "it cannot be read: No such file or directory"


def test_the_command_forecasts_the_others_and_names_the_bad_file(folder: Path, capsys: Output) -> None:
    """In a table, in words and as JSON; exit code 1."""
    asked = ["frames", "what-if", str(folder), "--max-link-credit", "20,100", "--round-trip-ms", "50"]
    assert main([*asked, "--format", "csv"]) == 1
    said = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(said.out)))
    assert [(Path(row["recording"]).name, row["max_link_credit"]) for row in rows] == [
        *(("a.jsonl", "20"), ("a.jsonl", "100"), ("b.jsonl", "20"), ("b.jsonl", "100")),
        *(("b.jsonl", ""), ("c.jsonl", "")),
    ]
    assert "c.jsonl: line 1 of the recording of frames: no JSON" in said.err
    assert "the other 2 were looked at" in said.err
    assert main(asked) == 1
    text = capsys.readouterr().out
    assert text.count("  recorded: ") == 2
    assert text.count("  what if:  (credit 100, round trip 50 ms) ") == 2
    assert f"{folder / 'c.jsonl'}:\nno forecast: line 1" in text
    assert main([*asked, "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [each["asked"]["max_link_credit"] for each in document["forecasts"]] == [20, 100] * 2
    assert [Path(each.partition(": ")[0]).name for each in document["without"]] == ["b.jsonl", "c.jsonl"]
