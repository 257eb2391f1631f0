"""``amqp10broker record analyse``: what it refuses, with which exit code and advice. No Spark is started."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from amqp10broker.cli.main import main
from amqp10broker.spark.errors import JavaNotFound, MissingExtraError
from amqp10broker.tools.analysis import session
from tests.support import synthetic

Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recording")
    synthetic.write(folder, synthetic.two_senders(repetitions=1, events=400))
    return folder


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--aim", "latency"], "--aim latency needs --rate"),
        (["--aim", "latency", "--rate", "0"], "--aim latency needs --rate"),
        (["--aim", "latency", "--rate", "nan"], "--aim latency needs --rate"),
        (["--rate", "5"], "--rate cannot be used with --aim throughput; it belongs to --aim latency"),
        (["--keep", "0.9"], "--keep cannot be used with --aim throughput; it belongs to --aim memory"),
        (["--aim", "memory", "--keep", "1.5"], "--keep is 1.5; must be above 0, and 1 at most"),
        (["--master", "yarn"], "--master is 'yarn'; must be local[N]"),
        (["--master", "spark://10.0.0.1:7077"], "must be local[N], local[*] or spark://127.0.0.1:PORT"),
        (["--memory", "lots"], "--memory is 'lots'; must be a number and m or g"),
        (["--memory", "99999g"], "--memory is 99999g; give at most "),
        (["--memory", "100m"], "--memory is 100m; give at least 512m, which Spark needs"),
        (["--late", "3"], "--late cannot be used without --follow"),
        (["--follow", "--aim", "throughput"], "--aim cannot be used with --follow"),
        (["--follow", "--late", "-1"], "--late is -1; must be 0 or more seconds"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    recording: Path, capsys: Output, arguments: list[str], complaint: str
) -> None:
    """The exit code is 2, before anything is started."""
    assert main(["record", "analyse", str(recording), *arguments]) == 2
    assert complaint in capsys.readouterr().err


def test_a_folder_that_is_no_recording(tmp_path: Path, capsys: Output) -> None:
    assert main(["record", "analyse", str(tmp_path)]) == 1
    assert "has no runs.parquet with a run in it" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("of", ["runs.parquet", "events"])
def test_a_damaged_file_is_named(tmp_path: Path, capsys: Output, of: str) -> None:
    synthetic.write(tmp_path, synthetic.two_senders(repetitions=1, events=400))
    (path,) = (tmp_path / of).rglob("*.parquet")
    path.write_bytes(path.read_bytes()[:100])
    assert main(["record", "analyse", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert str(path) in said
    assert "cannot be read as Parquet" in said


@pytest.mark.parametrize(
    ("missing", "advice"),
    [
        (MissingExtraError("pyspark", "spark"), "pip install 'amqp10broker[spark]'"),
        (JavaNotFound("no Java 17; pip install 'amqp10broker[jdk]'"), "pip install 'amqp10broker[jdk]'"),
    ],
)
@pytest.mark.parametrize("how", [[], ["--follow"]])
def test_without_java_or_pyspark_it_says_what_to_install(
    recording: Path,
    tmp_path: Path,
    capsys: Output,
    monkeypatch: pytest.MonkeyPatch,
    missing: Exception,
    advice: str,
    how: list[str],
) -> None:
    def absent(*arguments: object, **options: object) -> None:
        raise missing

    monkeypatch.setattr(session, "local_session", absent)
    assert main(["record", "analyse", str(recording), "--output", str(tmp_path), "--quiet", *how]) == 3
    said = capsys.readouterr().err
    assert "needs more than is installed" in said
    assert advice in said


@pytest.mark.parametrize("how", [[], ["--follow"]])
@pytest.mark.parametrize("package", ["pyspark", "pyarrow", "pandas", "jinja2"])
def test_without_a_package_it_says_which_extra_has_it(
    recording: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, package: str, how: list[str]
) -> None:
    """The exit code is 3; the extra for recordings alone is not enough for the analysis."""
    # What Python does for a package that is not there.
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["record", "analyse", str(recording), "--quiet", *how]) == 3
    said = capsys.readouterr().err
    assert f"needs more than is installed: {package} is not installed" in said
    assert "pip install 'amqp10broker[spark]'" in said


def damaged(folder: Path) -> Path:
    (plant,) = synthetic.two_senders(repetitions=1, events=400)
    synthetic.write(folder, [plant])
    (first,) = (folder / "events").rglob("*.parquet")
    for number in (1, 2, 3):
        shutil.copy(first, first.with_name(f"part-broker-{number:05}.parquet"))
    return first.with_name("part-broker-00003.parquet")


@pytest.mark.parametrize(
    ("name", "kind", "complaint"),
    [
        ("value_ns", None, "it has no column value_ns"),
        ("n", "int32", "its column n is int32 and not int64"),
        (None, None, "cannot be read as Parquet"),
    ],
)
def test_every_file_is_looked_at(
    tmp_path: Path, capsys: Output, name: str | None, kind: str | None, complaint: str
) -> None:
    """The fourth file counts too: Spark would silently read a missing column as null."""
    path = damaged(tmp_path)
    if name is None:
        path.write_bytes(path.read_bytes()[:-20])
    else:
        table = pq.ParquetFile(path).read()
        place = table.schema.get_field_index(name)
        if kind is None:
            table = table.remove_column(place)
        else:
            table = table.set_column(place, name, table.column(name).cast(kind, safe=False))
        pq.write_table(table, path)
    assert main(["record", "analyse", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert f"{path}: {complaint}" in said
