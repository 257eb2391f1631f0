"""What commands share: typed values, files, and what each asks of the broker."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from amqp10broker.cli import admin, commands, definitions, main, passwords
from amqp10broker.errors import ConfigError


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
    """So that 10 is a number, and everything that is no JSON needs no quotes."""
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
    """And so is a key that is given twice: one of them would be lost."""
    with pytest.raises(ConfigError, match=message):
        commands.pairs("option --argument", written)


class TestRequests:
    """What each command asks for, and what it says of the answer."""

    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        requests: list[Any] = []
        answers: dict[str, Any] = {
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
        }

        def ask(place: admin.Place, request: dict[str, Any]) -> Any:
            requests.append((request["op"], request.get("vhost"), request.get("arguments")))
            return answers.get(request["op"])

        monkeypatch.setattr(admin, "ask", ask)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"secret\r\nmore\n")))
        return requests

    @pytest.mark.parametrize(
        ("argv", "request_", "said"),
        [
            (
                "queue declare q --type quorum --argument x-max-length=5 --vhost v",
                (
                    "declare-queue",
                    "v",
                    {
                        "name": "q",
                        "durable": True,
                        "auto_delete": False,
                        "arguments": {"x-max-length": 5, "x-queue-type": "quorum"},
                    },
                ),
                "queue 'q' declared\n",
            ),
            (
                "queue delete q --if-unused --if-empty",
                ("delete-queue", None, {"name": "q", "if_unused": True, "if_empty": True}),
                "queue 'q' deleted with 1 ready message\n",
            ),
            ("vhost delete v", ("delete-vhost", None, {"name": "v"}), "vhost 'v' deleted with 3 queues\n"),
            ("queue purge q", ("purge-queue", None, {"name": "q"}), "2 messages purged from queue 'q'\n"),
            (
                "binding add x q --key k --argument n=1",
                (
                    "bind",
                    None,
                    {"source": "x", "destination_queue": "q", "binding_key": "k", "arguments": {"n": 1}},
                ),
                "queue 'q' to exchange 'x' with key 'k' bound\n",
            ),
            (
                "binding delete x y --to-exchange --argument n=1",
                (
                    "unbind",
                    None,
                    {"source": "x", "destination_exchange": "y", "binding_key": "", "arguments": {"n": 1}},
                ),
                "exchange 'y' to exchange 'x' with key '' unbound\n",
            ),
            (
                "user add u --tag administrator --tag x",
                ("add-user", None, {"user": "u", "password": "secret", "tags": ["administrator", "x"]}),
                "user 'u' added",
            ),
            (
                "user set-password u --password-file -",
                ("change-password", None, {"user": "u", "password": "secret"}),
                "user 'u' has another password\n",
            ),
            (
                "user set-limits u --max-channels -1",
                ("set-user-limits", None, {"user": "u", "limits": {"max-channels": -1}}),
                "limits of user 'u': none\n",
            ),
            (
                "permission set u ^a .* b$ --vhost v",
                (
                    "set-permissions",
                    "v",
                    {"user": "u", "vhost": "v", "configure": "^a", "write": ".*", "read": "b$"},
                ),
                "permissions of user 'u' in vhost 'v' set\n",
            ),
            (
                "vhost add v --description d --tag t --default-queue-type quorum",
                (
                    "add-vhost",
                    None,
                    {"name": "v", "description": "d", "tags": ["t"], "default_queue_type": "quorum"},
                ),
                "vhost 'v' added",
            ),
            (
                # As RabbitMQ's documentation of quorum queues has it.
                r'policy set qq ^qq\. {"delivery-limit":50} --priority 123 --apply-to quorum_queues',
                (
                    "set-policy",
                    None,
                    {
                        "name": "qq",
                        "pattern": r"^qq\.",
                        "definition": {"delivery-limit": 50},
                        "priority": 123,
                        "apply_to": "quorum_queues",
                    },
                ),
                "policy 'qq' set; it counts for 2 queues and 1 exchange\n",
            ),
            ("policy clear -p v p", ("clear-policy", "v", {"name": "p"}), "policy 'p' cleared\n"),
        ],
        ids=lambda value: value if isinstance(value, str) and not value.endswith("\n") else "",
    )
    def test_each_command_asks_for_its_operation(
        self, argv: str, request_: Any, said: str, asked: list[Any], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The last request is the operation with everything that was typed."""
        assert main.main(argv.split()) == 0
        assert asked[-1] == request_
        assert capsys.readouterr().out.startswith(said)

    def test_what_does_not_act_is_said(self, asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
        """On standard error; the policy is set all the same."""
        assert main.main(["policy", "set", "p", ".*", '{"max-age": "1D"}']) == 0
        complaint = capsys.readouterr().err
        assert complaint.startswith(
            "warning: this acts otherwise\nwarning: max-age: without effect on some of the queues, see "
        )

    @pytest.mark.parametrize(
        ("argv", "code", "message"),
        [
            ("queue declare q --type quorum --argument x-queue-type=classic", 2, "give one of them"),
            ("queue declare q --argument x", 2, "must be KEY=VALUE"),
            ("exchange delete nothing", 1, "no exchange 'nothing': see what there is"),
            ("binding delete x q --argument n=2", 1, "is not bound so"),
            ("user set-limits u", 2, "give --max-connections or --max-channels"),
            ("definitions import no-such-file.json", 2, "cannot be read"),
            ("definitions import -", 2, "standard input is not JSON"),
            ("policy set p .* {max-length:5}", 2, """must be a JSON object: '{"max-length": 1000}'"""),
            ("policy set p .* 5", 2, "DEFINITION is '5'; must be a JSON object"),
            ("definitions export no/such/directory/file", 1, "cannot write no/such/directory/file"),
        ],
    )
    def test_mistakes_are_found_before_anything_is_changed(
        self,
        argv: str,
        code: int,
        message: str,
        asked: list[Any],
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """One line that says what would be right, and no request that changes anything."""
        assert main.main(argv.split()) == code
        complaint = capsys.readouterr().err
        assert message in complaint
        assert complaint.count("\n") == 1
        changing = {
            "declare-queue",
            "delete-exchange",
            "unbind",
            "set-user-limits",
            "import-definitions",
            "set-policy",
        }
        assert changing.isdisjoint(name for name, _, _ in asked)


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


class TestPasswords:
    @pytest.mark.parametrize("typed", [["a", "a"], ["a", "b"]])
    def test_at_a_terminal_it_is_typed_twice(self, typed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

        answers = list(typed)
        monkeypatch.setattr(sys, "stdin", Terminal())
        monkeypatch.setattr("getpass.getpass", lambda prompt: answers.pop(0))
        if typed[0] == typed[1]:
            assert passwords.read_password(None, "u", confirm=True) == "a"
        else:
            with pytest.raises(ConfigError, match="typed differently the second time"):
                passwords.read_password(None, "u", confirm=True)
        assert answers == []


class TestDefinitions:
    def test_a_file_is_private_and_replaced_as_a_whole(self, tmp_path: Path) -> None:
        """There are hashes of passwords in it; no other file is left."""
        path = tmp_path / "definitions.json"
        path.write_text("old")
        path.chmod(0o644)
        definitions.write_private(str(path), json.dumps({"users": []}))
        assert path.read_text() == '{"users": []}'
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert os.listdir(tmp_path) == ["definitions.json"]
