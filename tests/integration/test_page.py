"""The page in a real browser: what its visitors see, and may do."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pika
import pytest

from amqp10broker.api.live import difference
from tests.support.broker_process import BrokerProcess
from tests.support.browser import Pages
from tests.support.certificates import Certificates
from tests.support.cluster_process import free_ports

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

MANY: Final = 10_000
HOSTILE: Final = (
    "<img src=x onerror=alert(1)>",
    "'\"><script>throw 1</script>",
    "\u202etxt.exe",
    "a\nb\tc",
    "%2F/..?#&",
    "q" * 255,
)
USERS: Final = {
    "ada": "administrator",
    "mo": "monitoring",
    "pol": "policymaker",
    "max": "management",
    "nobody": "",
}
PASSWORD: Final = "a password of some length"
ADA: Final = pika.PlainCredentials("ada", PASSWORD)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """It has users of each tag, queues with hostile names, and a virtual host with ten thousand queues."""
    folder = tmp_path_factory.mktemp("page")
    settings: dict[str, Any] = {"durable": True, "auto_delete": False, "arguments": {}}
    definitions = {
        "vhosts": [{"name": "/"}, {"name": "many"}],
        "users": [{"name": name, "password": PASSWORD, "tags": tags} for name, tags in USERS.items()],
        "permissions": [
            {"user": name, "vhost": vhost, "configure": ".*", "write": ".*", "read": ".*"}
            for name in USERS
            for vhost in ("/", "many")
        ],
        "queues": [
            *({"name": name, "vhost": "/", **settings} for name in HOSTILE),
            *({"name": f"number-{number:05}", "vhost": "many", **settings} for number in range(MANY)),
        ],
    }
    file = folder / "definitions.json"
    file.write_text(json.dumps(definitions))
    process = BrokerProcess(
        folder, "--http-port", "0", "--definitions", str(file), "--collect-statistics-interval-ms", "1000"
    )
    yield process
    process.stop()


def address_of(broker: BrokerProcess) -> str:
    return str(broker.wait_for_log("HTTP API")["address"])


def log_in(page: Page, user: str, password: str = PASSWORD) -> None:
    page.get_by_label("User").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in", exact=True).click()


@pytest.fixture
def ada(pages: Pages, broker: BrokerProcess) -> Page:
    page = pages.open(address_of(broker))
    log_in(page, "ada")
    expect(page.get_by_role("button", name="Log out")).to_be_visible()
    return page


def expect(of: Any) -> Any:
    from playwright.sync_api import expect

    from tests.support.browser import WAIT_MS

    expect.set_options(timeout=WAIT_MS)
    return expect(of)


def view(page: Page, name: str) -> None:
    page.get_by_role("navigation", name="Views").get_by_role("link", name=name, exact=True).click()
    expect(page.get_by_role("heading", name=name, level=1)).to_be_visible()


def row(page: Page, text: str) -> Locator:
    return page.get_by_role("row").filter(has_text=text)


# --- who may see what -----------------------------------------------------------------------------


def test_a_wrong_login_is_refused_with_a_reason_and_a_right_one_lets_in(
    pages: Pages, broker: BrokerProcess
) -> None:
    """The page asks for the password again and keeps the user's name."""
    page = pages.open(address_of(broker))
    log_in(page, "ada", "wrong")
    expect(page.get_by_role("alert")).to_contain_text("does not know this user with this password")
    expect(page.get_by_label("User")).to_have_value("ada")
    log_in(page, "ada")
    expect(page.get_by_role("heading", name=re.compile("@"), level=1)).to_be_visible()
    page.reload()
    expect(page.get_by_role("button", name="Log out")).to_be_visible()  # this tab keeps it
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Password")).to_be_visible()
    page.reload()
    expect(page.get_by_label("Password")).to_be_visible()


