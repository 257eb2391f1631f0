"""The plugin of pytest: what the tests of a program get of it. Each test here is a run of pytest."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

# Each run of pytest in this process forgets what it has imported: the broker is to be imported once.
from amqp10broker.testing import plugin, servers
from tests.support.broker_process import REPOSITORY

pytest_plugins = ["pytester"]

PLUGIN = ("-p", plugin.__name__)
IMPORTED = (servers,)
PATIENCE_S = 30.0

Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    # As where no other plugin is installed, and whether or not this one is.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    for name in [each for each in os.environ if each.startswith("PYTEST_XDIST")]:
        monkeypatch.delenv(name)

    def run_tests(source: str, *arguments: str, ini: str = "", apart: bool = False) -> pytest.RunResult:
        pytester.makeini(f"[pytest]\n{ini}")
        pytester.makepyfile(source)
        runs: Any = pytester.runpytest_subprocess if apart else pytester.runpytest_inprocess
        result: pytest.RunResult = runs(*PLUGIN, *arguments)
        return result

    return run_tests


def test_each_test_has_a_virtual_host_of_its_own(run: Run) -> None:
    """On one broker, other tests do not see its objects, which are deleted with the test."""
    result = run(
        """
        import pika, pytest
        seen = []

        @pytest.mark.parametrize("number", [1, 2])
        def test_one(amqp_broker, number):
            assert amqp_broker.queues == []
            assert amqp_broker.vhost in amqp_broker.url
            amqp_broker.declare("q")
            amqp_broker.publish("q", "text", b"bytes")
            assert (amqp_broker.queue("q").messages, amqp_broker.connections) == (2, [])
            with pika.BlockingConnection(pika.URLParameters(amqp_broker.url)) as connection:
                assert connection.channel().basic_get("q", auto_ack=True)[2] == b"text"
                assert [each["vhost"] for each in amqp_broker.connections] == [amqp_broker.vhost]
            assert amqp_broker.get("q").body == b"bytes"
            assert amqp_broker.get("q") is None
            assert not amqp_broker.queue("r").exists
            seen.append((amqp_broker, amqp_broker.port, amqp_broker.vhost))

        def test_afterwards(amqp_broker):
            (first, port, vhost), (_, other_port, other_vhost) = seen
            assert port == other_port == amqp_broker.port
            assert len({vhost, other_vhost, amqp_broker.vhost}) == 3
            names = [each["name"] for each in amqp_broker.ask("list-vhosts")]
            assert sorted(names) == sorted(["/", amqp_broker.vhost])
        """
    )
    result.assert_outcomes(passed=3)


def test_settings_come_from_the_configuration_and_from_the_nearest_marker(run: Run) -> None:
    """Tests with the same settings share a broker; tests with other settings have another."""
    result = run(
        """
        import pytest
        ports = {}

        def limits(broker):
            flow = broker.ask("status")["broker"]["flow"]
            ports[broker.port] = ports.get(broker.port, 0) + 1
            return flow["max_link_credit"], flow["max_incoming_window"]

        def test_plain(amqp_broker):
            assert limits(amqp_broker) == (10, 400)

        @pytest.mark.amqp_broker(max_link_credit=5)
        class TestMarked:
            def test_of_the_class(self, amqp_broker):
                assert limits(amqp_broker) == (5, 400)

            @pytest.mark.amqp_broker(max_link_credit="6", max_incoming_window=7)
            def test_nearer(self, amqp_broker):
                assert limits(amqp_broker) == (6, 7)

            def test_again(self, amqp_broker):
                assert limits(amqp_broker) == (5, 400)
                assert sorted(ports.values()) == [1, 1, 2]
        """,
        "--strict-markers",
        ini="amqp_broker_settings =\n  max_link_credit=10\n",
    )
    result.assert_outcomes(passed=4)


def test_a_marker_names_the_version_that_is_emulated(run: Run) -> None:
    result = run(
        """
        import pika
        import pytest

        @pytest.mark.amqp_broker(emulate="rabbitmq-4.0")
        def test_marked(amqp_broker):
            with pika.BlockingConnection(pika.URLParameters(amqp_broker.url)) as connection:
                assert connection._impl.server_properties["version"] == "4.0.9"

        @pytest.mark.amqp_broker(emulate=4.3)
        def test_a_number(amqp_broker):
            amqp_broker.declare("q", "quorum", arguments={"x-max-length": 5})
            amqp_broker.assert_upgradable("4.3")
            with pytest.raises(AssertionError, match="drops_next"):
                amqp_broker.assert_upgradable("4.2")
        """,
        "--strict-markers",
    )
    result.assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("ini", "marker", "said"),
    [
        ("amqp_broker_settings = max_credit=1", "", "did you mean --max-link-credit"),
        ("amqp_broker_settings = max_link_credit", "", "must have NAME=VALUE"),
        ("amqp_broker_frames = many", "", "must be 0 or a positive number"),
        ("", "@pytest.mark.amqp_broker(max_link_credit=0)", "must be"),
        ("", "@pytest.mark.amqp_broker('quorum')", "takes settings by name"),
        ("", "@pytest.mark.amqp_broker(emulate='4.1')", "is '4.1'; must be one of 3.13, 4.0, 4.2, 4.3"),
    ],
)
def test_an_option_that_cannot_be_says_what_it_may_be(run: Run, ini: str, marker: str, said: str) -> None:
    result = run(f"import pytest\n{marker}\ndef test_one(amqp_broker): pass\n", ini=ini)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"*{said}*"])


def test_a_failed_test_says_what_waited_and_which_frames_came_last(run: Run) -> None:
    """This includes a client that closed its connection as the test ended; a passed test prints nothing."""
    result = run(
        """
        from amqp10broker.client.message import data_message

        def test_passes(amqp_broker):
            amqp_broker.declare("quiet")

        def test_fails(amqp_broker):
            amqp_broker.declare("orders")
            amqp_broker.publish("orders", "tea")
            with amqp_broker.client() as client:
                client.receiver("/queues/orders", credit=0)
                assert amqp_broker.waiting[0]["waits"] == "no-credit-never-granted"
                raise RuntimeError("never got it")
        """
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*AMQP broker, virtual host test_fails-*",
            "queue 'orders': 1 ready, 0 with consumers, 0 consumers",
            "waiting:",
            "  link '*' of connection * (the client is receiver, queue 'orders'): no-credit-never-granted *",
            "    what helps: *",
            "    (when its client ended it)",
            "connection * (127.0.0.1:*), *frames:",
            "*<- ch 0 ATTACH *role=receiver*address=/queues/orders*",
            "*<- ch 0 CLOSE",
        ]
    )
    result.stdout.no_fnmatch_line("*quiet*")
    # The fixture's own connection is no client's.
    result.stdout.no_fnmatch_line("*TRANSFER*")


def test_a_test_that_a_time_limit_ends_says_what_waited(run: Run) -> None:
    """It does so in any wait, for a signal as of pytest-timeout, and for an event loop's limit."""
    result = run(
        """
        import asyncio, signal
        import aio_pika, pika, pytest

        def over(*_):
            pytest.fail("it takes too long")

        @pytest.fixture(autouse=True)
        def limit():
            before = signal.signal(signal.SIGALRM, over)
            yield
            signal.signal(signal.SIGALRM, before)

        def test_by_signal(amqp_broker):
            amqp_broker.declare("orders")
            amqp_broker.publish("orders", "tea", "coffee")
            with pika.BlockingConnection(pika.URLParameters(amqp_broker.url)) as connection:
                channel = connection.channel()
                channel.basic_qos(prefetch_count=1)
                channel.basic_consume("orders", lambda *_: signal.setitimer(signal.ITIMER_REAL, 0.1))
                channel.start_consuming()

        def test_by_signal_with_our_client(amqp_broker):
            amqp_broker.declare("letters")
            amqp_broker.publish("letters", "one")
            with amqp_broker.client() as client:
                receiver = client.receiver("/queues/letters", credit=0)
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                receiver.receive()

        @pytest.mark.asyncio
        async def test_by_the_loop(amqp_broker):
            amqp_broker.declare("jobs")
            amqp_broker.publish("jobs", "one", "two")
            async with await aio_pika.connect(amqp_broker.url) as connection:
                channel = await connection.channel()
                await channel.set_qos(prefetch_count=1)
                queue = await channel.get_queue("jobs")
                async with queue.iterator() as messages:
                    await anext(messages)
                    async with asyncio.timeout(0.1):
                        await anext(messages)
        """,
        *("-p", "pytest_asyncio.plugin"),
        ini="asyncio_default_fixture_loop_scope = function",
    )
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(
        [
            "*AMQP broker, virtual host test_by_signal-*",
            "  consumer '*' of connection * (queue 'orders'): prefetch-full *",
            "*-> ch 1 basic.deliver *",
            "*AMQP broker, virtual host test_by_signal_with_our_client-*",
            "  link '*' of connection * (the client is receiver, queue 'letters'): no-credit-never-granted *",
            "*<- ch 0 CLOSE*",
            "*AMQP broker, virtual host test_by_the_loop-*",
            "  consumer '*' of connection * (queue 'jobs'): prefetch-full *",
            "*-> ch 1 basic.deliver *",
        ]
    )


