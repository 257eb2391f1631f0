"""What clients of both protocols see of a script of operations: of this broker, and of a RabbitMQ.

The scripts in ``scripts/`` hold what this broker answers, and `test_this_broker_answers_as_written` keeps
them so; under it stands what RabbitMQ answered, where that was otherwise, and `KNOWN` has the reason.
``REWRITE_SCRIPTS=1`` writes the answers anew; look at the difference before you believe it.

With ``AMQP10BROKER_DIFFERENTIAL=amqp://user:password@host:port`` every script is performed at that
broker, too, which must answer as it is written: docs/proofs.md.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.differential.recorder import (
    LIMITED_USER,
    RECORDED_BESIDE,
    Place,
    Recorder,
    beside,
    differences,
    named,
    ours_of,
    sort_out,
    theirs_of,
    version_of,
)
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
_BARE_NAME = "a bare name is the address of a queue here, made if need be, as in RabbitMQ 4.0; 4.3 refuses it"
_LATE_REPLY = (
    "a reply to somebody who is gone reaches no queue: it is returned, or its link detached; RabbitMQ "
    "confirms it and drops it"
)

KNOWN = {
    'A.publish("", "differential.q", "bad expiration"': _WORDS,
    'A.publish("", "differential.q1", "bad"': _WORDS,
    'A.queue_bind("differential.q1", "differential.h", "", arguments={"x-match": "some"})': _WORDS,
    'A.queue_declare("differential.bad", durable=True, arguments=': _WORDS,
    'A.queue_declare("differential.other", durable=True': _WORDS,
    'A.queue_declare("", durable=True, arguments={"x-queue-type": "quorum"})': _WORDS,
    'B.reply_to_last("too late")': _LATE_REPLY,
    'M.receiver("r", "/exchanges/': _WORDS,
    'M.sender("s", "/queues/differential.q/more")': _WORDS,
    'M.sender("s", "/queues/%zz")': _WORDS,
    'M.sender("s", "/queues/")': _WORDS,
    'M.sender("s", "/elsewhere/': _WORDS,
    'M.sender("s", "/exchanges//key")': _WORDS,
    'M.send("x", "to something"': _BARE_NAME,
    'M.request("DELETE", "/queues/differential.new")': _BARE_NAME,
    'M.send("s", "reserved"': _WORDS,
    'M.send("s", "copied", annotations={"x-cc": "no list"})': _WORDS,
    'N.receiver("other"': _WORDS,
    "M.detached_by_broker(": "our detach names the queue, RabbitMQ's has no description",
    "N.detached_by_broker(": "our detach names the queue, RabbitMQ's has no description",
    'M.receiver("r", "/queues/differential.x")': "our detach says what such a queue may be, as over 0-9-1",
    'N.send("answer", "too late")': _LATE_REPLY,
    'M.sender("to itself"': "RabbitMQ's session cannot ask itself whether its reply queue is there",
    'M.take("again")': "RabbitMQ counts what comes back with its link as failed; here only modified does",
    'M.request("PUT", "/queues/differential.q", {"unheard_of"': _WORDS,
    'M.request("PUT", "/queues/differential.bad", {"arguments"': _WORDS,
    'M.request("PUT", "/exchanges/differential.bad", {"unheard_of"': _WORDS,
    'M.request("GET", "/bindings?src=differential.e&key=k")': _WORDS,
    'M.request("DELETE", "/bindings/nonsense")': _WORDS,
}
"""Operations, by how they begin, that RabbitMQ 4.3.6 answers otherwise, and why.

The reasons stand in docs/differences-from-rabbitmq.md, too.
"""


@contextmanager
def a_broker(directory: Path, *arguments: str) -> Iterator[Place]:
    definitions = directory / "definitions.json"
    definitions.write_text(json.dumps(DEFINITIONS), encoding="utf-8")
    with BrokerProcess(directory, "--definitions", str(definitions), *arguments) as process:
        yield Place(process.host, process.port, "guest", "guest", LIMITED_PASSWORD)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with a_broker(tmp_path_factory.mktemp("differential")) as place:
        yield place


@pytest.fixture(scope="module")
def ours_as_4_3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with a_broker(tmp_path_factory.mktemp("as-4.3"), "--emulate", "4.3") as place:
        yield place


@pytest.mark.rabbitmq("amqp_client_SUITE", "message_headers_conversion")
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_this_broker_answers_as_written(path: Path, ours: Place) -> None:
    text = path.read_text()
    seen = Recorder(ours).run(text)
    if os.environ.get("REWRITE_SCRIPTS"):
        path.write_text(beside(seen, theirs_of(text)))
    else:
        assert seen.splitlines() == ours_of(text).splitlines()


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_as_4_3_no_difference_of_versions_is_left(path: Path, ours_as_4_3: Place) -> None:
    """Each remaining difference from RabbitMQ 4.3 has a reason other than the version."""
    text = path.read_text()
    known = {begin: reason for begin, reason in KNOWN.items() if reason is not _BARE_NAME}
    known['M.send("x", "to something"'] = _WORDS
    _, surprising = sort_out(differences(Recorder(ours_as_4_3).run(text), theirs_of(text)), known)
    assert not surprising, "\n".join(str(difference) for difference in surprising)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_each_difference_has_its_reason(path: Path) -> None:
    """Every difference in the recorded answers of RabbitMQ has its entry in `KNOWN`."""
    text = path.read_text()
    _, surprising = sort_out(differences(ours_of(text), theirs_of(text)), KNOWN)
    assert not surprising, "\n".join(str(difference) for difference in surprising)


# Without an address there is nothing to compare with, and nothing to skip either.
if URL is not None:

    @pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
    def test_rabbitmq_answers_as_written(path: Path) -> None:
        """RabbitMQ's answers are as recorded, so that every difference is known, with its reason."""
        if path.stem == PERMISSIONS and THEIR_LIMITED is None:
            pytest.skip("AMQP10BROKER_DIFFERENTIAL_LIMITED_PASSWORD is not set: there is no user 'limited'")
        text = path.read_text()
        place = Place.from_url(URL, THEIR_LIMITED)
        seen = Recorder(place).run(text)
        if os.environ.get("REWRITE_SCRIPTS"):
            path.write_text(beside(named(ours_of(text), version_of(place)), seen))
            return
        changed = differences(theirs_of(text), seen)
        assert not changed, f"as written, and {version_of(place)} now:\n" + "\n".join(map(str, changed))


def test_every_known_difference_is_one() -> None:
    """An entry without a script has to be removed."""
    found = [
        difference.operation
        for path in SCRIPTS
        for difference in differences(ours_of(path.read_text()), theirs_of(path.read_text()))
    ]
    assert [begin for begin in KNOWN if not any(each.startswith(begin) for each in found)] == []


def test_the_scripts_say_what_they_were_recorded_beside() -> None:
    lines = {next(iter(path.read_text().splitlines()), "") for path in SCRIPTS}
    assert len(lines) == 1
    assert lines.pop().startswith(RECORDED_BESIDE + "RabbitMQ 4.")
