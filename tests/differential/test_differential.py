"""What clients of both protocols see of a script of operations: of this broker, and of a RabbitMQ.

The scripts in ``scripts/`` hold what this broker answers, and `test_this_broker_answers_as_written` keeps
them so. ``REWRITE_SCRIPTS=1`` writes the answers anew; look at the difference before you believe it.

With ``AMQP10BROKER_DIFFERENTIAL=amqp://user:password@host:port`` every script is recorded against that
broker, too, and both recordings are compared: docs/differential-test.md.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.differential.recorder import LIMITED_USER, Place, Recorder, differences, sort_out
from tests.support.broker_process import BrokerProcess
from tests.support.deadline import deadline

__all__ = ["deadline"]

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("deadline")]

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))
PERMISSIONS = "permissions"
LIMITED_PASSWORD = "limited-secret"

URL = os.environ.get("AMQP10BROKER_DIFFERENTIAL")
THEIR_LIMITED = os.environ.get("AMQP10BROKER_DIFFERENTIAL_LIMITED_PASSWORD")

DEFINITIONS = {
    "users": [
        {"name": "guest", "password": "guest", "tags": "administrator"},
        {"name": LIMITED_USER, "password": LIMITED_PASSWORD, "tags": ""},
    ],
    "vhosts": [{"name": "/"}],
    "permissions": [
        {"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"},
        {
            "user": LIMITED_USER,
            "vhost": "/",
            "configure": r"^limited\.",
            "write": r"^(limited\.|amq\.topic|amq\.default)",
            "read": r"^(limited\.|amq\.topic)",
        },
    ],
    "topic_permissions": [
        {
            "user": LIMITED_USER,
            "vhost": "/",
            "exchange": "amq.topic",
            "write": r"^open\.",
            "read": r"^open\.",
        },
    ],
}

_WORDS = "our refusal says what to do next, RabbitMQ's shows an internal term; the condition is the same"
_BARE_NAME = "a bare name is the address of a queue here, as in RabbitMQ 4.0; 4.3 refuses it"

KNOWN = {
    'A.queue_declare("differential.transient"': "RabbitMQ 4.3 refuses shared transient queues (541)",
    'A.queue_delete("differential.transient"': "its connection is another one after the 541",
    'M.receiver("r", "/exchanges/': _WORDS,
    'M.sender("s", "/queues/differential.q/more")': _WORDS,
    'M.sender("s", "/queues/%zz")': _WORDS,
    'M.sender("s", "/queues/")': _WORDS,
    'M.sender("s", "/elsewhere/': _WORDS,
    'M.sender("s", "/exchanges//key")': _WORDS,
    'M.send("x", "to something"': _BARE_NAME,
    'M.send("s", "reserved"': _WORDS,
    'M.send("s", "copied", annotations={"x-cc": "no list"})': _WORDS,
    'N.receiver("other"': _WORDS,
    'M.take("again")': "RabbitMQ counts what comes back with its link as failed; here only modified does",
    'M.request("PUT", "/queues/differential.q", {"unheard_of"': _WORDS,
    'M.request("PUT", "/exchanges/differential.bad", {"unheard_of"': _WORDS,
    'M.request("GET", "/bindings?src=differential.e&key=k")': _WORDS,
    'M.request("DELETE", "/bindings/nonsense")': _WORDS,
}
"""Operations, by how they begin, that RabbitMQ 4.3 answers otherwise, and why.

The reasons stand in docs/differences-from-rabbitmq.md, too.
"""


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """This broker, with the user `limited`."""
    directory = tmp_path_factory.mktemp("differential")
    definitions = directory / "definitions.json"
    definitions.write_text(json.dumps(DEFINITIONS), encoding="utf-8")
    with BrokerProcess(directory, "--definitions", str(definitions)) as process:
        yield Place(process.host, process.port, "guest", "guest", LIMITED_PASSWORD)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_this_broker_answers_as_written(path: Path, ours: Place) -> None:
    """Every client sees what stands in the script."""
    text = path.read_text()
    seen = Recorder(ours).run(text)
    if os.environ.get("REWRITE_SCRIPTS"):
        path.write_text(seen)
    else:
        assert seen.splitlines() == text.splitlines()


# Without an address there is nothing to compare with, and nothing to skip either.
if URL is not None:

    @pytest.mark.filterwarnings("default::UserWarning")
    @pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
    def test_rabbitmq_answers_alike(path: Path, ours: Place) -> None:
        """Its clients see what ours do, but for what is known and has a reason."""
        assert URL is not None
        if path.stem == PERMISSIONS and THEIR_LIMITED is None:
            pytest.skip("AMQP10BROKER_DIFFERENTIAL_LIMITED_PASSWORD is not set: there is no user 'limited'")
        text = path.read_text()
        here = Recorder(ours).run(text)
        there = Recorder(Place.from_url(URL, THEIR_LIMITED)).run(text)
        expected, surprising = sort_out(differences(here, there), KNOWN)
        for difference, reason in expected:
            warnings.warn(f"known: {reason}\n{difference}", UserWarning, stacklevel=1)
        assert not surprising, "\n".join(str(difference) for difference in surprising)


def test_every_known_difference_is_an_operation() -> None:
    """An entry that no script has any more says nothing."""
    lines = [line for path in SCRIPTS for line in path.read_text().splitlines()]
    assert [begin for begin in KNOWN if not any(line.startswith(begin) for line in lines)] == []