def test_frames_are_kept_as_far_as_they_are_asked_for(run: Run) -> None:
    source = """
        def test_fails(amqp_broker):
            with amqp_broker.client():
                assert False
        """
    few = run(source, ini="amqp_broker_frames = 2")
    few.stdout.fnmatch_lines(["connection * the last 2 of * frames:", "*<- ch 0 CLOSE", "*-> ch 0 CLOSE"])
    few.stdout.no_fnmatch_line("*OPEN*")
    none = run(source, ini="amqp_broker_frames = 0")
    none.stdout.fnmatch_lines(["*AMQP broker, virtual host*"])
    none.stdout.no_fnmatch_line("*CLOSE*")


def test_assertions_say_which_link_since_when_and_by_which_frame(run: Run) -> None:
    result = run(
        """
        import pytest

        NOW = 0.0
        BODY = b"\\0Su\\xa0\\1a"

        def refused(assertion, *arguments):
            with pytest.raises(AssertionError) as caught:
                assertion(*arguments)
            return str(caught.value)

        @pytest.mark.amqp_broker(max_link_credit=10)
        def test_of_links(amqp_broker):
            b = amqp_broker
            b.declare("q")
            with b.client() as client:
                sender = client.sender("/queues/q")
                b.assert_all_settled()
                sender.send(BODY)
                b.assert_credit_never_below(9, "/queues/q")
                told = refused(b.assert_credit_never_below, 10, "q")
                assert "credit was below 10" in told and "(the client is sender, address /queues/q)" in told
                assert " 9 at " in told and " s by <- TRANSFER " in told
                assert "but to: /queues/q" in refused(b.assert_credit_never_below, 1, "other")
                receiver = client.receiver("/queues/q", credit=0)
                told = refused(b.assert_no_stall, NOW)
                assert "no-credit-never-granted" in told and "what helps: " in told
                assert "1 ready, 0 with consumers" in refused(b.assert_drained, "q", NOW)
                receiver.grant(1)
                delivery = receiver.receive()
                told = refused(b.assert_all_settled, NOW)
                assert ": 1, the last at " in told and " s by -> TRANSFER " in told
                assert "its last frame at " in refused(b.assert_no_stall, NOW)
                told = refused(b.assert_drained, "q", NOW)
                assert "0 ready, 1 with consumers" in told and "(the client is receiver, " in told
                assert " s by -> TRANSFER " in told
                assert "no queue 'r'" in refused(b.assert_drained, "r", NOW)
                receiver.accept(delivery)
                client.flush()
                b.assert_all_settled()
                b.assert_drained("q")

        def test_of_channels(amqp_broker):
            import pika
            b = amqp_broker
            b.declare("q")
            b.publish("q", "one")
            with pika.BlockingConnection(pika.URLParameters(b.url)) as connection:
                channel = connection.channel()
                b.assert_no_stall()
                method, _, _ = channel.basic_get("q")
                told = refused(b.assert_all_settled, NOW)
                assert "channel 1 of connection " in told and " s by -> basic.get-ok " in told
                assert told.partition(":\\n")[2] in refused(b.assert_drained, "q", NOW)
                channel.basic_ack(method.delivery_tag)
                b.assert_all_settled()
        """
    )
    result.assert_outcomes(passed=2)


