"""The pytest plugin: options, fixtures, and the report of a failed test.

Every run of pytest imports this module, wherever the package is installed, so it imports pytest alone; the
broker is imported by the first test that needs one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pytest

if TYPE_CHECKING:
    from amqp10broker.testing.broker import AmqpBroker
    from amqp10broker.testing.servers import AmqpBrokerProcess, Servers

MARKER: Final = "amqp_broker"
TOPOLOGY: Final = "amqp_topology"
AnyBroker = TypeVar("AnyBroker", bound="AmqpBroker")
_SERVERS: Final = pytest.StashKey["Servers"]()
_USED: Final = pytest.StashKey[list["AmqpBroker"]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "amqp_broker_settings",
        "settings of the brokers of tests, NAME=VALUE: as in the broker's configuration",
        type="linelist",
        default=[],
    )
    parser.addini(
        "amqp_broker_shared",
        "the workers of pytest-xdist share one broker, in a process of its own; else each has one",
        type="bool",
        default=False,
    )
    parser.addini(
        "amqp_broker_frames",
        "frames of each connection that the report of a failed test shows; 0: none are kept",
        default="20",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{MARKER}(**settings): the test's broker has these settings, max_link_credit=10"
    )
    config.addinivalue_line(
        "markers", f"{TOPOLOGY}(file, vhost=None): the test's broker has what this definitions file declares"
    )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    # Workers of pytest-xdist share the controller's broker.
    if node.config.getini("amqp_broker_shared"):
        node.workerinput[MARKER] = _servers(node.config).shared_place()


def pytest_unconfigure(config: pytest.Config) -> None:
    servers = config.stash.get(_SERVERS, None)
    if servers is not None:
        servers.close()


@pytest.fixture
def amqp_broker(request: pytest.FixtureRequest) -> Iterator[AmqpBroker]:
    """A virtual host for this test alone, on a broker that all tests share."""
    with _servers(request.config).host(request.node.name, _marked(request.node)) as broker:
        yield _begun(request.node, broker)


@pytest.fixture
def amqp_broker_process(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AmqpBrokerProcess]:
    """A broker for this test alone, in a separate process with a data folder."""
    folder = tmp_path_factory.mktemp("amqp-broker")
    with _servers(request.config).process(_marked(request.node), folder) as broker:
        yield _begun(request.node, broker)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    # Adds waits and last frames of clients to the report of a failed test.
    report = yield
    if report.failed:
        for broker in item.stash.get(_USED, []):
            report.sections.append((f"AMQP broker, virtual host {broker.vhost}", broker.report()))
    return report


def _servers(config: pytest.Config) -> Servers:
    servers = config.stash.get(_SERVERS, None)
    if servers is None:
        from amqp10broker.testing.servers import Servers

        servers = config.stash[_SERVERS] = Servers(
            config.getini("amqp_broker_settings"),
            config.getini("amqp_broker_frames"),
            getattr(config, "workerinput", {}).get(MARKER),
        )
    return servers


def _begun(node: pytest.Item, broker: AnyBroker) -> AnyBroker:
    node.stash.setdefault(_USED, []).append(broker)
    # The farthest first: a module's before a test's. A path is relative to the file of the test.
    for marker in reversed(list(node.iter_markers(TOPOLOGY))):
        if len(marker.args) != 1 or marker.kwargs.keys() - {"vhost"}:
            example = '("definitions.json", vhost="/")'
            raise pytest.UsageError(f"@pytest.mark.{TOPOLOGY} takes one file: {example}")
        broker.load(node.path.parent / marker.args[0], **marker.kwargs)
    return broker


def _marked(node: pytest.Item) -> dict[str, Any]:
    # The nearest marker takes precedence.
    settings: dict[str, Any] = {}
    for marker in node.iter_markers(MARKER):
        if marker.args:
            raise pytest.UsageError(
                f"@pytest.mark.{MARKER} takes settings by name: @pytest.mark.{MARKER}(max_link_credit=10)"
            )
        settings = {**marker.kwargs, **settings}
    return settings
