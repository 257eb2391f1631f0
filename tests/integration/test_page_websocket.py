"""The example of a page that speaks AMQP over WebSocket, in a real browser."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.broker_process import REPOSITORY, BrokerProcess
from tests.support.browser import Pages
from tests.support.rhea import MODULES, need_rhea

PAGE = "websocket_page.html"


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and writes no log."""

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The example's URL also serves rhea, and an icon where the browser requests one."""
    need_rhea()
    shutil.copy(REPOSITORY / "examples" / PAGE, tmp_path)
    shutil.copy(MODULES / "rhea" / "dist" / "rhea.min.js", tmp_path)
    (tmp_path / "favicon.ico").touch()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://localhost:{server.server_port}/{PAGE}"
        server.shutdown()
        thread.join()


def test_a_page_sends_and_gets_messages(
    served: str, pages: Pages, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Its origin is another port of this machine, so guest may log in."""
    with BrokerProcess(tmp_path_factory.mktemp("broker"), "--http-port", "0") as broker:
        ports = {each["protocol"]: each["port"] for each in broker.ask("list-listeners")}
        page = pages.open(served)
        page.fill("[name=url]", f"ws://localhost:{ports['http/web-amqp']}/")
        page.click("text=Connect")
        page.click("text=Send")
        page.wait_for_selector("#got li >> text=hello")
        page.wait_for_selector("#state >> text=the broker has it")
        page.fill("[name=text]", "<b>again</b>")
        page.click("text=Send")
        page.wait_for_selector("#got li:nth-child(2)")
        assert page.locator("#got li").all_inner_texts() == ["hello", "<b>again</b>"]
        broker.wait_for_counts("page", ready=0)
        (connection,) = broker.status()["connections"]
        assert connection["origin"]["transport"] == "websocket"
