"""The timeline that the page draws beside a trace of the same frames: each step of a curve is one of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import pytest

from amqp10broker.protocols.amqp10.performatives import Accepted, Attach, Flow, Transfer
from tests.support.broker_process import BrokerProcess
from tests.support.browser import Pages
from tests.support.rawframes import attach_receiver, attach_sender, credit, disposition, flow, transfer
from tests.support.rawsocket import RawSocket

if TYPE_CHECKING:
    from playwright.sync_api import Page

ON_THE_WIRE: Final = ("credit", "delivery_count", "unsettled", "incoming_window", "remote_incoming_window")
"""Values that frames tell; the others are looked at behind them."""
TAKEN: Final = """([answers, watched]) => import("/js/curves.js").then(({ Timeline }) => {
    const timeline = new Timeline(watched);
    for (const each of answers) timeline.take(each);
    return { steps: timeline.steps, curves: Object.fromEntries(timeline.curves), gaps: timeline.gaps,
             now: timeline.now, exported: timeline.exported() };
})"""
SEEN: Final = """() => {
    const { timeline, picture } = document.querySelector("main .stack");
    return { steps: timeline.steps, curves: Object.fromEntries(timeline.curves), gaps: timeline.gaps,
             next: timeline.next, watch: timeline.watched.watch };
}"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("timeline"), "--http-port", "0")
    yield process
    process.stop()


def logged_in(pages: Pages, broker: BrokerProcess, where: str, **window: Any) -> Page:
    page = pages.open(f"{broker.wait_for_log('HTTP API')['address']}#/{where}", **window)
    page.get_by_label("User").fill("guest")
    page.get_by_label("Password").fill("guest")
    page.get_by_role("button", name="Log in", exact=True).click()
    page.locator("header.heading").wait_for()
    return page


def some_traffic(client: RawSocket) -> None:
    """Make transfers, grants, settlements, a drain with an echo, a window; wait for each effect."""
    client.send(*[transfer(0, number, b"body %d" % number) for number in range(30)])
    for first, count in ((0, 10), (10, 5), (15, 12)):
        client.send(credit(1, count, delivery_count=first))
        for _ in range(count):
            client.until(Transfer)
        client.send(disposition(first, first + count - 2, role=True, settled=True, state=None))
    client.send(credit(1, 40, delivery_count=27, drain=True, echo=True))
    for _ in range(3):
        client.until(Transfer)
    client.until(Flow)
    client.send(flow(next_incoming_id=30, incoming_window=77, next_outgoing_id=30, echo=True))
    client.until(Flow)


class Ledger:
    """A link to a consumer by its frames alone: what AMQP says of credit (2.6.7), nothing of the broker's."""

    def __init__(self, handle: str) -> None:
        self._handle = handle
        self._limit = 0
        self.delivery_count = 0

    def read(self, line: list[str]) -> None:
        fields = dict(each.split("=", 1) for each in line if "=" in each)
        if fields.get("handle") != self._handle:
            return
        if line[3] == "TRANSFER" and line[0] == "->":
            self.delivery_count += 1
        elif line[3] == "FLOW" and line[0] == "<-" and "link-credit" in fields:
            self._limit = int(fields.get("delivery-count", 0)) + int(fields["link-credit"])
        elif line[3] == "FLOW" and line[0] == "->" and "delivery-count" in fields:
            self.delivery_count = int(fields["delivery-count"])

    @property
    def credit(self) -> int:
        return max(0, self._limit - self.delivery_count)


