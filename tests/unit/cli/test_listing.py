"""What commands print: tables, timelines, findings, messages, tokens."""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from amqp10broker.cli import listing, main, publishing, status, tables
from amqp10broker.client.message import BodyKind, Header, Message, Properties, Symbol, decode_message
from amqp10broker.errors import ConfigError
from amqp10broker.protocols.amqp10.types import UInt
from amqp10broker.queues.queue_status import QueueConsumption, QueueCounters, tally
from tests.support.key_server import key_server
from tests.support.tokens import SERVER, key, pem, token
from tests.unit.cli.conftest import Broker
from tests.unit.cli.documents import connections

BY_NOUN = {each.noun: each for each in listing.LISTINGS}
QUEUE = {
    "name": "q",
    "vhost": "/",
    "durable": True,
    "auto_delete": False,
    "exclusive": False,
    "type": "quorum",
    "arguments": {"x-queue-type": "quorum"},
    "message_count": 3,
    "messages_unsettled": 4,
    "messages_delayed": 0,
    "messages_dlx": 2,
    "delivery_limit": 20,
    "single_active_consumer_tag": "ctag1",
    "consumer_count": 1,
    "publishers": 0,
    "leader": "n",
    "replicas": ["n"],
    "members": ["n"],
    "online": ["n"],
    "state": "running",
    "policy": "p",
    "operator_policy": None,
    "effective_policy_definition": {"max-length": 5},
    "ineffective_policy_keys": ["max-age"],
    "full": True,
    "limits": {"messages": 5, "bytes": None, "overflow": "reject-publish"},
    "counters": {
        **tally(QueueCounters(), QueueConsumption()),
        "rejected": 12,
        "delivery_limit": 9,
        "dead_lettered": 5,
    },
    "dead_lettered": {"expired": 3, "maxlen": 2},
    "weight": {"ready": 30, "unsettled": 12, "ready_in_memory": None, "ready_bytes_in_memory": None},
}


@pytest.fixture
def listed(broker: Broker) -> Broker:
    broker.answers = {None: [], "connections": connections(), "list-queues": [QUEUE]}
    return broker


@pytest.mark.parametrize(
    "each", [each for each in listing.LISTINGS if each.from_connections], ids=lambda each: each.noun
)
def test_rows_of_connections_have_every_column(each: listing.Listing) -> None:
    """A column that no row has would always be empty."""
    assert each.from_connections is not None
    found = list(each.from_connections(connections()))
    assert found
    for row in found:
        assert set(each.columns) <= set(row)


def test_the_limit_of_deliveries_is_not_the_count_of_messages_beyond_it() -> None:
    """I2: RabbitMQ's column has the name of a counter of queues."""
    row = listing.queue_row(QUEUE)
    assert (row["delivery_limit"], row["over_delivery_limit"]) == (20, 9)


