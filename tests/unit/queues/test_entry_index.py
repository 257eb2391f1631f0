"""Where entries lie: against a dictionary that knows it of each."""

from __future__ import annotations

from random import Random

import pytest

from amqp10broker.queues.quorum.log_store import EntryIndex
from amqp10broker.raft.entries import Kind


def check(index: EntryIndex, model: dict[int, tuple[int, Kind, int, int]]) -> None:
    if not model:
        return
    first, last = min(model), max(model)
    assert list(index.places(first, last)) == [(at, *model[at][2:]) for at in range(first, last + 1)]
    assert [index.kind(at) for at in model] == [each[:2] for each in model.values()]
    for behind in (first - 1, (first + last) // 2, last - 1):
        told = {}
        stretches = list(index.terms(behind))
        for (start, term, kind), end in zip(
            stretches, [*(each[0] for each in stretches[1:]), last + 1], strict=True
        ):
            told.update(dict.fromkeys(range(start, end), (term, kind)))
        assert told == {at: each[:2] for at, each in model.items() if at > behind}
    for file in {each[2] for each in model.values()}:
        assert index.last_in(file) == max(at for at, each in model.items() if each[2] <= file)


@pytest.mark.parametrize("seed", range(20))
def test_each_entry_is_where_it_was_put_last(seed: int) -> None:
    dice = Random(seed)
    index, model = EntryIndex(), {}
    first, term, file, offset = dice.randrange(1, 5), 1, 1, 0
    for _ in range(300):
        last = max(model, default=first - 1)
        offset += dice.randrange(30, 90)
        if dice.random() < 0.1:
            file, offset = file + 1, 32
        deed = dice.random()
        if deed < 0.7:
            term += dice.random() < 0.1
            kind = Kind.EMPTY if dice.random() < 0.1 else Kind.COMMAND
            index.add(last + 1, term, kind, file, offset)
            model[last + 1] = term, kind, file, offset
        elif deed < 0.75 and model:
            cut = dice.randrange(max(min(model), last - 5), last + 1)
            index.truncate(cut)
            model = {at: each for at, each in model.items() if at < cut}
            first = cut
        elif deed < 0.85 and model:
            # Appended again, from one on to the end, as far as power lasts.
            for at in range(dice.randrange(max(min(model), last - 5), last + 1), last + dice.randrange(2)):
                offset += 40
                index.move(at, file, offset)
                model[at] = (*model[at][:2], file, offset)
        elif deed < 0.88 and model:
            until = dice.randrange(min(model), last + 1)
            index.forget_until(until)
            model = {at: each for at, each in model.items() if at > until}
            first = last + 1
        check(index, model)
    assert index.last_in(0) is None