def test_each_step_of_a_curve_is_a_frame_of_the_trace(
    broker: BrokerProcess, pages: Pages, tmp_path: Path
) -> None:
    """Credit and delivery-count follow from the trace's frames, frame by frame in both directions."""
    broker.ask("declare-queue", name="q")
    file = tmp_path / "trace"
    with RawSocket(broker.port).open() as client:
        client.send(attach_sender(0, "/queues/q", name="in"), attach_receiver(1, "/queues/q", name="out"))
        for _ in range(2):
            client.until(Attach)
        client.until(Flow)
        connection = broker.ask("status")["connections"][0]
        page = logged_in(pages, broker, "overview")
        (listed,) = page.evaluate(
            "() => fetch('api/connections', {headers: {authorization: 'Basic ' + btoa('guest:guest')}})"
            ".then((each) => each.json())"
        )
        where = f"timeline/{quote(listed['name'], safe='')}/0/out/receiver"
        page.evaluate("(hash) => { location.hash = hash; }", f"#/{where}")
        page.locator("canvas.flow-canvas").wait_for()
        broker.ask("trace", what=str(connection["id"]), on=True, file=str(file))
        some_traffic(client)
        broker.ask("trace", what=str(connection["id"]), on=False)
        # TIME connection 1 <- ch 0 TRANSFER handle=0 ...
        lines = [line.split()[3:] for line in file.read_text().splitlines()]
        expected = {arrow: [line[3] for line in lines if line[0] == arrow] for arrow in ("<-", "->")}
        total = sum(map(len, expected.values()))
        page.wait_for_function(
            "(total) => document.querySelector('main .stack').timeline.steps"
            ".reduce((sum, each) => sum + each.frames, 0) >= total",
            arg=total,
        )
        seen = page.evaluate(SEEN)
        steps = {step["number"]: step for step in seen["steps"]}
        for arrow, direction in (("<-", "in"), ("->", "out")):
            drawn = [
                step["frame"].split()[0]
                for step in seen["steps"]
                if step["direction"] == direction
                for _ in range(step["frames"])
            ]
            assert drawn == expected[arrow]
        for name in ON_THE_WIRE:
            made_by = [steps[number] for number in seen["curves"][name]["steps"] if number >= 0]
            assert made_by, name
            assert all(step["direction"] for step in made_by), name

        # What the curves say behind each frame of the link, against the arithmetic of the trace.
        ledger = Ledger("1")
        unread = {
            direction: iter([line for line in lines if line[0] == arrow])
            for arrow, direction in (("<-", "in"), ("->", "out"))
        }
        for step in seen["steps"]:
            if not step["direction"]:
                continue
            for _ in range(step["frames"]):
                ledger.read(next(unread[step["direction"]]))
            for name in ("credit", "delivery_count"):
                held = value_at(seen["curves"][name], step["number"])
                assert held == getattr(ledger, name), (name, step)
        assert {mark for step in seen["steps"] for mark in step["marks"]} == {"flow", "drain", "echo"}

        # The picture is pressed: the frame stands beneath it, in words and bytes.
        page.keyboard.press("0")
        page.locator("canvas.flow-canvas").press(",")
        words = page.locator(".flow-detail .flow-words")
        words.wait_for()
        assert words.inner_text().split()[0] in {word for each in expected.values() for word in each}
        page.close()
        client.close()
    broker.wait_until(lambda: not broker.ask("status")["connections"], "the client has gone")