def test_queues_whose_leader_does_not_answer_are_listed_without_counts(
    listed: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    """I3: the row has the facts of the catalog."""
    found = listing.queue_row({**QUEUE, "message_count": None, "messages_unsettled": None, "counters": {}})
    assert found["messages"] is None
    main.main(["queue", "list", "--offline", "--formatter", "json", "name", "state"])
    assert listed.requests == [{"op": "list-queues", "arguments": {"offline": True}}]
    assert json.loads(capsys.readouterr().out) == [{"name": "q", "state": "running"}]


@pytest.mark.rabbitmq("unit_queue_consumers_SUITE", "list_consumers")
def test_consumers_are_receivers_and_channels_consumers() -> None:
    """One table has both protocols; links on which the client sends are not listed."""
    found = [
        (row["connection"], row["channel"], row["tag"], row["queue"], row["prefetch"], row["unacknowledged"])
        for row in listing.consumer_rows(connections())
    ]
    assert found == [(1, 3, "in", "q", 5, 2), (2, 1, "ctag", "r", 10, 1)]


@pytest.mark.rabbitmq("bindings_SUITE", "info_all")
def test_bindings_tell_queues_from_exchanges() -> None:
    common = {"source": "x", "binding_key": "k", "arguments": {}, "location": "/l"}
    assert listing.binding_row({**common, "destination_queue": "d"})["destination_kind"] == "queue"
    row = listing.binding_row({**common, "destination_exchange": "e"})
    assert (row["destination_name"], row["destination_kind"]) == ("e", "exchange")
    assert set(row) == set(BY_NOUN["bindings"].columns)


@pytest.mark.rabbitmq("bindings_SUITE", "list_with_multiple_vhosts")
def test_the_virtual_host_is_asked_for_or_chosen_from_all(
    listed: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Declared objects belong to one virtual host; connections are of all, or of one."""
    main.main(["queue", "list", "--vhost", "v"])
    main.main(["permission", "list", "--vhost", "v"])
    assert listed.requests == [
        {"op": "list-queues", "vhost": "v", "arguments": {}},
        {"op": "list-permissions", "vhost": "v", "arguments": {"vhost": "v"}},
    ]
    capsys.readouterr()
    main.main(["connection", "list", "id", "--vhost", "v", "--format", "json"])
    assert json.loads(capsys.readouterr().out) == [{"id": 2}]


def test_an_unknown_column_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 2, and no request is sent."""
    with pytest.raises(ConfigError, match="column 'nme' is unknown to user list; known are user, tags, lim"):
        listing.chosen_columns(BY_NOUN["users"], ["user", "nme"])
    assert main.main(["queue", "list", "messges"]) == 2
    assert "did you mean messages?" in capsys.readouterr().err


ODD = [
    {"name": "a,b\t\x1b[2J", "type": None, "messages": True},
    {"name": '"q"', "type": ["x", "y"], "messages": {"k": 1}},
]


def test_wide_characters_keep_the_columns_straight() -> None:
    """A Chinese character takes two columns, a combining accent none."""
    lines = tables.render(("n",), [{"n": "队列"}, {"n": "e\u0301t"}, {"n": "abcd"}], "table").splitlines()
    assert lines[3] == "│ 队列 │"
    assert lines[5] == "│ e\u0301t   │"
    assert lines[7] == "│ abcd │"


def test_what_could_steer_a_terminal_is_escaped() -> None:
    """Clients choose names; tables and plain lines show nothing unprintable."""
    for form in ("table", "plain"):
        shown = tables.render(("name",), ODD[:1], form)
        assert "\\x1b[2J" in shown
        assert "\x1b" not in shown


STEERING = ["\x1b[2J", "\x9b2J", "\x7f", "\r", "\u202etxt.exe", "\u2028", "\x00", "\U000e0041"]


@pytest.mark.parametrize("form", tables.FORMATS)
@pytest.mark.parametrize("name", STEERING)
def test_no_form_prints_what_could_steer_a_terminal(form: str, name: str) -> None:
    shown = tables.render(("name", "arguments"), [{"name": name, "arguments": {name: name}}], form)
    assert shown.replace("\n", "").replace("\t", "").isprintable()
    if form == "json":
        assert json.loads(shown) == [{"name": name, "arguments": {name: name}}]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "\\t=1"),
        ("\r=1", "\\r=1"),
        (["=1", "b"], "'=1, b"),
        ({"=": 1}, '{"=": 1}'),
        ("a=1", "a=1"),
        (-1, "-1"),
        (-1.5, "-1.5"),
    ],
)
def test_no_cell_of_csv_is_a_formula(value: object, text: str) -> None:
    """A spreadsheet must not compute a client's name when it opens the listing; numbers stay numbers."""
    shown = tables.render(("name",), [{"name": value}], "csv", header=False)
    assert list(csv.reader(io.StringIO(shown))) == [[text]]