def test_a_lint_says_which_rule_whose_frames_and_what_to_do(run: Run) -> None:
    """It covers only this test's clients, including closed ones, and not the fixture's own."""
    source = """
        import pika
        import pytest
        from amqp10broker.errors import BrokerError

        def test_finds(amqp_broker):
            amqp_broker.declare("q")
            amqp_broker.assert_lint_clean()
            with pika.BlockingConnection(pika.URLParameters(amqp_broker.url)) as connection:
                channel = connection.channel()
                for _ in range(10):
                    channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
            with pytest.raises(AssertionError) as caught:
                amqp_broker.assert_lint_clean()
            told = str(caught.value)
            assert "the lint finds 1:" in told and "unconfirmed (risk): connection " in told
            assert "to do: confirm.select" in told and " s by <- ch 1" in told
            amqp_broker.assert_lint_clean(ignore=["unconfirmed"])
            with pytest.raises(BrokerError, match="no rule of the lint is called confirm; there are "):
                amqp_broker.assert_lint_clean(ignore=["confirm"])

        def test_is_clean(amqp_broker):
            amqp_broker.declare("q")
            for _ in range(60):
                assert amqp_broker.get("q") is None
            amqp_broker.assert_lint_clean()
        """
    run(source).assert_outcomes(passed=2)
    none = run(source, ini="amqp_broker_frames = 0")
    none.assert_outcomes(failed=2)
    none.stdout.fnmatch_lines(["*frames are not kept: set amqp_broker_frames*"])