@pytest.mark.parametrize(
    ("user", "sees", "not_there"),
    [
        ("ada", {"Users", "Nodes", "Policies"}, set()),
        ("mo", {"Nodes", "Connections"}, {"Users"}),
        ("pol", {"Policies"}, {"Users", "Nodes"}),
        ("max", {"Queues", "Connections"}, {"Users", "Nodes"}),
    ],
)
def test_navigation_is_that_of_the_tags(
    pages: Pages, broker: BrokerProcess, user: str, sees: set[str], not_there: set[str]
) -> None:
    """The page offers nothing that the API would refuse."""
    page = pages.open(address_of(broker))
    log_in(page, user)
    links = page.get_by_role("navigation", name="Views").get_by_role("link")
    expect(links.first).to_be_visible()
    shown = set(links.all_inner_texts())
    assert sees <= shown
    assert not not_there & shown


# --- queues and messages --------------------------------------------------------------------------


def test_a_queue_is_declared_published_to_read_purged_and_deleted(ada: Page, broker: BrokerProcess) -> None:
    view(ada, "Queues")
    ada.get_by_role("button", name="Declare a queue").click()
    dialog = ada.get_by_role("dialog")
    dialog.get_by_label("Virtual host").select_option("/")
    dialog.get_by_label("Name").fill("mine")
    dialog.get_by_label("Type").select_option("quorum")
    dialog.get_by_role("button", name="Declare", exact=True).click()
    expect(ada.get_by_role("heading", name="mine", level=1)).to_be_visible()
    found = broker.queue("mine")
    assert found["type"] == "quorum"

    ada.get_by_role("button", name="Publish", exact=True).click()
    dialog.get_by_label("Payload", exact=True).fill("<b>hello</b>\nworld")
    dialog.get_by_role("button", name="Publish", exact=True).click()
    expect(dialog).to_be_hidden()
    ada.get_by_role("button", name="Get messages").click()
    dialog.get_by_role("button", name="Get", exact=True).click()
    expect(dialog.get_by_text("<b>hello</b>")).to_be_visible()
    dialog.get_by_role("button", name="Close").click()
    assert broker.queue("mine")["messages_ready"] == 1  # type: ignore[index]

    ada.get_by_role("button", name="Purge", exact=True).click()
    sends = dialog.get_by_role("button", name="Purge", exact=True)
    expect(sends).to_be_disabled()
    dialog.get_by_label(re.compile("To confirm")).fill("mine")
    sends.click()
    expect(dialog).to_be_hidden()
    assert broker.queue("mine")["messages_ready"] == 0  # type: ignore[index]

    ada.get_by_role("button", name="Delete", exact=True).click()
    dialog.get_by_label(re.compile("To confirm")).fill("mine")
    dialog.get_by_role("button", name="Delete", exact=True).click()
    expect(ada.get_by_role("heading", name="Queues", level=1)).to_be_visible()
    assert broker.queue("mine") is None


