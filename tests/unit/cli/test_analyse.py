"""``amqp10broker analyse``: what it refuses, with which exit code and which advice. No Spark is started."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkRuntimeError

from amqp10broker.cli.main import main
from amqp10broker.observe.flow_events.schema import VERSION_KEY
from amqp10broker.observe.recording.runs import write_run
from amqp10broker.spark.errors import JavaNotFound, MissingExtraError
from amqp10broker.tools.analysis import session
from tests.support import synthetic

Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small one, whole."""
    folder = tmp_path_factory.mktemp("recording")
    synthetic.write(folder, synthetic.two_senders(repetitions=1, events=400))
    return folder


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--aim", "latency"], "--aim latency has no --rate above 0"),
        (["--aim", "latency", "--rate", "0"], "--aim latency has no --rate above 0"),
        (["--aim", "latency", "--rate", "nan"], "--aim latency has no --rate above 0"),
        (["--rate", "5"], "--rate is given with --aim throughput; it belongs to --aim latency"),
        (["--keep", "0.9"], "--keep is given with --aim throughput; it belongs to --aim memory"),
        (["--aim", "memory", "--keep", "1.5"], "--keep is 1.5; must be above 0, and 1 at most"),
        (["--master", "yarn"], "--master is 'yarn'; must be local[N]"),
        (["--master", "spark://10.0.0.1:7077"], "must be local[N], local[*] or spark://127.0.0.1:PORT"),
        (["--memory", "lots"], "--memory is 'lots'; must be a number and m or g"),
        (["--memory", "99999g"], "--memory is 99999g; this machine has "),
        (["--memory", "100m"], "--memory is 100m; Spark needs 512m at least"),
        (["--late", "3"], "--late is given without --follow"),
        (["--follow", "--aim", "throughput"], "--aim is given with --follow"),
        (["--follow", "--late", "-1"], "--late is -1; must be 0 or more seconds"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    recording: Path, capsys: Output, arguments: list[str], complaint: str
) -> None:
    """With exit code 2, before anything is started."""
    assert main(["analyse", str(recording), *arguments]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--aim", "fame"], ["--rate", "many"], ["--late", "x"], []])
def test_what_is_no_value_at_all_is_refused_by_the_parser(
    arguments: list[str], capsys: Output, recording: Path
) -> None:
    """With exit code 2 as well."""
    folder = [str(recording)] if arguments else []
    with pytest.raises(SystemExit) as ended:
        main(["analyse", *folder, *arguments])
    assert ended.value.code == 2
    assert "usage: amqp10broker analyse" in capsys.readouterr().err


def test_a_folder_that_is_not_there(tmp_path: Path, capsys: Output) -> None:
    """Exit code 1, and what to name instead; nothing is made."""
    assert main(["analyse", str(tmp_path / "none")]) == 1
    assert "is no folder; name a folder that `serve --record`" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_no_recording(tmp_path: Path, capsys: Output) -> None:
    """It has no runs."""
    assert main(["analyse", str(tmp_path)]) == 1
    assert "has no runs.parquet with a run in it" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_recording_without_events(tmp_path: Path, capsys: Output) -> None:
    """A run has begun, and nothing was written yet."""
    write_run(tmp_path, synthetic.two_senders(repetitions=1)[0].run)
    assert main(["analyse", str(tmp_path)]) == 1
    assert "nothing was recorded yet" in capsys.readouterr().err


def test_events_of_other_runs_alone(tmp_path: Path, recording: Path, capsys: Output) -> None:
    """The row of their run is gone."""
    synthetic.write(tmp_path, synthetic.two_senders(repetitions=1, events=400))
    (row,) = (tmp_path / "runs.parquet").iterdir()
    row.unlink()
    write_run(tmp_path, replace(synthetic.two_senders(repetitions=1)[0].run, run_id="another"))
    assert main(["analyse", str(tmp_path)]) == 1
    assert "no run of runs.parquet has events" in capsys.readouterr().err


@pytest.mark.parametrize("version", [b"99", None])
@pytest.mark.parametrize("of", ["runs.parquet", "events"])
def test_a_recording_of_another_layout(
    tmp_path: Path, capsys: Output, version: bytes | None, of: str
) -> None:
    """In its rows or in its events: the numbers of kinds might mean something else."""
    synthetic.write(tmp_path, synthetic.two_senders(repetitions=1, events=400))
    (path,) = (tmp_path / of).rglob("*.parquet")
    table = pq.ParquetFile(path).read()
    pq.write_table(table.replace_schema_metadata({VERSION_KEY: version} if version else None), path)
    assert main(["analyse", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert ("layout 99" if version else "no version of recordings") in said
    assert "or record anew" in said


@pytest.mark.parametrize("of", ["runs.parquet", "events"])
def test_a_damaged_file_is_named(tmp_path: Path, capsys: Output, of: str) -> None:
    """Half of it is missing."""
    synthetic.write(tmp_path, synthetic.two_senders(repetitions=1, events=400))
    (path,) = (tmp_path / of).rglob("*.parquet")
    path.write_bytes(path.read_bytes()[:100])
    assert main(["analyse", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert str(path) in said
    assert "cannot be read as Parquet" in said


def test_an_output_that_is_a_file(tmp_path: Path, recording: Path, capsys: Output) -> None:
    """Nothing is overwritten, and another folder is asked for, before Spark is started."""
    (tmp_path / "here").write_text("mine")
    assert main(["analyse", str(recording), "--output", str(tmp_path / "here"), "--quiet"]) == 1
    assert "cannot be written: File exists; name another folder with --output" in capsys.readouterr().err
    assert (tmp_path / "here").read_text() == "mine"


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
    """With exit code 3."""

    def absent(*arguments: object, **options: object) -> None:
        raise missing

    monkeypatch.setattr(session, "local_session", absent)
    assert main(["analyse", str(recording), "--output", str(tmp_path), "--quiet", *how]) == 3
    said = capsys.readouterr().err
    assert "needs more than is installed" in said
    assert advice in said


@pytest.mark.parametrize("how", [[], ["--follow"]])
@pytest.mark.parametrize("package", ["pyspark", "pyarrow", "pandas", "jinja2"])
def test_without_a_package_it_says_which_extra_has_it(
    recording: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, package: str, how: list[str]
) -> None:
    """With exit code 3, and the extra that the analysis needs: that of recordings is not enough."""
    # What Python does for a package that is not there.
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["analyse", str(recording), "--quiet", *how]) == 3
    said = capsys.readouterr().err
    assert f"needs more than is installed: {package} is not installed" in said
    assert "pip install 'amqp10broker[spark]'" in said


def test_java_that_does_not_start_is_said_with_advice(
    recording: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With exit code 3, too."""

    def dead(*arguments: object, **options: object) -> None:
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr(session, "local_session", dead)
    assert main(["analyse", str(recording), "--quiet", "--memory", "600m"]) == 3
    said = capsys.readouterr().err
    assert "Spark does not start with --memory 600m: [JAVA_GATEWAY_EXITED]" in said
    assert "give it less memory" in said


def damaged(folder: Path) -> Path:
    """A recording whose fourth file is to be spoilt."""
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
    """The fourth of a run, too: Spark would take a column that is missing for null, without a word."""
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
    assert main(["analyse", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert f"{path}: {complaint}" in said


def test_a_folder_in_which_nothing_is_recorded_is_followed_with_a_warning(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a slip of the pen; also without progress, and before Spark takes its time to start."""

    def absent(*arguments: object, **options: object) -> None:
        raise JavaNotFound("no Java")

    monkeypatch.setattr(session, "local_session", absent)
    assert main(["analyse", str(tmp_path), "--follow", "--quiet"]) == 3
    assert f"nothing is recorded in {tmp_path} so far, and it is waited for" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_not_followed(tmp_path: Path, capsys: Output) -> None:
    """Spark is not started for that."""
    assert main(["analyse", str(tmp_path / "none"), "--follow"]) == 1
    assert "is no folder" in capsys.readouterr().err


def test_the_help_imports_nothing_heavy() -> None:
    """Nor does the command line of any other command."""
    program = (
        "import sys\nfrom amqp10broker.cli.main import main\n"
        "try: main(['analyse', '--help'])\nexcept SystemExit: pass\n"
        "heavy = {'pyspark', 'pyarrow', 'numpy', 'pandas', 'jinja2',"
        " 'amqp10broker.tools.analysis'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "--aim" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
