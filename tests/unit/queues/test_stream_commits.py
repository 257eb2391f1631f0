"""Parts of commits in a stream: in the journal until the stream has them, and then never again."""

from __future__ import annotations

from amqp10broker.message.message import Message
from amqp10broker.queues.stream.durability import StreamCommits
from tests.support.small_journal import SmallJournal

GROUP = 7


def messages(*bodies: bytes) -> list[Message]:
    return [(b"head", body) for body in bodies]


def next_life(journal: SmallJournal) -> tuple[StreamCommits, SmallJournal]:
    found = journal.again()
    commits = StreamCommits(GROUP, found)
    commits.restore(found.records)
    return commits, found


def bodies(commits: StreamCommits, number: int) -> list[tuple[int, list[bytes]]]:
    """What the stream lacks, whose chunks say that it has commits up to a number."""
    return [(each, [body for _, body in missing]) for each, missing in commits.missing(number)]


def test_a_start_finds_what_the_streams_files_lack() -> None:
    journal = SmallJournal()
    commits = StreamCommits(GROUP, journal)
    assert [commits.append(messages(b"a", b"b")), commits.append(messages(b"c"))] == [1, 2]
    assert bodies(next_life(journal)[0], 0) == [(1, [b"a", b"b"]), (2, [b"c"])]
    assert bodies(next_life(journal)[0], 1) == [(2, [b"c"])]
    assert bodies(next_life(journal)[0], 2) == []


def test_what_was_written_once_is_not_written_again_when_its_chunks_have_gone() -> None:
    """Retention removes chunks, and with them what they say; the journal says it, too."""
    journal = SmallJournal()
    commits = StreamCommits(GROUP, journal)
    for body in (b"a", b"b", b"c"):
        commits.append(messages(body))
    commits.written(2)
    assert commits.bytes == journal.live[1]
    assert bodies(next_life(journal)[0], 0) == [(3, [b"c"])]


def test_numbers_go_on_behind_all_that_is_known() -> None:
    """Of the journal, and of the stream's chunks where the journal has been cleaned."""
    journal = SmallJournal()
    StreamCommits(GROUP, journal).append(messages(b"a"))
    again, _ = next_life(journal)
    assert bodies(again, 1) == []
    assert again.append(messages(b"b")) == 2
    fresh = StreamCommits(GROUP, SmallJournal())
    assert bodies(fresh, 41) == []
    assert fresh.append(messages(b"c")) == 42


def test_what_lives_in_a_file_is_appended_again_and_counted_once() -> None:
    """So that the oldest file can go; a start that finds both has it once."""
    journal = SmallJournal(file_bytes=200)
    commits = StreamCommits(GROUP, journal)
    for body in (b"a" * 300, b"b" * 300):
        commits.append(messages(body))
    assert commits.bytes == sum(journal.live.values())
    assert list(commits.relocate(1)) == [None]
    assert journal.live[1] == 0
    both, found = next_life(journal)
    assert bodies(both, 0) == [(1, [b"a" * 300]), (2, [b"b" * 300])]
    assert both.bytes == sum(found.live.values())
    journal.drop_oldest()
    left, _ = next_life(journal)
    assert bodies(left, 0) == [(1, [b"a" * 300]), (2, [b"b" * 300])]
