"""A headless Chromium, and what a page must not do in it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request

WAIT_MS: Final = 30_000
"""How long a page may take to show something: longer than any machine needs."""

_INSTALLED: Final = Path(sys.prefix) / "browser"
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")


def find_chromium() -> tuple[Path, dict[str, str]] | None:
    """Return the path of a Chromium and its environment; None if there is none."""
    if (_INSTALLED / "version").is_file():
        needs = {"LD_LIBRARY_PATH": str(_INSTALLED / "lib"), "FONTCONFIG_PATH": str(_INSTALLED)}
        return _INSTALLED / "chromium", needs
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    return None if found is None else (Path(found), {})


class Watch:
    """What pages of one browser context complain of, and where they turn to."""

    def __init__(self, context: BrowserContext) -> None:
        self.complaints: list[str] = []
        self._own: set[str] = set()
        context.on("console", self._said)
        context.on("weberror", lambda error: self.complaints.append(f"uncaught: {error.error}"))
        context.on("request", self._asked)

    def allow(self, url: str) -> None:
        self._own.add(urlsplit(url).netloc)

    def _said(self, message: ConsoleMessage) -> None:
        # A status of the API that says no is the page's to handle, and Chromium's to write down.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            self.complaints.append(f"{message.type}: {message.text}")

    def _asked(self, request: Request) -> None:
        where = urlsplit(request.url)
        if where.scheme in ("http", "https", "ws", "wss") and where.netloc not in self._own:
            self.complaints.append(f"request to {request.url}")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """All tests of a module share one browser. A worker cannot: as long as Playwright lives, its thread has
    a running event loop of asyncio, and later tests on that worker could not start one of their own.
    """
    found = find_chromium()
    if found is None:
        pytest.skip(
            "no Chromium is here: make test installs one on Linux (x86-64); elsewhere put one on the path"
        )
    from playwright.sync_api import sync_playwright

    program, needs = found
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program,
            # It runs as whoever runs the tests, in containers as root; it sees no page but the broker's.
            args=["--no-sandbox"],
            env={**os.environ, **needs},
        )
        yield browser
        browser.close()


class Pages:
    """Pages that are watched, in contexts of their own."""

    def __init__(self, browser: Browser, name: str) -> None:
        self._browser = browser
        self._name = name
        self._contexts: list[tuple[BrowserContext, Watch]] = []

    def open(self, url: str, *, dark: bool = False, width: int = 1360, height: int = 860) -> Page:
        context = self._browser.new_context(
            color_scheme="dark" if dark else "light",
            viewport={"width": width, "height": height},
            ignore_https_errors=True,
        )
        watch = Watch(context)
        watch.allow(url)
        self._contexts.append((context, watch))
        context.set_default_timeout(WAIT_MS)
        page = context.new_page()
        page.goto(url)
        return page

    def close(self) -> None:
        """Close the pages, after a pause for inspection if asked for; fail if any had errors."""
        folder = os.environ.get("AMQP10BROKER_SCREENSHOTS")
        complaints: list[str] = []
        for context, watch in self._contexts:
            for number, page in enumerate(context.pages):
                if folder:
                    page.screenshot(path=Path(folder) / f"{self._name}-{number}.png")
            context.close()
            complaints += watch.complaints
        assert not complaints, f"the page complains: {complaints}"


@pytest.fixture
def pages(chromium: Browser, request: pytest.FixtureRequest) -> Iterator[Pages]:
    """Open pages; their errors fail the test."""
    opened = Pages(chromium, request.node.name)
    yield opened
    opened.close()