@pytest.mark.parametrize("width", [80, 120])
def test_on_a_terminal_a_long_name_takes_several_lines_and_numbers_stay_whole(width: int) -> None:
    """A name of 86 characters breaks after its separators; joined again, it is the name."""
    name = "tenant-7/warehouse-north/orders/incoming/region-eu-central-1/priority-high/queue-00042"
    rows = [{"name": name, "messages": 4_294_967_295}, {"name": "short", "messages": 7}]
    lines = tables.render(("name", "messages"), rows, "table", width=width).splitlines()
    assert len(name) == 86
    assert {len(line) for line in lines} == ({80} if width == 80 else {len(name) + 17})
    cells = [[cell.strip() for cell in line.split("│")[1:3]] for line in lines if line.startswith("│")]
    assert "".join(cell for cell, _ in cells[1:-1]) == name
    assert cells[1][1] == "4294967295"
    assert cells[-1] == ["short", "7"]
    assert all(cell.endswith(("-", "/")) for cell, _ in cells[1:-2])


def part(
    since: int, *steps: int, lost: int = 0, more: bool = False, ended: str | None = None
) -> dict[str, Any]:
    return {
        "since": since,
        "next": since + len(steps),
        "lost": lost,
        "more": more,
        "ended": ended,
        "start": {"credit": since},
        "steps": list(steps),
    }


def run(monkeypatch: pytest.MonkeyPatch, broker: Broker, parts: list[dict[str, Any]], *options: str) -> int:
    watch = {"watch": 7, "link": "out", "connection": 3, "channel": 0, "role": "receiver"}
    broker.answers = {None: watch, "timeline": iter(parts)}
    monkeypatch.setattr(status.time, "sleep", lambda seconds: None)
    return main.main(["timeline", "3", "out", *options])


def test_the_parts_of_a_timeline_become_one(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each request starts where the last part ended; the watch is ended afterwards."""
    parts = [part(0, 1, 2, more=True), part(2, 3), part(3)]
    assert run(monkeypatch, broker, parts, "--for", "0", "--role", "receiver") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["link"]["watch"] == 7
    assert (printed["start"], printed["steps"], printed["lost"]) == ({"credit": 0}, [1, 2, 3], 0)
    assert [each["op"] for each in broker.requests] == ["watch-link", *["timeline"] * 3, "unwatch-link"]
    assert broker.requests[0]["arguments"] == {
        "connection": 3,
        "link": "out",
        "channel": None,
        "role": "receiver",
    }
    assert [each["arguments"]["since"] for each in broker.requests[1:4]] == [None, 2, 3]


def test_what_is_behind_a_gap_begins_anew(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps before the gap cannot be drawn with those after it; the output says that some are lost."""
    parts = [part(0, 1), part(9, 10, lost=8, ended="the link is detached")]
    assert run(monkeypatch, broker, parts, "--for", "0") == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["start"], printed["steps"]) == ({"credit": 9}, [10])
    assert (printed["lost"], printed["ended"]) == (8, "the link is detached")


WARNED = {"check": "metrics", "state": "warn", "evidence": "metrics are told", "to_do": "close them"}
BAD = {"check": "tls", "state": "bad", "evidence": "passwords go unencrypted", "to_do": "give a certificate"}


def diagnosis(*checks: dict[str, str]) -> dict[str | None, Any]:
    return {"doctor": {"node": "a", "at_ms": 1, "boot_id": None, "checks": list(checks)}}


