"""Links that survive a restart, in the journal: what a start finds is what was said last."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from amqp10broker.queues.journal import ENDED, GROUP, LINK, TAKEN, ResumableLinksInJournal
from tests.support.memory_journal import MemoryJournal

Found = dict[int, tuple[bytes, set[bytes]]]


class Kept:
    """The records of links, and how often they asked to be written."""

    def __init__(self, journal: MemoryJournal) -> None:
        self.journal = journal
        self.asked = 0
        self.links = ResumableLinksInJournal(journal, self._ask)

    def _ask(self) -> None:
        self.asked += 1

    @property
    def found(self) -> Found:
        return next_life(self.journal)[1]


def next_life(journal: MemoryJournal) -> tuple[Kept, Found]:
    kept = Kept(journal.again())
    kept.links.restore(kept.journal.records)
    return kept, {number: (document, set(tags)) for number, document, tags in kept.links.found()}


def test_only_what_nobody_waits_for_asks_to_be_written() -> None:
    """Delivery records are in one group with those of their messages, whose write is awaited."""
    kept = Kept(MemoryJournal())
    kept.links.put(1, b"one")
    kept.links.take(1, [b"a"])
    assert kept.asked == 1
    kept.links.settle(1, [b"a"])
    kept.links.settle(1, [b"a"])
    assert kept.asked == 2
    kept.links.end(1)
    kept.links.end(1)
    assert kept.asked == 3


def test_deliveries_of_a_link_whose_record_was_cut_off_are_nobodys() -> None:
    journal = MemoryJournal()
    journal.append(GROUP, TAKEN, 7, [b"\x01a"])
    kept, found = next_life(journal)
    assert found == {}
    assert kept.journal.records[-1].kind == ENDED
    assert kept.journal.live == {1: 0}


_STEPS = st.one_of(
    st.tuples(st.just("put"), st.integers(1, 3), st.binary(min_size=1, max_size=40)),
    st.tuples(st.just("take"), st.integers(1, 3), st.lists(st.sampled_from(b"abcd"), min_size=1, max_size=3)),
    st.tuples(st.just("settle"), st.integers(1, 3), st.lists(st.sampled_from(b"abcd"), max_size=3)),
    st.tuples(st.just("end"), st.integers(1, 3), st.none()),
    st.tuples(st.just("clean"), st.none(), st.none()),
    st.tuples(st.just("restart"), st.none(), st.none()),
)


@given(st.lists(_STEPS, max_size=40))
def test_a_start_finds_what_a_plain_model_says(steps: list[tuple[str, int, object]]) -> None:
    """Commands, cleanings and restarts come in any order; live data is accounted for to the byte."""
    kept, model = Kept(MemoryJournal(file_bytes=60)), Found()
    for step, number, value in steps:
        match step:
            case "put":
                assert isinstance(value, bytes)
                kept.links.put(number, value)
                model[number] = value, model.get(number, (b"", set()))[1]
            case "take" | "settle" if number in model:
                assert isinstance(value, list)
                tags = [bytes((each,)) for each in value]
                if step == "take":
                    kept.links.take(number, tags)
                    model[number][1].update(tags)
                else:
                    kept.links.settle(number, tags)
                    model[number][1].difference_update(tags)
            case "end":
                kept.links.end(number)
                model.pop(number, None)
            case "clean" if len(kept.journal.files) > 1:
                for _ in kept.links.relocate(min(kept.journal.files)):
                    assert kept.found == model
                kept.journal.drop_oldest()
            case "restart":
                kept, found = next_life(kept.journal)
                assert found == model
        assert kept.found == model
        live = kept.journal.live
        assert sum(live.values()) == sum(next_life(kept.journal)[0].journal.live.values())


def test_a_start_reads_records_of_any_file() -> None:
    """A link's own record may stand behind those of its deliveries after its file was cleaned."""
    journal = MemoryJournal()
    journal.append(GROUP, TAKEN, 1, [b"\x01a\x01b"])
    journal.append(GROUP, LINK, 1, [b"one"])
    assert next_life(journal)[1] == {1: (b"one", {b"a", b"b"})}
