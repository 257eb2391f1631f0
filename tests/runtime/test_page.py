"""The page's files, from a running broker."""

from __future__ import annotations

import gzip
from pathlib import Path

import amqp10broker
from amqp10broker.api.endpoints.page import FOLDERS
from tests.support.http_user import http_user
from tests.support.trioclient import running_broker

PAGE = Path(amqp10broker.__file__).parent / "api" / "page"
FILES = sorted(str(path.relative_to(PAGE)) for path in PAGE.rglob("*.*"))


async def test_every_file_of_the_page_is_there_for_everybody() -> None:
    assert "index.html" in FILES
    async with running_broker() as broker, http_user(broker, "", prefix="") as user:
        for path in FILES:
            heard = await user.ask("GET", f"/{path}")
            assert (heard.status, heard.body) == (200, (PAGE / path).read_bytes()), path


async def test_the_page_stands_at_the_root() -> None:
    async with running_broker() as broker, http_user(broker, "", prefix="") as user:
        heard = await user.ask("GET", "/")
        assert heard.headers["content-type"] == "text/html; charset=utf-8"
        assert heard.body == (PAGE / "index.html").read_bytes()
        bodyless = await user.ask("HEAD", "/")
        assert (bodyless.status, bodyless.body) == (200, b"")
        assert (await user.ask("POST", "/")).status == 405


async def test_the_page_is_packed_and_sent_again_only_if_it_changed() -> None:
    async with running_broker() as broker, http_user(broker, "", prefix="") as user:
        heard = await user.ask("GET", "/js/main.js", accept_encoding="gzip")
        assert gzip.decompress(heard.body) == (PAGE / "js/main.js").read_bytes()
        again = await user.ask("GET", "/js/main.js", if_none_match=heard.headers["etag"])
        assert (again.status, again.body) == (304, b"")
        assert "content-length" not in again.headers
        assert (await user.ask("GET", "/")).status == 200


async def test_there_is_no_page_where_there_are_only_metrics() -> None:
    async with (
        running_broker() as broker,
        http_user(broker, "", listener=broker.prometheus, prefix="") as user,
    ):
        assert (await user.ask("GET", "/")).status == 404
        assert (await user.ask("GET", "/js/main.js")).status == 404


def test_folders_of_the_page_are_those_that_are_served() -> None:
    assert {path.rpartition("/")[0] for path in FILES} == {folder.removesuffix("/") for folder in FOLDERS}