@pytest.mark.parametrize(
    ("checks", "code"), [((WARNED,), 0), ((), 0), ((BAD, WARNED), 69), ((WARNED, BAD), 69)]
)
def test_the_exit_code_is_0_if_nothing_is_bad(
    checks: tuple[dict[str, str], ...], code: int, broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    """A warning does not stop a roll-out."""
    broker.answers = diagnosis(*checks)
    assert main.main(["doctor", "--formatter", "plain"]) == code
    assert broker.requests == [{"op": "doctor", "arguments": {"by_itself": False}}]
    lines = ["state\tcheck\tevidence\tto_do", *("\t".join(each[n] for n in ORDER) for each in checks)]
    assert capsys.readouterr().out.splitlines() == lines


ORDER = ("state", "check", "evidence", "to_do")


def test_the_page_has_what_to_do_within_80_columns(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Checks in order are named in one paragraph; neither a terminal nor a pipe makes it wider."""
    fine = [{"check": f"check-{n}", "state": "ok", "evidence": "it is", "to_do": ""} for n in range(12)]
    broker.answers = diagnosis(BAD | {"evidence": "passwords go unencrypted " * 5}, WARNED, *fine)
    assert main.main(["doctor"]) == 69
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("bad       tls: passwords go unencrypted")
    assert [line.strip() for line in lines if "do: " in line] == ["do: give a certificate", "do: close them"]
    assert lines[-2].startswith("ok        check-0, check-1, ")


def parsed(*argv: str) -> argparse.Namespace:
    return main.build_parser(["publish"]).parse_args(["publish", "--queue", "q", *argv])


def message_of(*argv: str) -> Message:
    return decode_message(publishing.message_of(parsed(*argv)).encode())


def test_a_message_of_all_options() -> None:
    """The property decides whether its value is a text or a number; a header's type follows its form."""
    message = message_of(
        *("body", "--priority", "3", "--ttl", "100", "--transient"),
        *(
            "--property",
            "message-id=7",
            "--property",
            "user-id=guest",
            "--property",
            "content-type=text/plain",
        ),
        *("--property", "group-sequence=5", "--property", "creation-time=1000", "--property", "subject=a=b"),
        *("--header", "n=5", "--header", "t=text", "--header", "b=true", "--header", 's="5"'),
        *("--annotation", "x-a=1"),
    )
    assert message.body == b"body"
    assert message.kind is BodyKind.DATA
    assert message.header == Header(durable=False, priority=3, ttl=100)
    assert message.properties == Properties(
        message_id="7",
        user_id=b"guest",
        content_type=Symbol("text/plain"),
        group_sequence=5,
        creation_time=1000,
        subject="a=b",
    )
    assert message.application_properties == {"n": 5, "t": "text", "b": True, "s": "5"}
    assert message.message_annotations == {Symbol("x-a"): 1}


def test_the_body_is_an_argument_a_file_or_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b").write_bytes(b"\xff\n\0")
    assert message_of("--file", str(tmp_path / "b")).body == b"\xff\n\0"
    for argv in ((), ("--file", "-")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xfe from stdin")))
        assert message_of(*argv).body == b"\xfe from stdin"
    assert message_of("\udcff").body == b"\xff"
    assert message_of("").body == b""


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("x", "--priority", "256"), "option --priority is 256; must be 0 to 255"),
        (("x", "--ttl", "-1"), "option --ttl is -1; must be 0 to"),
        (("x", "--property", "colour=red"), "is 'colour=red'; must be KEY=VALUE with one of absolute-"),
        (("x", "--property", "group-sequence=many"), "is 'many'; must be an integer"),
        (("x", "--property", "content-type=tëxt"), "is not ASCII"),
        (("x", "--header", "l=[1]"), "option --header l is a list or a map"),
        (("x", "--annotation", "a=1"), "must begin with x-"),
        (("x", "--file", "f"), "BODY cannot be used with --file"),
        (("--file", "no-such-file"), "file no-such-file cannot be read"),
    ],
)
def test_what_is_no_message_is_refused(argv: tuple[str, ...], message: str) -> None:
    """The refusal shows the remedy, before any connection is opened."""
    with pytest.raises(ConfigError) as raised:
        publishing.message_of(parsed(*argv))
    assert message in str(raised.value)


def test_a_routing_key_without_an_exchange_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    """The key would be ignored."""
    assert main.main(["publish", "--queue", "q", "--key", "k", "x"]) == 2
    assert "use it with --exchange" in capsys.readouterr().err


FULL = Message(
    b"caf\xc3\xa9",
    header=Header(durable=True, priority=4),
    properties=Properties(message_id=UUID(int=5), user_id=b"\xff", content_type=Symbol("a/b")),
    application_properties={"n": UInt(3), "none": None},
    message_annotations={Symbol("x-l"): [1, b"b"]},
    kind=BodyKind.DATA,
)
VALUE = Message({"k": [1]}, kind=BodyKind.VALUE)


