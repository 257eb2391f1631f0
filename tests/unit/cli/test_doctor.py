"""`amqp10broker doctor`: rows, JSON, and an exit code for scripts."""

from __future__ import annotations

from typing import Any

import pytest

from amqp10broker.cli import admin, main

WARNED = {"check": "metrics", "state": "warn", "evidence": "metrics are told", "to_do": "close them"}
BAD = {"check": "tls", "state": "bad", "evidence": "passwords go unencrypted", "to_do": "give a certificate"}


def answer(monkeypatch: pytest.MonkeyPatch, *checks: dict[str, str]) -> list[Any]:
    """Have the broker say this; what it is asked."""
    asked: list[Any] = []
    told = {"node": "a", "at_ms": 1, "boot_id": None, "checks": list(checks)}

    def ask(place: admin.Place, request: Any) -> Any:
        asked.append(request)
        return told

    monkeypatch.setattr(admin, "ask", ask)
    return asked


@pytest.mark.parametrize(
    ("checks", "code"), [((WARNED,), 0), ((), 0), ((BAD, WARNED), 69), ((WARNED, BAD), 69)]
)
def test_the_exit_code_is_0_if_nothing_is_bad(
    checks: tuple[dict[str, str], ...],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A warning is no reason to stop a roll-out."""
    asked = answer(monkeypatch, *checks)
    assert main.main(["doctor", "--formatter", "plain"]) == code
    assert asked == [{"op": "doctor", "arguments": {"by_itself": False}}]
    lines = ["state\tcheck\tevidence\tto_do", *("\t".join(each[n] for n in ORDER) for each in checks)]
    assert capsys.readouterr().out.splitlines() == lines


ORDER = ("state", "check", "evidence", "to_do")


def test_the_page_has_what_to_do_within_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is in order is named in one paragraph; no terminal and no pipe makes it wider."""
    fine = [{"check": f"check-{n}", "state": "ok", "evidence": "it is", "to_do": ""} for n in range(12)]
    answer(monkeypatch, BAD | {"evidence": "passwords go unencrypted " * 5}, WARNED, *fine)
    assert main.main(["doctor"]) == 69
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("bad       tls: passwords go unencrypted")
    assert [line.strip() for line in lines if "do: " in line] == ["do: give a certificate", "do: close them"]
    assert lines[-2].startswith("ok        check-0, check-1, ")
