"""What stands for a broker to which a command talks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from amqp10broker.cli import admin


class Broker:
    """Keeps what it is asked for.

    Attributes:
        answers: by operation, or one for all under None; an iterator gives one after the other, an exception
            is raised.
    """

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.answers: dict[str | None, Any] = {}

    def ask(self, place: admin.Place, request: Mapping[str, Any], *, timeout_s: float = 10.0) -> Any:
        self.requests.append(dict(request))
        answer = self.answers.get(request["op"], self.answers.get(None))
        if isinstance(answer, Exception):
            raise answer
        return next(answer) if isinstance(answer, Iterator) else answer


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker()
    monkeypatch.setattr(admin, "ask", broker.ask)
    return broker
