"""Many recordings by several settings: one answer each, and one table."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from amqp10broker.cli.main import main
from amqp10broker.observe.frames.records import read_lines
from amqp10broker.tools.replay.forecast import Settings, forecasts
from amqp10broker.tools.replay.many import (
    COLUMNS,
    NoRecordings,
    answer,
    answer_of_file,
    files_of,
    grid,
    table_rows,
)
from amqp10broker.tools.replay.script import read_script
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


def test_each_setting_with_each() -> None:
    """What is not given is as it was recorded."""
    assert grid([], [], []) == [Settings()]
    assert grid([20, 100], [], [50]) == [Settings(20, None, 50), Settings(100, None, 50)]
    assert len(grid([1, 2], [3, 4], [5, 6, 7])) == 12
    assert [str(each) for each in (Settings(), Settings(1, 2, 0.5))] == [
        "as recorded",
        "credit 1, incoming-window 2, round trip 0.5 ms",
    ]


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


def test_rows_have_all_columns(folder: Path) -> None:
    """One for each link and setting, and one for each of whom there is no forecast."""
    rows = list(table_rows(answer_of_file(str(folder / "b.jsonl"), SETTINGS)))
    assert [list(row) for row in rows] == [list(COLUMNS)] * 3
    assert [row["max_link_credit"] for row in rows] == [20, 100, None]
    assert rows[1]["rate"] == pytest.approx(2000, rel=0.1)
    assert rows[1]["waits_credit"] > 0.9
    assert rows[1]["recorded_link_credit"] == 20
    assert rows[1]["round_trip_ms"] == 50
    assert rows[1]["bytes_held"] > 0
    assert "limit of its own above that" in rows[1]["unknown"]
    assert "did not come as far as open" in rows[2]["no_forecast"]
    assert {row["recording"] for row in rows} == {str(folder / "b.jsonl")}


def test_a_file_that_is_none_is_an_answer(folder: Path) -> None:
    """With its problem, and so is one that is not there."""
    assert "line 1 of the recording of frames" in str(
        answer_of_file(str(folder / "c.jsonl"), SETTINGS).problem
    )
    (row,) = table_rows(answer_of_file(str(folder / "d.jsonl"), SETTINGS))
    assert row["no_forecast"] == "it cannot be read: No such file or directory"


def test_a_folder_stands_for_its_recordings(folder: Path) -> None:
    """Each file comes once; a folder without any is refused."""
    names = [str(folder / f"{letter}.jsonl") for letter in "abc"]
    assert files_of([names[1], str(folder)]) == [names[1], names[0], names[2]]
    with pytest.raises(NoRecordings, match=r"empty: it has no file \*.jsonl; name a folder that"):
        files_of([str(folder / "empty")])


def test_the_command_forecasts_the_others_and_names_the_bad_file(folder: Path, capsys: Output) -> None:
    """In a table, in words and as JSON; exit code 1."""
    asked = ["what-if", str(folder), "--max-link-credit", "20,100", "--round-trip-ms", "50"]
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


def test_standard_input_beside_a_file_is_refused(capsys: Output) -> None:
    """With exit code 2, before anything is read."""
    assert main(["what-if", "-", "x"]) == 2
    complaint = "- is given beside files; one recording alone can come from there"
    assert complaint in capsys.readouterr().err


def test_several_recordings_without_a_link(tmp_path: Path, capsys: Output) -> None:
    """Exit code 1, and why."""
    for name in ("a", "b"):
        write_tape(tmp_path / f"{name}.jsonl", Tape())
    assert main(["what-if", str(tmp_path)]) == 1
    assert "there is no link of AMQP 1.0 in 2 recordings" in capsys.readouterr().err
