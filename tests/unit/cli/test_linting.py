"""``frames lint`` and ``frames print`` over a recording: what they print, and with which code they end."""

from __future__ import annotations

from pathlib import Path

import pytest

from amqp10broker.cli.main import main
from amqp10broker.observe.frames import records
from tests.support.rawframes import open_frame
from tests.support.tape import Tape


def written(path: Path, *, idle_time_out: int | None) -> str:
    tape = Tape(number=7)
    tape.came(open_frame(container_id="c", idle_time_out=idle_time_out))
    tape.records.append(records.KnownLink(0, 7, 0, "sender", "out", "/queues/q", 0, 0))
    tape.ended()
    lines = [records.first_line()]
    for record in tape.records:
        match record:
            case records.Listening():
                lines.append(records.listening_line(record))
            case records.KnownLink():
                lines.append(records.known_line(record))
            case records.Ended():
                lines.append(records.ended_line(record))
            case records.RecordedFrame():
                lines.append(records.frame_line(7, record.at_ns, record.direction, record.frame))
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def test_a_finding_has_its_frames_and_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "frames.jsonl", idle_time_out=None)
    assert main(["frames", "lint", "--file", path]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "risk: no-heartbeat: connection 7"
    assert shown[1] == "  its open has no idle-time-out"
    assert shown[2].startswith("  why:   If the network fails")
    assert shown[3].startswith("  to do: Set an idle-time-out")
    assert shown[4].startswith("       1970-01-01T00:00:00.000000Z <- ch 0 OPEN container-id=c")
    assert shown[-1] == "1 finding in 2 frames of 1 connection"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--file", "/nowhere"], "/nowhere cannot be read: No such file or directory"),
        (["3", "--file", "/nowhere"], "lint 3 is given with --file; give either"),
        (["--for", "3", "--file", "/nowhere"], "lint --for is given with --file; give either"),
    ],
)
def test_what_cannot_be_done_is_said(
    given: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["frames", "lint", *given]) != 0
    assert said in capsys.readouterr().err


def test_a_recording_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "frames.jsonl", idle_time_out=10_000)
    assert main(["frames", "print", path]) == 0
    shown = [line.partition(" connection 7 ")[2] for line in capsys.readouterr().out.splitlines()]
    assert shown[0] == "(127.0.0.1:4007) begins"
    assert shown[1] == "<- AMQP 0 1 0 0"
    assert shown[2].startswith("<- ch 0 OPEN container-id=c")
    assert shown[3] == "has a sender 'out' on channel 0, /queues/q"
    assert shown[4] == "has ended: closed by the client"
    assert main(["frames", "print", path, "--connection", "8"]) == 0
    assert capsys.readouterr().out == ""
