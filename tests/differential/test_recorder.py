"""The words of the operation scripts, and the comparison of recordings; no broker is needed."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import proton
import pytest

from tests.differential.language import Call, parse, show
from tests.differential.recorder import (
    RECORDED_BESIDE,
    Difference,
    Place,
    Recorder,
    beside,
    differences,
    named,
    ours_of,
    sort_out,
    theirs_of,
)

OURS = """# Prose.
A.queue_declare("q")
= one
= two

A.get("q")
= empty
"""


def test_an_operation_is_a_call_with_literals() -> None:
    """Its arguments are Python literals, constructors of the protocols' types, and variables."""
    line = 'M.send("s", b"x", application={"n": uint(5)}, to=USER, more=[symbol("a"), -1, None])'
    call = parse(line, USER="u")
    named = {"application": {"n": proton.uint(5)}, "to": "u", "more": [proton.symbol("a"), -1, None]}
    assert call == Call("M", "send", ["s", b"x"], named)
    assert type(call.named["application"]["n"]) is proton.uint


@pytest.mark.parametrize("line", ["queue_declare()", "A.b", "A.b(open('x'))", "A.b(c)", "A.b(1 + x)"])
def test_anything_else_is_refused(line: str) -> None:
    """A script can execute only the operations of the clients."""
    with pytest.raises(ValueError, match=r".+"):
        parse(line)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"b": 1, "a": [True, None]}, "{'a': [True, None], 'b': 1}"),
        (proton.ulong(5), "ulong(5)"),
        (memoryview(b"x"), "b'x'"),
        (datetime.fromtimestamp(7, tz=UTC), "seconds(7)"),
        (Decimal("1.5"), "decimal('1.5')"),
        (UUID(int=1), "uuid('00000000-0000-0000-0000-000000000001')"),
        ("amq.gen-x7_Yz", "'<generated>'"),
        ("/queues/amq.rabbitmq.reply-to.g2dk==.x", "'/queues/<generated>'"),
        ("/bindings/src=e;key=k;args=Abc_1", "'/bindings/src=e;key=k;args=<generated>'"),
    ],
)
def test_what_is_seen_is_written_with_its_type(value: object, shown: str) -> None:
    assert show(value) == shown


def test_recordings_are_compared_by_operation() -> None:
    assert differences(OURS, OURS.replace("# Prose.", "# Other prose.")) == []
    found = differences(OURS, OURS.replace("= two\n", ""))
    assert found == [Difference('A.queue_declare("q")', ("= one", "= two"), ("= one",))]
    assert str(found[0]).splitlines()[1:] == ["    one:   = one", "    one:   = two", "    other: = one"]


def test_known_differences_are_sorted_out_with_their_reason() -> None:
    found = differences(OURS, OURS.replace("= two", "= 2").replace("= empty", "= full"))
    expected, surprising = sort_out(found, {"A.get(": "because"})
    assert [(each.operation, why) for each, why in expected] == [('A.get("q")', "because")]
    assert [each.operation for each in surprising] == ['A.queue_declare("q")']


def test_two_recordings_are_kept_in_one_text() -> None:
    """The other's differing answers stand below ours, and both can be extracted again."""
    theirs = OURS.replace("= two\n", "").replace("= empty", "= full")
    kept = beside(OURS, theirs)
    assert kept.splitlines() == [
        *("# Prose.", 'A.queue_declare("q")', "= one", "= two", "~ one", ""),
        *('A.get("q")', "= empty", "~ full"),
    ]
    assert ours_of(kept) == OURS
    assert theirs_of(kept) == theirs


def test_an_answer_of_nothing_is_kept_too() -> None:
    """One broker answered with a line, the other without a line."""
    none = OURS.replace("= empty\n", "")
    for one, other in ((OURS, none), (none, OURS)):
        kept = beside(one, other)
        assert (ours_of(kept), theirs_of(kept)) == (one, other)


def test_a_script_names_the_version_of_its_other_recording() -> None:
    first = named(OURS, "RabbitMQ 4.3.5")
    assert first.splitlines()[0] == RECORDED_BESIDE + "RabbitMQ 4.3.5."
    assert named(first, "RabbitMQ 4.3.6").splitlines()[1:] == OURS.splitlines()
    assert named(first, "RabbitMQ 4.3.6").splitlines()[0] == RECORDED_BESIDE + "RabbitMQ 4.3.6."


def test_an_answer_over_several_lines_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """RabbitMQ breaks long Erlang terms; a line that begins with neither sign would be an operation."""

    class Client:
        def perform(self, operation: str) -> list[str]:
            return ["refused {source,\n                 {utf8}}"]

        def close(self) -> None:
            pass

    monkeypatch.setattr(Recorder, "_connect", lambda self, name: Client())
    recorded = Recorder(Place("host", 1, "u", "p", None)).run("A.consume()\n")
    assert recorded.splitlines() == ["A.consume()", "= refused {source, {utf8}}"]


def test_a_url_names_the_place() -> None:
    assert Place.from_url("amqp://b%40d:p%2Fw@host:1234", None) == Place("host", 1234, "b@d", "p/w", None)
    assert Place.from_url("amqp://host", "x") == Place("host", 5672, "guest", "guest", "x")
