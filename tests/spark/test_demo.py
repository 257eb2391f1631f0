"""``make spark-demo`` from end to end, short: "spark_demo.py" with fewer messages and settings."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pyarrow.dataset
import pytest

from tests.support.broker_process import REPOSITORY
from tests.support.process_tree import Family, Listening, command_line, family, wait_until
from tests.support.spark_process import QUICK_SPARK

pytestmark = [pytest.mark.integration, pytest.mark.long]

COUNT: Final = 2000
DEMO_S: Final = 600.0
_LOOK_S: Final = 0.5


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """The folder's name is short: the path of its administration socket may have 103 bytes."""
    with TemporaryDirectory(prefix="demo") as folder:
        yield Path(folder)


def start(folder: Path, mark: dict[str, str]) -> subprocess.Popen[str]:
    options = ["--short", "--count", str(COUNT), "--folder", str(folder / "results")]
    # AMQP10BROKER_LONG, which selects this test, is not a setting of the broker.
    environment = {name: text for name, text in os.environ.items() if not name.startswith("AMQP10BROKER_")}
    with (folder / "out").open("w") as out:
        return subprocess.Popen(
            [sys.executable, str(REPOSITORY / "examples" / "spark_demo.py"), *options],
            env={**environment, **QUICK_SPARK, **mark, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # a terminal's ctrl-C goes to all of a group
        )


def told(members: Family) -> str:
    return "\n".join(f"{pid}: {command_line(pid)}" for pid in members.members())


def test_it_ends_with_a_report_and_listens_on_loopback_alone(tmp_path: Path) -> None:
    """Its processes do so all the time; all rows are there, and the report gives its own path."""
    listening: dict[tuple[str, int], Listening] = {}
    with family() as members, start(tmp_path, members.environment) as demo:
        end = time.monotonic() + DEMO_S
        while demo.poll() is None:
            assert time.monotonic() < end, (tmp_path / "out").read_text()
            listening |= {(str(each.address), each.port): each for each in members.listening()}
            time.sleep(_LOOK_S)
        said = (tmp_path / "out").read_text()
        assert demo.returncode == 0, said
        # A JVM ends a moment after the Python process whose pipe it reads.
        wait_until(lambda: not members.members(), "the end of all", explain=lambda: told(members))
    report = Path(said.splitlines()[-1])
    assert report == tmp_path / "results" / "report" / "report.html"
    assert "</html>" in report.read_text()
    rows = f"{COUNT} rows in {tmp_path}/results/stream/rows, {COUNT} different"
    assert rows in said
    assert pyarrow.dataset.dataset(tmp_path / "results" / "recording" / "events").count_rows() > 0
    for word in ("amqp10broker serve", "pyspark-shell"):
        assert any(word in each.program for each in listening.values()), f"{word} was not seen to listen"
    assert [each for each in listening.values() if not each.address.is_loopback] == []
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("amqp10broker-demo")] == []


def test_ctrl_c_ends_all_of_it(tmp_path: Path) -> None:
    with family() as members, start(tmp_path, members.environment) as demo:
        out = tmp_path / "out"
        wait_until(lambda: "spark_stream.py" in out.read_text(), "the Spark query", explain=out.read_text)
        wait_until(lambda: members.members("pyspark-shell"), "the JVM", explain=out.read_text)
        os.killpg(demo.pid, signal.SIGINT)
        assert demo.wait(DEMO_S) == 130, out.read_text()
        wait_until(lambda: not members.members(), "the end of all", explain=lambda: told(members))
    assert "interrupted; what is finished stands in" in out.read_text()
