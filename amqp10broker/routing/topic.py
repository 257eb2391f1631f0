"""Topic exchanges: binding keys are patterns of words, `*` is any one word, `#` any number of words.

Words are separated by dots; the empty key has no words at all, so only the empty binding key and those
made of `#` match it. Patterns without wildcards are found by one dictionary lookup. The others are in a
tree with a word on each edge; only branches that still match the key are entered, so the cost depends on
the key's length and on the matches, not on the number of bindings.
"""

from __future__ import annotations

from typing import Final

from amqp10broker.errors import InvalidArgument
from amqp10broker.routing.bindings import Destinations
from amqp10broker.routing.exchange import Binding, Destination, Headers

HASHES_MAX: Final = 2
"""A third `#` matches little that two do not, and each multiplies the work for a key (RabbitMQ 4.3)."""


def words_of(key: str) -> list[str]:
    """Split a key: the empty one has no words, ``a..b`` has an empty word in the middle."""
    return key.split(".") if key else []


class _TrieNode:
    __slots__ = ("any_word", "any_words", "bound", "by_word", "loops")

    def __init__(self, *, loops: bool) -> None:
        self.by_word: dict[str, _TrieNode] | None = None
        self.any_word: _TrieNode | None = None
        self.any_words: _TrieNode | None = None
        self.bound: Destinations | None = None
        # Reached by `#`: it may match further words.
        self.loops = loops

    def is_leaf(self) -> bool:
        return self.by_word is None and self.any_word is None and self.any_words is None

    def child(self, word: str) -> _TrieNode | None:
        if word == "*":
            return self.any_word
        if word == "#":
            return self.any_words
        return None if self.by_word is None else self.by_word.get(word)

    def grow(self, word: str) -> _TrieNode:
        node = _TrieNode(loops=word == "#")
        if word == "*":
            self.any_word = node
        elif word == "#":
            self.any_words = node
        else:
            if self.by_word is None:
                self.by_word = {}
            self.by_word[word] = node
        return node

    def cut(self, word: str) -> None:
        if word == "*":
            self.any_word = None
        elif word == "#":
            self.any_words = None
        elif self.by_word is not None:
            del self.by_word[word]
            if not self.by_word:
                self.by_word = None


class TopicExchange:
    cacheable = True
    per_key = True

    def __init__(self) -> None:
        self._exact: dict[str, Destinations] = {}
        self._root = _TrieNode(loops=False)

    def check_binding(self, binding: Binding) -> None:
        hashes = words_of(binding.routing_key).count("#")
        if hashes > HASHES_MAX:
            raise InvalidArgument(
                f"exchange '{binding.source}'",
                f"Topic binding key '{binding.routing_key}' uses {hashes} '#' wildcards,"
                f" at most {HASHES_MAX} are allowed",
            )

    def add(self, binding: Binding) -> None:
        key = binding.routing_key
        words = words_of(key)
        if "*" not in words and "#" not in words:
            found = self._exact.get(key)
            if found is None:
                found = self._exact[key] = Destinations()
            found.add(binding.destination)
            return
        node = self._root
        for word in words:
            node = node.child(word) or node.grow(word)
        if node.bound is None:
            node.bound = Destinations()
        node.bound.add(binding.destination)

    def remove(self, binding: Binding) -> None:
        key = binding.routing_key
        words = words_of(key)
        if "*" not in words and "#" not in words:
            found = self._exact[key]
            found.remove(binding.destination)
            if not found:
                del self._exact[key]
            return
        path: list[tuple[_TrieNode, str]] = []
        node = self._root
        for word in words:
            path.append((node, word))
            child = node.child(word)
            assert child is not None, f"binding key {key!r} was never added"
            node = child
        assert node.bound is not None, f"binding key {key!r} was never added"
        node.bound.remove(binding.destination)
        if node.bound:
            return
        node.bound = None
        for parent, word in reversed(path):
            child = parent.child(word)
            if child is None or child.bound is not None or not child.is_leaf():
                return
            parent.cut(word)

    def route(self, routing_key: str, headers: Headers, properties: Headers) -> tuple[Destination, ...]:
        exact = self._exact.get(routing_key)
        if self._root.is_leaf():
            return exact.listed() if exact is not None else ()
        found = self._matching(words_of(routing_key))
        if exact is not None:
            found.append(exact)
        if not found:
            return ()
        if len(found) == 1:
            return found[0].listed()
        # A dictionary has each destination once and in the order of finding.
        return tuple(dict.fromkeys(one for matching in found for one in matching.listed()))

    def _matching(self, words: list[str]) -> list[Destinations]:
        found: list[Destinations] = []
        count = len(words)
        # Where each `#` was first entered: all its matches from a later word on were seen from there.
        entered: dict[_TrieNode, int] = {}
        open_ends: list[tuple[_TrieNode, int]] = [(self._root, 0)]
        while open_ends:
            node, at = open_ends.pop()
            loop = node.any_words
            if loop is not None:
                seen_from = entered.get(loop)
                if seen_from is None and loop.bound is not None:
                    found.append(loop.bound)
                if seen_from is None or at < seen_from:
                    entered[loop] = at
                    if not loop.is_leaf():
                        upto = count + 1 if seen_from is None else seen_from
                        open_ends += [(loop, later) for later in range(at, upto)]
            if at == count:
                # A `#` at the end was noted when it was entered.
                if node.bound is not None and not node.loops:
                    found.append(node.bound)
                continue
            if node.any_word is not None:
                open_ends.append((node.any_word, at + 1))
            if node.by_word is not None:
                following = node.by_word.get(words[at])
                if following is not None:
                    open_ends.append((following, at + 1))
        return found