def test_json_of_messages() -> None:
    """Each section that is present is a plain value; bytes are text, or base64 if they are not."""
    shown = json.loads(publishing.show([FULL, Message(b"\xff"), VALUE], "json", "q"))
    assert shown == [
        {
            "header": {"durable": True, "priority": 4},
            "message_annotations": {"x-l": [1, "b"]},
            "properties": {"message_id": str(UUID(int=5)), "user_id": "/w==", "content_type": "a/b"},
            "application_properties": {"n": 3, "none": None},
            "body": "café",
            "body_encoding": "utf-8",
        },
        {"body": "/w==", "body_encoding": "base64"},
        {"body": {"k": [1]}, "body_encoding": "amqp-value"},
    ]
    assert publishing.show([], "json", "q") == b"[]\n"


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (Message(b"\xff\0"), b"\xff\0"),
        (Message("text", kind=BodyKind.VALUE), b"text"),
        (VALUE, b'{"k": [1]}'),
    ],
)
def test_a_body_alone_is_shown_as_it_is(message: Message, shown: Any) -> None:
    """The bytes are unchanged, for a file or another program."""
    assert publishing.show([message], "body", "q") == shown


@pytest.mark.parametrize("terminal", [True, False])
def test_publishing_that_takes_long_shows_its_progress_on_a_terminal(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress is on standard error once a second and at the end; the messages are the same."""
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    times = iter(range(0, 100, 2))  # each look at the clock is two seconds after the last
    monkeypatch.setattr(publishing.time, "monotonic", lambda: next(times))
    assert list(publishing._with_progress(b"m", 3)) == [b"m"] * 3
    shown = "".join(f"\r{number} of 3 messages sent" for number in (0, 1, 2, 3)) + "\n"
    assert screen.getvalue() == (shown if terminal else "")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "key.pem").write_bytes(pem())
    file = tmp_path / "broker.toml"
    file.write_text(
        f'auth_backends = "oauth2"\noauth2_resource_server_id = "{SERVER}"\n'
        f'oauth2_signing_keys = "k1={tmp_path}/key.pem"\n'
    )
    return file


def explain(config: Path, secret: str, *options: str) -> int:
    written = config.parent / "token"
    written.write_text(secret + "\n")
    return main.main(
        ["user", "explain-token", "--config", str(config), "--token-file", str(written), *options]
    )


def explained(config: Path, secret: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = explain(config, secret, "--formatter", "json")
    said = capsys.readouterr().out
    assert secret not in said
    return code, json.loads(said)


def test_what_a_token_allows_is_said(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = token("read:v/q", "tag:monitoring", "read:v", exp=4102444800)
    assert explain(config, secret) == 0
    dropped = "it must have two parts or three, with slashes between: virtual host/name/routing key"
    assert capsys.readouterr().out.splitlines() == [
        "accepted",
        "user:    ann",
        "expires: 2100-01-01T00:00:00+00:00",
        "tags:    monitoring",
        "allows:  read:v/q",
        "allows:  tag:monitoring",
        f"ignored: rabbitmq.read:v: {dropped}",
    ]


def test_a_token_that_would_be_refused_is_explained_all_the_same(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = explained(config, token("read:v/q", lasts_s=-5), capsys)
    assert (code, said["refused"], said["scopes"]) == (1, "it has expired", ["read:v/q"])
    code, said = explained(config, token(user="", lasts_s=None), capsys)
    assert code == 1
    assert said["refused"] == "it has no claim 'exp', so it would never end"


def test_nothing_is_said_of_a_token_that_somebody_else_signed(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = explained(config, token("read:v/q", signed_by=key("RSA", "other")), capsys)
    assert (code, said) == (1, {"refused": "bad_signature: the signature is wrong"})


def test_the_key_set_is_fetched_as_for_a_login(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with key_server(key("EC", "e1")) as server:
        monkeypatch.setenv("AMQP10BROKER_OAUTH2_JWKS_URI", server.uri)
        secret = token("read:v/q", alg="ES256", signed_by=key("EC", "e1"), kid="e1")
        code, said = explained(config, secret, capsys)
        assert (code, said["user"]) == (0, "ann")
    code, said = explained(config, secret, capsys)
    assert (code, said) == (1, {"refused": "it is signed with key 'e1', which is not known"})