def test_a_refusal_of_the_broker_is_shown_and_nothing_is_lost(ada: Page) -> None:
    """The form stays open with its values."""
    view(ada, "Queues")
    ada.get_by_role("button", name="Declare a queue").click()
    dialog = ada.get_by_role("dialog")
    dialog.get_by_label("Virtual host").select_option("/")
    dialog.get_by_label("Name").fill("amq.mine")
    dialog.get_by_role("button", name="Declare", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("amq.")
    expect(dialog.get_by_label("Name")).to_have_value("amq.mine")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_be_hidden()


@pytest.mark.parametrize("name", HOSTILE, ids=["markup", "script", "direction", "lines", "path", "long"])
def test_a_hostile_name_is_text_everywhere(ada: Page, broker: BrokerProcess, name: str) -> None:
    """The list, the address, the title and dialogues show it as text; none of it is executed."""
    before = ada.evaluate("document.scripts.length + document.images.length")
    ada.get_by_label("Virtual host").select_option("/")
    view(ada, "Queues")
    place = sorted(HOSTILE).index(name)
    links = ada.get_by_role("table").get_by_role("link")
    expect(links).to_have_count(len(HOSTILE))
    links.nth(place).click()
    expect(ada.get_by_role("button", name="Purge", exact=True)).to_be_visible()
    heading = ada.get_by_role("heading", level=1).inner_text()
    assert not set(heading) & set("\u202e\n\t")
    if not set(name) & set("\u202e\n\t"):
        assert heading == name
    assert ada.evaluate("document.scripts.length + document.images.length") == before
    assert ada.evaluate("document.documentElement.scrollWidth <= innerWidth")
    ada.get_by_role("button", name="Purge", exact=True).click()
    dialog = ada.get_by_role("dialog")
    expect(dialog).to_be_visible()
    ada.keyboard.press("Escape")
    expect(dialog).to_be_hidden()


def test_ten_thousand_queues_are_paged_and_found_by_name(ada: Page) -> None:
    """The browser holds only some of the rows at a time."""
    ada.get_by_label("Virtual host").select_option("many")
    view(ada, "Queues")
    expect(ada.get_by_text("10,000", exact=False).first).to_be_visible()
    assert ada.get_by_role("row").count() < 600
    ada.get_by_placeholder("Filter by name").fill("number-09999")
    expect(row(ada, "number-09999")).to_be_visible()
    expect(row(ada, "number-00000")).to_have_count(0)


def test_what_changes_is_seen_without_loading_again(ada: Page, broker: BrokerProcess) -> None:
    ada.get_by_label("Virtual host").select_option("/")
    view(ada, "Queues")
    with pika.BlockingConnection(
        pika.ConnectionParameters(broker.host, broker.port, credentials=ADA)
    ) as client:
        channel = client.channel()
        channel.queue_declare("live", auto_delete=True)
        for _ in range(3):
            channel.basic_publish("", "live", b"x")
        expect(row(ada, "live")).to_contain_text("3")
        channel.queue_delete("live")
        expect(row(ada, "live")).to_have_count(0)


# --- connections ----------------------------------------------------------------------------------


def test_a_connection_is_closed_with_a_reason(ada: Page, broker: BrokerProcess) -> None:
    properties = {"connection_name": "to be closed"}
    client = pika.BlockingConnection(
        pika.ConnectionParameters(broker.host, broker.port, credentials=ADA, client_properties=properties)
    )
    view(ada, "Connections")
    row(ada, "to be closed").get_by_role("link").first.click()
    ada.get_by_role("button", name="Close connection").click()
    dialog = ada.get_by_role("dialog")
    dialog.get_by_label(re.compile("Reason")).fill("enough of it")
    dialog.get_by_role("button", name="Close connection").click()
    expect(ada.get_by_role("heading", name="Connections", level=1)).to_be_visible()
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="enough of it"):
        client.sleep(30)


# --- every view -----------------------------------------------------------------------------------


VIEWS: Final = {
    "Overview": "amqp",
    "Waiting": None,
    "Timelines": None,
    "Connections": "the one to see",
    "Channels": "127.0.0.1",
    "Consumers": "mine",
    "Queues": "seen",
    "Exchanges": "amq.topic",
    "Policies": "limits",
    "Virtual hosts": "many",
    "Users": "nobody",
    "Definitions": None,
    "Nodes": None,
}
"""What stands in a row of each; None: it has no table."""


def test_nodes_show_what_an_upgrade_changes(ada: Page, broker: BrokerProcess) -> None:
    parameters = pika.ConnectionParameters(broker.host, broker.port, credentials=ADA)
    with pika.BlockingConnection(parameters) as connection:
        connection.channel().queue_declare("transient", auto_delete=True)
        view(ada, "Nodes")
        ada.get_by_role("button", name="Upgrade to 4.3").click()
        row = ada.get_by_role("dialog").get_by_role("row", name="transient_nonexcl_queues")
        expect(row).to_contain_text("queue transient")
        expect(row).to_contain_text("Do: declare the queue durable or exclusive")


