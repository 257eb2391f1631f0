"""The page stays usable with a thousand connections and ten thousand queues: a long form alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

from amqp10broker.protocols.amqp10.performatives import Attach, SaslOutcome
from tests.integration.test_page import expect, log_in, view
from tests.support.broker_process import BrokerProcess
from tests.support.browser import Pages
from tests.support.rawframes import attach_receiver, begin, login, open_frame
from tests.support.rawsocket import RawSocket

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.long

CONNECTIONS: Final = 1_000
QUEUES: Final = 10_000
ROWS_MAX: Final = 600
"""Rows that the browser has at a time, whatever there is."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Each of the broker's clients has a link that waits for credit."""
    folder = tmp_path_factory.mktemp("crowd")
    settings: dict[str, Any] = {"vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
    definitions = {
        "vhosts": [{"name": "/"}],
        "users": [{"name": "guest", "password": "guest", "tags": "administrator"}],
        "permissions": [{"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
        "queues": [{"name": f"queue-{number:05}", **settings} for number in range(QUEUES)],
    }
    file = folder / "definitions.json"
    file.write_text(json.dumps(definitions))
    process = BrokerProcess(folder, "--http-port", "0", "--definitions", str(file))
    clients: list[RawSocket] = []
    try:
        for number in range(CONNECTIONS):
            clients.append(client := RawSocket(process.port))
            client.send(login("PLAIN", b"\0guest\0guest"))
            client.until(SaslOutcome)
            client.send(open_frame(), begin(), attach_receiver(0, f"queue-{number:05}"))
            client.until(Attach)
        yield process
    finally:
        for client in clients:
            client.close()
        process.stop()


@pytest.fixture
def page(pages: Pages, broker: BrokerProcess) -> Page:
    page = pages.open(str(broker.wait_for_log("HTTP API")["address"]))
    log_in(page, "guest", "guest")
    expect(page.get_by_role("button", name="Log out")).to_be_visible()
    return page


def test_a_thousand_connections_are_paged_and_found(page: Page) -> None:
    view(page, "Connections")
    expect(page.get_by_text("1,000", exact=False).first).to_be_visible()
    assert page.get_by_role("row").count() < ROWS_MAX
    view(page, "Consumers")
    expect(page.get_by_text("1,000", exact=False).first).to_be_visible()
    assert page.get_by_role("row").count() < ROWS_MAX


def test_what_waits_is_counted_whole_and_shown_in_part(page: Page) -> None:
    view(page, "Waiting")
    expect(page.get_by_role("button", name=re.compile(r"no-credit-never-granted 1,000"))).to_be_visible()
    cards = page.locator(".wait-card")
    expect(cards.first).to_be_visible()
    assert cards.count() < ROWS_MAX