def test_a_process_is_killed_and_comes_back_at_its_port(run: Run) -> None:
    result = run(
        """
        import pytest
        from amqp10broker.client.errors import LinkRefusedError
        from amqp10broker.errors import BrokerError

        def test_lives(amqp_broker_process):
            broker = amqp_broker_process
            port, pid = broker.port, broker.pid
            broker.declare("q", "quorum")
            broker.publish("q", "kept")
            broker.kill()
            with pytest.raises(BrokerError):
                broker.queues
            broker.start()
            assert (broker.port, broker.pid != pid) == (port, True)
            assert any('"listening"' in line for line in broker.log)
            broker.restart()
            assert broker.get("q").body == b"kept"
            with broker.client() as client:
                client.sender("/queues/q")
                broker.assert_credit_never_below(170, "q")
                broker.assert_lint_clean()
                with pytest.raises(LinkRefusedError):
                    client.sender("/queues/none")
            with pytest.raises(AssertionError, match="ended-by-error"):
                broker.assert_lint_clean()
            broker.kill()
            assert False
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*AMQP broker, virtual host /*", "the broker does not run", "*<- ch 0 ATTACH *role=sender*"]
    )


def test_workers_share_a_broker(run: Run, pytester: pytest.Pytester) -> None:
    """Virtual hosts keep their tests apart, and a report shows its own test's connections."""
    source = """
        import os, pathlib, time
        import pytest
        from amqp10broker.client.errors import LinkRefusedError

        @pytest.mark.parametrize("name", ["one", "two"])
        def test_one(amqp_broker, name, pytestconfig):
            folder = pathlib.Path(os.environ["FOUND_IN"])
            with amqp_broker.client() as client:
                client.sender(None, properties={"only": name})
                if name == "two":
                    with pytest.raises(LinkRefusedError):
                        client.sender("/queues/none")
                (folder / name).write_text(f"{os.environ['PYTEST_XDIST_WORKER']} {amqp_broker.port}")
                deadline = time.monotonic() + 60
                while len(list(folder.iterdir())) < 2 and time.monotonic() < deadline:
                    time.sleep(0.01)
            if name == "two":
                with pytest.raises(AssertionError, match="the lint finds 1:"):
                    amqp_broker.assert_lint_clean()
            else:
                amqp_broker.assert_lint_clean()
            assert name != "two"
        """
    found = pytester.mkdir("found")
    pytester._monkeypatch.setenv("FOUND_IN", str(found))
    result = run(
        source, "-p", "xdist.plugin", "-n", "2", "--dist", "load", ini="amqp_broker_shared = true", apart=True
    )
    result.assert_outcomes(passed=1, failed=1)
    workers, ports = zip(*(each.read_text().split() for each in found.iterdir()), strict=True)
    assert (len(set(workers)), len(set(ports))) == (2, 1)
    result.stdout.fnmatch_lines(["*<- ch 0 ATTACH *only: two*"])
    result.stdout.no_fnmatch_line("*only: one*")


def test_workers_have_a_broker_each(run: Run, pytester: pytest.Pytester) -> None:
    """The option is not given; each test waits for that of the other worker."""
    source = """
        import os, pathlib, time
        import pytest

        @pytest.mark.parametrize("name", ["one", "two"])
        def test_one(amqp_broker, name):
            folder = pathlib.Path(os.environ["FOUND_IN"])
            (folder / name).write_text(str(amqp_broker.port))
            deadline = time.monotonic() + 60
            while len(list(folder.iterdir())) < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
        """
    found = pytester.mkdir("found")
    pytester._monkeypatch.setenv("FOUND_IN", str(found))
    result = run(source, "-p", "xdist.plugin", "-n", "2", "--dist", "load", apart=True)
    result.assert_outcomes(passed=2)
    assert len({each.read_text() for each in found.iterdir()}) == 2


DEFINITIONS = {
    "users": [{"name": "nobody-here", "password_hash": "", "tags": []}],
    "vhosts": [{"name": "shop"}],
    "policies": [
        {"vhost": "shop", "name": "p", "pattern": ".*", "apply-to": "queues", "definition": {"max-length": 1}}
    ],
    "queues": [
        {"name": "billing", "vhost": "shop", "durable": True, "arguments": {"x-queue-type": "quorum"}}
    ],
    "exchanges": [{"name": "orders", "vhost": "shop", "type": "topic", "durable": True, "arguments": {}}],
    "bindings": [
        {
            "source": "orders", "vhost": "shop", "destination": "billing", "destination_type": "queue",
            "routing_key": "order.*.new", "arguments": {},
        }
    ],
}  # fmt: skip


def test_a_topology_is_loaded_from_a_file(run: Run, pytester: pytest.Pytester) -> None:
    """The file's one virtual host is loaded into the test's; module and test markers add up."""
    more = {
        "queues": [{"name": each, "vhost": each, "durable": True, "arguments": {}} for each in ("a", "b")]
    }
    refused = {"queues": [{"name": "q", "vhost": "/", "durable": True, "arguments": {"x-queue-type": "odd"}}]}
    for name, content in (("shop", DEFINITIONS), ("more", more), ("refused", refused)):
        (pytester.path / f"{name}.json").write_text(json.dumps(content))
    result = run(
        """
        import pytest
        pytestmark = pytest.mark.amqp_topology("shop.json")

        def test_routes(amqp_broker):
            amqp_broker.publish("", "tea", exchange="orders", key="order.1.new")
            assert amqp_broker.get("billing").body == b"tea"
            status = amqp_broker.queue("billing").status
            assert (status["type"], status["policy"]) == ("quorum", "p")
            assert "nobody-here" not in str(amqp_broker.ask("list-users"))

        @pytest.mark.amqp_topology("more.json", vhost="b")
        def test_adds_one(amqp_broker_process):
            assert sorted(amqp_broker_process.queues) == ["b", "billing"]

        @pytest.mark.amqp_topology("more.json")
        def test_no_choice(amqp_broker): pass

        @pytest.mark.amqp_topology("more.json", vhost="c")
        def test_wrong_choice(amqp_broker): pass

        @pytest.mark.amqp_topology("refused.json")
        def test_refused(amqp_broker): pass

        @pytest.mark.amqp_topology()
        def test_no_file(amqp_broker): pass
        """,
        "--strict-markers",
    )
    result.assert_outcomes(passed=2, errors=4)
    result.stdout.fnmatch_lines_random(
        [
            "*has virtual hosts a, b: choose with vhost='a'*",
            "*declares nothing in virtual host 'c'; it has a, b*",
            "*refused.json cannot be loaded: *x-queue-type*",
            "*takes one file*",
        ]
    )


def test_a_test_case_of_unittest_has_a_broker(pytester: pytest.Pytester) -> None:
    """Under unittest and pytest, a class has one broker and each test a virtual host."""
    (pytester.path / "shop.json").write_text(json.dumps(DEFINITIONS))
    pytester.makepyfile(
        test_case="""
        import unittest
        from amqp10broker.testing.servers import BrokerTestCase

        class TestShop(BrokerTestCase):
            broker_settings = {"max_link_credit": 7}
            topology = "shop.json"
            seen = []

            def check(self):
                assert self.broker.queues == ["billing"]
                assert self.broker.ask("status")["broker"]["flow"]["max_link_credit"] == 7
                self.broker.declare("own")
                self.seen.append((self.broker.port, self.broker.vhost))

            def test_one(self):
                self.check()

            def test_two(self):
                self.check()
                (port, vhost), (other_port, other_vhost) = self.seen
                assert port == other_port and vhost != other_vhost

        class TestLoop(BrokerTestCase, unittest.IsolatedAsyncioTestCase):
            async def test_async(self):
                assert self.broker.queues == []
        """
    )
    pytester._monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    assert "Ran 3 tests" in str(pytester.run(sys.executable, "-m", "unittest", "test_case").stderr)
    assert pytester.runpytest_subprocess("-p", "no:cacheprovider").ret == 0


def test_a_broker_ends_with_the_tests_that_were_killed() -> None:
    """No process is left to stop it: it reads the end of its standard input."""
    program = (
        "import sys, time; from amqp10broker.testing.servers import Process; "
        "print(Process({}, 0, None).port, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=REPOSITORY, text=True
    )
    with parent.stdout:
        port = int(parent.stdout.readline())
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S):
        parent.send_signal(signal.SIGKILL)
        parent.wait(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S).close()
        except ConnectionRefusedError:
            return
        assert time.monotonic() < deadline, "it still listens"
        time.sleep(0.01)


@pytest.mark.skipif(sys.implementation.name == "pypy", reason="FastStream is not installed on PyPy")
def test_the_examples_run_as_a_programs_own_tests() -> None:
    """Each client library has an example, as plain tests and for pytest-asyncio, anyio and pytest-trio."""
    examples = REPOSITORY / "examples" / "testing"
    others = ("pytest_asyncio.plugin", "anyio.pytest_plugin", "pytest_trio.plugin")
    options = [option for name in others for option in ("-p", name)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *PLUGIN, *options, "-p", "no:cacheprovider", "-rA", str(examples)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    passed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("PASSED")]
    files = {path.name for path in examples.glob("test_*.py")}
    assert {each.rpartition("/")[2].partition("::")[0] for each in passed} == files
    readme = (REPOSITORY / "examples" / "README.md").read_text()
    assert [name for name in files if f"`testing/{name}`" not in readme] == []