def test_a_stall_is_seen_explained_and_gone_when_the_client_grants(
    broker: BrokerProcess, pages: Pages
) -> None:
    """The page lists the stall and draws the grant that ends it in the link's timeline. A timeline that the
    broker has ended is begun anew.
    """
    broker.ask("declare-queue", name="stalled")
    page = logged_in(pages, broker, "waiting")
    page.get_by_text("no client is connected that could wait").wait_for()
    with RawSocket(broker.port).open() as client:
        queue = "/queues/stalled"
        client.send(attach_sender(0, queue, name="in"), attach_receiver(1, queue, name="hungry"))
        for _ in range(2):
            client.until(Attach)
        client.until(Flow)
        client.send(*[transfer(0, number, b"body") for number in range(3)])
        card = page.locator(".wait-card", has_text="hungry")
        card.get_by_text("no-credit-never-granted").wait_for()
        card.get_by_text("let the client grant credit").wait_for()
        card.get_by_role("link", name="Timeline of hungry").click()
        why = page.get_by_role("region", name="Why it waits")
        why.get_by_text("no-credit-never-granted").wait_for()
        client.send(credit(1, 7))
        for _ in range(3):
            client.until(Transfer)
        client.send(disposition(0, 2, state=Accepted()))
        why.wait_for(state="hidden")
        page.wait_for_function(
            "() => document.querySelector('main .stack').timeline.curves.get('credit').values.at(-1) === 4"
        )
        credits = page.evaluate(SEEN)["curves"]["credit"]["values"]
        assert (max(credits), credits[-1]) == (7, 4)
        with page.expect_download() as download:
            page.get_by_role("button", name="Export as JSON").click()
        exported = json.loads(Path(download.value.path()).read_text())
        assert (exported["watched"]["link"], exported["start"]["credit"]) == ("hungry", 0)
        assert any("FLOW" in step["frame"] for step in exported["steps"])
        begun = page.evaluate(SEEN)["watch"]
        page.evaluate(
            "(watch) => fetch(`api/timelines/${watch}`, {method: 'DELETE', "
            "headers: {authorization: 'Basic ' + btoa('guest:guest')}})",
            begun,
        )
        page.get_by_role("button", name="Begin a new timeline").click()
        page.wait_for_function(
            "(begun) => document.querySelector('main .stack').timeline.watched.watch > begun", arg=begun
        )
        client.send(credit(1, 9, delivery_count=3))
        page.locator(".rows", has_text="link-credit 9").wait_for()
        page.get_by_role("link", name="Waiting").click()
        page.get_by_text("Nothing waits.").wait_for()
        client.close()
    page.close()
    broker.wait_until(lambda: not broker.ask("status")["connections"], "the client has gone")


def value_at(curve: dict[str, Any], number: int) -> Any:
    return next(
        value
        for value, step in zip(reversed(curve["values"]), reversed(curve["steps"]), strict=True)
        if step <= number
    )


def test_answers_that_overlap_make_one_timeline_and_lost_steps_a_gap(
    broker: BrokerProcess, pages: Pages
) -> None:
    """A stream that restarts sends all steps again; no step appears twice. Lost steps are reported."""
    page = logged_in(pages, broker, "overview")
    watched = {"began_ns": 5_000_000_000, "began_at_ns": 0}

    def step(number: int) -> dict[str, Any]:
        at_ns = 5_000_000_000 + number * 1_000_000
        common = {
            "direction": "in",
            "frames": 1,
            "link": True,
            "frame": "FLOW",
            "bytes": "",
            "marks": ["flow"],
        }
        return {"number": number, "at_ns": at_ns, **common, "values": {"credit": number}}

    def answer(first: int, last: int) -> dict[str, Any]:
        steps = [step(number) for number in range(first, last)]
        start = {"credit": max(0, first - 1)}
        now_ns = 5_000_000_000 + last * 1_000_000
        told = {"since": first, "next": last, "lost": 0, "more": False, "ended": None}
        return {**told, "now_ns": now_ns, "start": start, "steps": steps}

    taken = page.evaluate(TAKEN, [[answer(0, 5), answer(0, 8), answer(8, 10), answer(15, 17)], watched])
    assert [each["number"] for each in taken["steps"]] == [*range(10), 15, 16]
    assert taken["gaps"] == [{"from": 9, "to": 15, "lost": 5}]
    curve = taken["curves"]["credit"]
    assert list(zip(curve["times"], curve["values"], curve["steps"], strict=True)) == [
        (0, 0, -1),
        *((number, number, number) for number in range(10)),
        (15, 14, -1),
        (15, 15, 15),
        (16, 16, 16),
    ]
    assert taken["exported"]["steps"][3] == step(3)
    assert taken["now"] == 17
    over = {**answer(17, 19), "now_ns": 6_000_000_000, "ended": "the link is detached"}
    ended = page.evaluate(TAKEN, [[answer(0, 17), over], watched])
    assert (ended["now"], ended["exported"]["ended"]) == (18, "the link is detached")
    page.close()
