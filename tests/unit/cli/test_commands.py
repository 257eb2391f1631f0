"""Commands that talk to a broker: what they ask for, how they find it, their help."""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from amqp10broker.cli import admin, commands, completion, connecting, main, operating
from amqp10broker.cli.admin import from_environment
from amqp10broker.config.load import URL_VARIABLE
from amqp10broker.errors import ConfigError
from tests.unit.cli.conftest import Broker


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("10", 10),
        ("-1", -1),
        ("1.5", 1.5),
        ("true", True),
        ("null", None),
        ('"10"', "10"),
        ("[1, 2]", [1, 2]),
        ("text", "text"),
        ("True", "True"),
        ("", ""),
        ("007", "007"),
        ("NaN", "NaN"),
        ("Infinity", "Infinity"),
        ("a=b", "a=b"),
    ],
)
def test_a_value_is_json_or_else_text(written: str, value: object) -> None:
    """So 10 is a number, and text that is not JSON needs no quotes."""
    assert commands.pairs("x", [f"key={written}"]) == {"key": value}
    assert type(commands.typed(written)) is type(value)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (["x"], "is 'x'; must be KEY=VALUE"),
        (["=x"], "must be KEY=VALUE"),
        (["a=1", "a=2"], "gives 'a' twice"),
    ],
)
def test_what_is_no_pair_is_refused(written: list[str], message: str) -> None:
    """A key that is given twice is refused too: one of its values would be lost."""
    with pytest.raises(ConfigError, match=message):
        commands.pairs("option --argument", written)


ROWS = [{"vhost": "/", "name": "q", "size": 3, "result": "ok"}]
CHECK = {"result": "ok", "message": "all is well"}
ANSWERS: dict[str | None, Any] = {
    "declare-queue": {"created": True},
    "declare-exchange": {"created": False},
    "delete-queue": {"message_count": 1},
    "purge-queue": {"message_count": 2},
    "list-exchanges": [{"name": "x"}],
    "get-bindings": [{"arguments": {"n": 1}}],
    "delete-vhost": {"queues": 3},
    "set-vhost-limits": {"max-queues": 5},
    "set-user-limits": {},
    "set-policy": {
        "queues": 2,
        "exchanges": 1,
        "ineffective": ["max-age"],
        "warnings": ["this acts otherwise"],
    },
    "set-operator-policy": {"queues": 0, "exchanges": 0, "ineffective": [], "warnings": []},
    "add-member": {"added": True, "size": 2},
    "grow": ROWS,
    "shrink": ROWS,
    "force-all-queues-shrink-member-to-current-member": ROWS,
    "stream-status": [{"role": "leader", "node": "a"}],
    "rebalance": [{"Node name": "a", "Number of quorum queues": 1, "Number of streams": 0}],
    "drain": {"draining": True},
    "check-if-node-is-quorum-critical": CHECK,
    "check-for-quorum-queues-without-an-elected-leader": CHECK,
    "await-online-quorum-plus-one": CHECK,
}


@pytest.fixture
def answering(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker.answers = ANSWERS
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"secret\r\nmore\n")))
    return broker


def asks(operation: str, vhost: str | None = None, /, **arguments: Any) -> dict[str, Any]:
    return {"op": operation, "arguments": arguments} | ({} if vhost is None else {"vhost": vhost})


ANYWHERE = {"vhost_pattern": ".*", "queue_pattern": ".*"}