def test_every_view_shows_what_the_api_says(ada: Page, broker: BrokerProcess) -> None:
    broker.ask("set-policy", name="limits", pattern="^none$", definition={"max-length": 5})
    parameters = pika.ConnectionParameters(
        broker.host, broker.port, credentials=ADA, client_properties={"connection_name": "the one to see"}
    )
    with pika.BlockingConnection(parameters) as client:
        channel = client.channel()
        channel.queue_declare("seen", exclusive=True)
        channel.basic_consume("seen", print, consumer_tag="mine")
        links = ada.get_by_role("navigation", name="Views").get_by_role("link")
        expect(links).to_have_count(len(VIEWS))
        assert set(links.all_inner_texts()) == set(VIEWS)
        for label, text in VIEWS.items():
            links.get_by_text(label, exact=True).click()
            expect(ada.get_by_role("heading", level=1)).to_be_visible()
            if label != "Overview":  # whose heading is the node's name
                expect(ada.get_by_role("heading", level=1)).to_have_text(label)
            if text is not None:
                expect(row(ada, text).first).to_be_visible()


def test_it_is_served_below_a_prefix_over_tls(pages: Pages, tmp_path: Path) -> None:
    certificates = Certificates.make(tmp_path)
    process = BrokerProcess(
        tmp_path,
        *("--http-port", "0", "--http-tls", "--http-path-prefix", "/broker/one"),
        *("--tls-port", "0", "--tls-certificate", certificates.server, "--tls-key", certificates.server_key),
    )
    address = address_of(process)
    assert address.startswith("https://")
    page = pages.open(address.rstrip("/").removesuffix("/broker/one") + "/broker/one/")
    log_in(page, "guest", "guest")
    view(page, "Exchanges")
    expect(row(page, "amq.topic")).to_be_visible()
    process.stop()


# --- the broker goes and comes --------------------------------------------------------------------


def test_it_says_that_the_broker_is_gone_and_comes_back_with_it(pages: Pages, tmp_path: Path) -> None:
    """The same tab continues without a reload."""
    arguments = ("--http-port", str(free_ports(1)), "--data-dir", str(tmp_path / "data"))
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    first = BrokerProcess(tmp_path / "one", *arguments)
    address = address_of(first)
    page = pages.open(address)
    log_in(page, "guest", "guest")
    expect(page.get_by_role("button", name=re.compile("^live"))).to_be_visible()
    first.stop()
    expect(page.get_by_role("button", name=re.compile("^no answer"))).to_be_visible()
    second = BrokerProcess(tmp_path / "two", *arguments)
    expect(page.get_by_role("button", name=re.compile("^live"))).to_be_visible()
    second.stop()


def test_the_page_makes_of_a_difference_what_the_broker_means(ada: Page) -> None:
    """`changed` of live.js and `applied` of the tests are one function in two languages."""
    random_source = random.Random(20)
    names = ("name", "vhost", "messages", "to", "__proto__")

    def value(depth: int) -> Any:
        kind = random_source.randrange(4 if depth else 2)
        if kind < 2:
            return random_source.choice((None, True, 0, 1, 2.5, "", "text"))
        if kind == 2:
            return [value(depth - 1) for _ in range(random_source.randrange(4))]
        return {name: value(depth - 1) for name in random_source.sample(names, random_source.randrange(4))}

    def rows() -> list[Any]:
        chosen = random_source.sample("abcdef", random_source.randrange(6))
        return [
            {"name": name, "messages": random_source.randrange(3), "__proto__": value(1)} for name in chosen
        ]

    pairs = [(value(3), value(3)) for _ in range(300)] + [(rows(), rows()) for _ in range(300)]
    cases = [(before, change, after) for before, after in pairs if (change := difference(before, after))]
    assert len(cases) > 400
    made = ada.evaluate(
        """async (text) => {
            const { changed } = await import(new URL("js/live.js", document.baseURI).href);
            return JSON.stringify(JSON.parse(text).map(([before, change]) => changed(before, change)));
        }""",
        json.dumps([(before, change) for before, change, _ in cases]),
    )
    assert json.loads(made) == [after for _, _, after in cases]