@pytest.mark.parametrize(
    ("argv", "request_", "said"),
    [
        (
            "queue declare q --type quorum --argument x-max-length=5 --vhost v",
            asks(
                "declare-queue",
                "v",
                name="q",
                durable=True,
                auto_delete=False,
                arguments={"x-max-length": 5, "x-queue-type": "quorum"},
            ),
            "queue 'q' declared\n",
        ),
        (
            "queue delete q --if-unused --if-empty",
            asks("delete-queue", name="q", if_unused=True, if_empty=True),
            "queue 'q' deleted with 1 ready message\n",
        ),
        ("vhost delete v", asks("delete-vhost", name="v"), "vhost 'v' deleted with 3 queues\n"),
        ("queue purge q", asks("purge-queue", name="q"), "2 messages purged from queue 'q'\n"),
        (
            "binding add x q --key k --argument n=1",
            asks("bind", source="x", destination_queue="q", binding_key="k", arguments={"n": 1}),
            "queue 'q' to exchange 'x' with key 'k' bound\n",
        ),
        (
            "binding delete x y --to-exchange --argument n=1",
            asks("unbind", source="x", destination_exchange="y", binding_key="", arguments={"n": 1}),
            "exchange 'y' to exchange 'x' with key '' unbound\n",
        ),
        (
            "user add u --tag administrator --tag x",
            asks("add-user", user="u", password="secret", tags=["administrator", "x"]),
            "user 'u' added",
        ),
        (
            "user set-password u --password-file -",
            asks("change-password", user="u", password="secret"),
            "user 'u' has another password\n",
        ),
        (
            "user set-limits u --max-channels -1",
            asks("set-user-limits", user="u", limits={"max-channels": -1}),
            "limits of user 'u': none\n",
        ),
        (
            "permission set u ^a .* b$ --vhost v",
            asks("set-permissions", "v", vhost="v", user="u", configure="^a", write=".*", read="b$"),
            "permissions of user 'u' in vhost 'v' set\n",
        ),
        (
            "vhost add v --description d --tag t --default-queue-type quorum",
            asks("add-vhost", name="v", description="d", tags=["t"], default_queue_type="quorum"),
            "vhost 'v' added",
        ),
        (
            # As RabbitMQ's documentation of quorum queues has it.
            r'policy set qq ^qq\. {"delivery-limit":50} --priority 123 --apply-to quorum_queues',
            asks(
                "set-policy",
                name="qq",
                pattern=r"^qq\.",
                definition={"delivery-limit": 50},
                priority=123,
                apply_to="quorum_queues",
            ),
            "policy 'qq' set; it applies to 2 queues and 1 exchange\n",
        ),
        ("policy clear -p v p", asks("clear-policy", "v", name="p"), "policy 'p' cleared\n"),
        (
            "member add q b --membership voter --timeout 9",
            asks("add-member", name="q", node="b", membership="voter", timeout=9),
            "",
        ),
        (
            "member grow b even --queue-pattern ^q",
            asks(
                "grow",
                node="b",
                strategy="even",
                membership="promotable",
                errors_only=False,
                **ANYWHERE | {"queue_pattern": "^q"},
            ),
            "",
        ),
        ("member shrink b --errors-only", asks("shrink", node="b", errors_only=True), ""),
        ("queue stream-status s", asks("stream-status", name="s"), ""),
        ("member rebalance quorum", asks("rebalance", kind="quorum", **ANYWHERE), ""),
        ("cluster drain", asks("drain"), ""),
        ("check quorum-critical", asks("check-if-node-is-quorum-critical"), ""),
        (
            "check leaders --across-all-vhosts x",
            asks(
                "check-for-quorum-queues-without-an-elected-leader",
                pattern="x",
                vhost=None,
                across_all_vhosts=True,
            ),
            "",
        ),
        ("check quorum-plus-one", asks("await-online-quorum-plus-one", timeout=120), ""),
        (
            "member force-shrink-all --vhost-pattern ^v$",
            asks(
                "force-all-queues-shrink-member-to-current-member",
                errors_only=False,
                **ANYWHERE | {"vhost_pattern": "^v$"},
            ),
            "",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and not value.endswith("\n") else "",
)
def test_each_command_asks_for_its_operation(
    argv: str, request_: Any, said: str, answering: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(argv.split()) == 0
    assert answering.requests[-1] == request_
    assert capsys.readouterr().out.startswith(said)


def test_what_does_not_act_is_said(answering: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    """The warning is on standard error; the policy is set all the same."""
    assert main.main(["policy", "set", "p", ".*", '{"max-age": "1D"}']) == 0
    complaint = capsys.readouterr().err
    assert complaint.startswith(
        "warning: this acts otherwise\nwarning: max-age: these settings have no effect on some of the "
        "queues, see "
    )


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        ("queue declare q --type quorum --argument x-queue-type=classic", 2, "give one of them"),
        ("queue declare q --argument x", 2, "must be KEY=VALUE"),
        ("exchange delete nothing", 1, "no exchange 'nothing': see 'amqp10broker exchange list'"),
        ("binding delete x q --argument n=2", 1, "has no such binding"),
        ("user set-limits u", 2, "give --max-connections or --max-channels"),
        ("definitions import no-such-file.json", 2, "cannot be read"),
        ("definitions import -", 2, "standard input is not JSON"),
        ("policy set p .* {max-length:5}", 2, """must be a JSON object: '{"max-length": 1000}'"""),
        ("policy set p .* 5", 2, "DEFINITION is '5'; must be a JSON object"),
        ("definitions export no/such/directory/file", 1, "cannot write no/such/directory/file"),
    ],
)
def test_mistakes_are_found_before_anything_is_changed(
    argv: str, code: int, message: str, answering: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says what would be right, and only requests that read are sent."""
    assert main.main(argv.split()) == code
    complaint = capsys.readouterr().err
    assert message in complaint
    assert complaint.count("\n") == 1
    looks = {"list-exchanges", "get-bindings", "export-definitions"}
    assert {each["op"] for each in answering.requests} <= looks


@pytest.mark.parametrize(
    "argv",
    [
        "queue",
        "queue make q",
        "queue declare",
        "queue declare q --type jms",
        "queue delete",
        "binding add x",
        "publish hello",
        "publish --queue q --exchange x hello",
        "get",
        "get q -n 0",
        "get q --ack-mode maybe",
        "user add u --password-file f --no-password",
        "permission set u a b",
        "vhost set-limits --max-queues many",
        "policy set p .*",
        "policy set p .* {} --apply-to queue",
        "completion tcsh",
    ],
)
def test_bad_usage_exits_with_2(argv: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(argv.split())
    assert ended.value.code == 2


@pytest.mark.parametrize("typed", [["a", "a"], ["a", "b"]])
def test_at_a_terminal_it_is_typed_twice(typed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    answers = list(typed)
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("getpass.getpass", lambda prompt: answers.pop(0))
    if typed[0] == typed[1]:
        assert connecting.read_password(None, "u", confirm=True) == "a"
    else:
        with pytest.raises(ConfigError, match="differs from its repetition"):
            connecting.read_password(None, "u", confirm=True)
    assert answers == []


def test_a_file_is_private_and_replaced_as_a_whole(tmp_path: Path) -> None:
    """The file holds password hashes; no other file is left."""
    path = tmp_path / "definitions.json"
    path.write_text("old")
    path.chmod(0o644)
    operating.write_private(str(path), json.dumps({"users": []}))
    assert path.read_text() == '{"users": []}'
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["definitions.json"]


@pytest.mark.parametrize(
    "written",
    [
        ["cluster", "status", "--bogus"],
        ["cluster", "forget-node"],
        ["member", "grow", "b", "odd"],
        ["cluster", "await-online-nodes", "many"],
        ["cluster", "await-online-nodes", "0"],
    ],
)
def test_what_is_typed_wrongly_is_code_64(broker: Broker, written: list[str]) -> None:
    """T17: this also holds where another command has 2."""
    try:
        code: object = main.main(written)
    except SystemExit as ended:
        code = ended.code
    assert code == 64
    assert not broker.requests
    with pytest.raises(SystemExit) as other:
        main.main(["queue", "list", "--bogus"])
    assert other.value.code == 2


@pytest.mark.parametrize(
    ("written", "answer", "said"),
    [
        (
            ["cluster", "join", "a"],
            {"node": "a", "joined": False},
            "The node is already a member of this cluster",
        ),
        (
            ["cluster", "join", "a=h:1"],
            {"node": "a", "joined": True},
            "the node joins the cluster of node 'a'",
        ),
        (
            ["cluster", "reset"],
            {"node": "d", "failed": []},
            "node 'd' is out of the cluster, has no data any more",
        ),
        (["cluster", "force-reset"], {"node": "d", "failed": []}, "cluster forget-node d"),
    ],
)
def test_coming_and_going_is_told(
    broker: Broker, capsys: pytest.CaptureFixture[str], written: list[str], answer: Any, said: str
) -> None:
    broker.answers = {None: answer}
    assert main.main(written) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("h:5672", "is 'h:5672'; must be amqp://host:port"),
        ("http://u:secret@h", "does not begin so"),
        ("amqp://u:secret@", "names no host"),
        ("amqp://u:secret@h:x", "has something else than a number from 1 to 65535 as its port"),
        ("amqp://u:secret@h:99999", "has something else than a number from 1 to 65535 as its port"),
        ("amqp://u:sec/ret@h", "has an '@' behind its first '/'"),
        ("amqp://u:secret@h/v/w", "has more than one '/' behind its host"),
        ("amqp://u:secret@h/v?x=1", "has a query or fragment"),
    ],
)
def test_what_is_no_such_url_is_refused_without_its_password(text: str, problem: str) -> None:
    """`client.url` refuses it and repeats no text that may be part of a password."""
    with pytest.raises(ConfigError) as refused:
        from_environment({URL_VARIABLE: text})
    assert str(refused.value).startswith(f"variable AMQP10BROKER_URL {problem}")
    assert "sec" not in str(refused.value)


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({URL_VARIABLE: "amqp://localhost:7"}, admin.Place(7, None)),
        ({URL_VARIABLE: "amqp://[::1]:7", "AMQP10BROKER_PORT": "8"}, admin.Place(7, None)),
        ({URL_VARIABLE: "amqp://127.0.0.1:7", "AMQP10BROKER_ADMIN_SOCKET": "/s"}, admin.Place(5672, "/s")),
    ],
)
def test_commands_that_administrate_find_the_broker_by_its_port(
    environ: dict[str, str], place: admin.Place
) -> None:
    """The port is on this machine; a named socket takes precedence."""
    assert admin.place_of(None, None, environ) == place
    assert admin.place_of("9", None, environ) == admin.Place(9, None)


def login(monkeypatch: pytest.MonkeyPatch, url: str | None, **given: Any) -> tuple[Any, ...]:
    monkeypatch.delenv("AMQP10BROKER_PORT", raising=False)
    if url is None:
        monkeypatch.delenv(URL_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(URL_VARIABLE, url)
    options = {"host": None, "port": None, "user": None, "password": None, "vhost": None, **given}
    found = connecting.login_of(argparse.Namespace(**options))
    return (found.host, found.port, found.user, found.password, found.vhost, found.tls)


def test_an_option_counts_instead_of_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The password of the URL applies to the user of the URL only."""
    url = "amqps://ann:pw@far:7/v"
    assert login(monkeypatch, None) == ("127.0.0.1", 5672, "guest", "guest", None, False)
    assert login(monkeypatch, url) == ("far", 7, "ann", "pw", "v", True)
    assert login(monkeypatch, url, port="9", vhost="w") == ("far", 9, "ann", "pw", "w", True)
    assert login(monkeypatch, url, user="bob") == ("far", 7, "bob", "guest", "v", True)
    assert login(monkeypatch, url, password="x") == ("far", 7, "ann", "x", "v", True)
    assert login(monkeypatch, "amqp://h", user="") == ("h", 5672, "", "guest", None, False)


NAMES = {word for words in main.homes() for word in words.split()}


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_a_script_names_every_command(shell: str) -> None:
    """All that the parser takes is included; some shells want a backslash before a hyphen."""
    script = completion.script(shell).replace("\\-", "-")
    assert [name for name in NAMES if name not in script] == []


def complete(tmp_path: Path, *words: str) -> list[str]:
    program = shutil.which("bash")
    assert program is not None, "bash is what .ci/run itself runs in"
    script = tmp_path / "script"
    script.write_text(completion.script("bash"))
    (tmp_path / "file with space.json").touch()
    commands = (
        'source ./script; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_amqp10broker "$1" "${@: -1}"; '
        '[[ ${#COMPREPLY[@]} -eq 0 ]] || printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        [program, "--norc", "-c", commands, "bash", "amqp10broker", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["qu"], ["queue"]),
        (["no"], []),
        (
            ["queue", "list", "messages_"],
            ["messages_ready", "messages_unacknowledged", "messages_delayed", "messages_dlx"],
        ),
        (["queue", "list", "name", "ty"], ["type"]),
        (["queue", "list", "--format", ""], ["table", "json", "csv", "plain"]),
        (["queue", "list", "--format", "json", "lea"], ["leader"]),
        (["queue", "list", "--no"], ["--no-header"]),
        (["exchange", ""], ["declare", "delete", "list"]),
        (["exchange", "declare", "--typ"], ["--type"]),
        (["exchange", "declare", "--type", "to"], ["topic"]),
        (["queue", "declare", "--type", ""], ["classic", "quorum", "stream"]),
        (["vhost", "d"], ["delete"]),
        (["alarm", "set", ""], ["memory", "disk"]),
        (["alarm", "memory-limit", "a"], ["absolute"]),
        (["alarm", "disk-limit", "m"], ["mem_relative"]),
        (["set", "max_l"], ["max_link_credit"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["publish", "--property", "message"], ["message-id="]),
        (["queue", "list", "--vhost", ""], []),
        (["definitions", "import", "file"], ["file with space.json"]),
        (["publish", "--file", "file"], ["file with space.json"]),
    ],
    ids=" ".join,
)
def test_bash_offers_what_may_stand_there(words: list[str], offered: list[str], tmp_path: Path) -> None:
    assert complete(tmp_path, *words) == offered
