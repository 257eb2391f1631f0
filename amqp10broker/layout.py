"""Bytes of records, from tables of their fields.

A `Layout` lists the fields of a record in the order of their bytes, and `OneOf` puts a tag before records of
several layouts. All integers are little-endian. Neighbouring fields of constant size are one `struct.Struct`.
The two functions of a layout are generated from its table and compiled when they are first used, so that a
record takes as long as with code written for it alone.

Bytes that do not fit a layout raise `BadBytes`, and no other exception.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cached_property
from itertools import accumulate, takewhile
from operator import attrgetter
from sys import byteorder
from typing import Any, Final, Generic, NamedTuple, TypeVar

from amqp10broker.errors import BrokerError

T = TypeVar("T")
Write = Callable[[Any, list[bytes]], None]
"""Appends the bytes of a value to pieces, in order."""
Read = Callable[[bytes, int], tuple[Any, int]]
"""Reads a value at an offset; returns it and the offset after it. May raise any of `_MALFORMED`."""

_MALFORMED: Final = (struct.error, LookupError, ValueError, TypeError, OverflowError, RecursionError)
_U32: Final = struct.Struct("<I")
_RANGE: Final = struct.Struct("<BQI")
_COUNT: Final = struct.Struct("<BI")


class BadBytes(BrokerError, ValueError):
    """The bytes are malformed; the message names what was expected."""


class Fixed(NamedTuple):
    """A field of constant size.

    Attributes:
        code: its items, for `struct`.
        pack: source of the items, made of the source of the value, ``{0}``.
        unpack: source of the value, made of the names of the items, ``{0}`` and the following ones.
    """

    code: str
    pack: str = "{0}"
    unpack: str = "{0}"

    @property
    def items(self) -> int:
        return len(self.code) - sum(map(str.isdigit, self.code))


class Varying(NamedTuple):
    """A field with an end that its bytes determine."""

    write: Write
    read: Read


_FIELDS: Final = attrgetter("_fields")
_GLOBALS: Final[dict[str, Any]] = {}
"""The objects to which generated functions refer."""


def source_name(thing: object) -> str:
    """Return a name by which generated source refers to an object."""
    name = f"_{len(_GLOBALS)}"
    _GLOBALS[name] = thing
    return name


def _functions(writing: Iterable[str], reading: Iterable[str]) -> tuple[Write, Read]:
    lines = ("def write(value, pieces):", *writing, "return", "def read(data, at):", *reading)
    made: dict[str, Any] = {}
    exec("\n".join(line if line.startswith("def ") else f" {line}" for line in lines), _GLOBALS, made)
    return made["write"], made["read"]


class Codec(Generic[T]):
    """Writes and reads values of one kind."""

    name: str

    def _compile(self) -> tuple[Write, Read]:
        lines, made = _reading(self, "v")
        return _functions(_writing(self, "value"), [*lines, f"return {made}, at"])

    @cached_property
    def _functions(self) -> tuple[Write, Read]:
        return self._compile()

    @property
    def write(self) -> Write:
        return self._functions[0]

    @property
    def read(self) -> Read:
        return self._functions[1]

    def pieces(self, value: T) -> list[bytes]:
        """Encode a value as pieces, so that large ones are not copied. Raises `struct.error` if a number does
        not fit, which is an error of the caller.
        """
        pieces: list[bytes] = []
        self._functions[0](value, pieces)
        return pieces

    def encode(self, value: T) -> bytes:
        """Encode a value as one byte string."""
        return b"".join(self.pieces(value))

    def decode(self, data: bytes) -> T:
        """Decode the result of `encode`. Raises `BadBytes` if the data is anything else."""
        value, end = self.decode_part(data, 0)
        if end != len(data):
            raise BadBytes(f"malformed {self.name}: {len(data) - end} bytes stand behind the end")
        return value

    def decode_part(self, data: bytes, at: int = 0) -> tuple[T, int]:
        """Decode a value at an offset; return it with the offset after it. Raises `BadBytes`."""
        try:
            return self._functions[1](data, at)
        except _MALFORMED as error:
            raise BadBytes(f"malformed {self.name}: {error}") from error


Field = Fixed | Varying | Codec[Any]


def _writing(field: Field, value: str) -> Iterable[str]:
    if isinstance(field, Fixed):
        pack = source_name(struct.Struct(f"<{field.code}").pack)
        yield f"pieces.append({pack}({field.pack.format(value)}))"
    elif isinstance(field, Layout):
        yield from field.writing(value)
    elif isinstance(field, Many):
        yield from _writing(Fixed("I", "len({0})"), value)
        yield from field.writing(value)
    elif isinstance(field, OneOf):
        yield f"{source_name(field.writers)}[type({value})]({value}, pieces)"
    else:
        yield f"{source_name(field.write)}({value}, pieces)"


def _reading(field: Field, name: str) -> tuple[list[str], str]:
    # Return lines that read a value, and its source; the names in them begin with `name`.
    if isinstance(field, Fixed):
        layout = struct.Struct(f"<{field.code}")
        names = [f"{name}_{at}" for at in range(field.items)]
        lines = [f"{', '.join(names)}, = {source_name(layout.unpack_from)}(data, at)", f"at += {layout.size}"]
        return lines, field.unpack.format(*names)
    if isinstance(field, Layout):
        return field.reading(name)
    if isinstance(field, OneOf):
        return [f"{name}, at = {source_name(field.readers)}[data[at]](data, at + 1)"], name
    return [f"{name}, at = {source_name(field.read)}(data, at)"], name


class Layout(Codec[T]):
    """The bytes of a record.

    Args:
        record: class of the record; a dataclass, a `NamedTuple`, or another class with `make`.
        make: makes the record from its fields, in the order of this table, and raises `ValueError` if they
            contradict each other; None: the class itself, which gets them by name.
        fields: by the attribute that a field is read from.
    """

    def __init__(self, record: type[T], make: Callable[..., T] | None = None, /, **fields: Field) -> None:
        self.name = record.__name__
        self.record = record
        self._make = make
        # Each field of varying size with those of constant size before it.
        self._parts: list[tuple[list[tuple[str, Fixed]], str, Field | None]] = []
        run: list[tuple[str, Fixed]] = []
        for name, field in fields.items():
            field = _inlined(field)
            if isinstance(field, Fixed):
                run.append((name, field))
            else:
                self._parts.append((run, name, field))
                run = []
        if run or not self._parts:
            self._parts.append((run, "", None))

    @cached_property
    def fixed(self) -> Fixed | None:
        """The record as a field of constant size; None: its size varies."""
        ((run, _, field), *others) = self._parts
        if field is not None or others:
            return None
        code, pack, values = self._joined(run, "{0}")
        return Fixed(code, pack, self._made(values))

    def _joined(self, run: Sequence[tuple[str, Fixed]], value: str) -> tuple[str, str, dict[str, str]]:
        # Code and items of neighbours of constant size; and the source of each of them by the items' numbers.
        code, packs, values = "", [], {}
        count = 0
        for name, field in run:
            values[name] = field.unpack.format(*(f"{{{count + at}}}" for at in range(field.items)))
            packs.append(field.pack.format(self._of(value, name)))
            if not count and value == "{0}" and issubclass(self.record, tuple):
                # A tuple is faster by index than by name or star, and from a local variable.
                value = f"t{source_name(None)}"
                packs[0] = field.pack.format(self._of(f"({value} := {{0}})", name))
            code += field.code
            count += field.items
        return code, ", ".join(packs), values

    def _of(self, value: str, name: str) -> str:
        if issubclass(self.record, tuple):
            return f"{value}[{_FIELDS(self.record).index(name)}]"
        return f"{value}.{name}"

    def _made(self, values: Mapping[str, str]) -> str:
        named = source_name(self._make or self.record)
        if self._make is not None:
            return f"{named}({', '.join(values.values())})"
        if issubclass(self.record, tuple):
            items = ", ".join(values[name] for name in getattr(self.record, "_fields", values))
            return f"{source_name(tuple.__new__)}({named}, ({items},))"
        names = [field.name for field in fields(self.record)] if is_dataclass(self.record) else []
        ordered = [values[name] for name in takewhile(values.__contains__, names)]
        ordered += [f"{name}={value}" for name, value in values.items() if name not in names[: len(ordered)]]
        return f"{named}({', '.join(ordered)})"

    def tagged(self, tag: int) -> Write:
        """Return the function that writes the record after a tag."""
        return _functions(self.writing("value", tag), ["return"])[0]

    def writing(self, value: str, tag: int | None = None) -> Iterable[str]:
        """Return source that writes the record to `pieces`, after a tag unless that is None."""
        code, packs = ("", []) if tag is None else ("B", [str(tag)])
        for run, name, field in self._parts:
            more, pack, _ = self._joined(run, value)
            code, packs = code + more, [*packs, *filter(None, (pack,))]
            source = self._of(value, name) if field else ""
            if isinstance(field, Many):
                code, packs = f"{code}I", [*packs, f"len({source})"]
            if code:
                yield from _writing(Fixed(code, ", ".join(packs)), "")
                code, packs = "", []
            if isinstance(field, Many):
                yield from field.writing(source)
            elif field is not None:
                yield from _writing(field, source)

    def reading(self, name: str) -> tuple[list[str], str]:
        """Return source that reads the record of `data` from `at` on, and the source of the record."""
        lines: list[str] = []
        values: dict[str, str] = {}
        for number, (run, each, field) in enumerate(self._parts):
            at = f"{name}_{number}"
            code, _, made = self._joined(run, "")
            if code:
                lines += _reading(Fixed(code), at)[0]
                names = [f"{at}_{item}" for item in range(Fixed(code).items)]
                values |= {each: source.format(*names) for each, source in made.items()}
            if field is not None:
                more, values[each] = _reading(field, f"{at}_v")
                lines += more
        return lines, self._made(values)


def _inlined(field: Field) -> Field:
    return field.fixed or field if isinstance(field, Layout) else field


class OneOf(Codec[T]):
    """A record of one of several layouts, after a tag of one byte.

    Args:
        layouts: by tag, 0 to 255; each of another class.
    """

    def __init__(self, name: str, layouts: Mapping[int, Layout[Any]]) -> None:
        self.name = name
        self.layouts = layouts

    @cached_property
    def writers(self) -> Mapping[type, Write]:
        """Return by class of the record the function that writes it with its tag."""
        return {layout.record: layout.tagged(tag) for tag, layout in self.layouts.items()}

    @cached_property
    def readers(self) -> Mapping[int, Read]:
        """Return by tag the function that reads the following bytes."""
        readers = _Readers({tag: layout.read for tag, layout in self.layouts.items()})
        readers.name = self.name
        return readers


class _Readers(dict[int, Read]):
    name: str

    def __missing__(self, tag: int) -> Read:
        raise ValueError(f"{tag} is not the tag of any {self.name}")


class Many(Codec[Any]):
    """Values of one kind, after their number as u32.

    Args:
        into: makes the collection of a list.
        of: makes an iterable of the values, as long as the collection; None: the collection is one.
    """

    name = "sequence"

    def __init__(
        self,
        item: Field,
        into: Callable[[list[Any]], Any] = list,
        of: Callable[[Any], Iterable[Any]] | None = None,
    ) -> None:
        self._item = _inlined(item)
        self._into = into
        self._of = of

    def writing(self, values: str) -> Iterable[str]:
        """Return source that writes the values without their number."""
        values = values if self._of is None else f"{source_name(self._of)}({values})"
        item = self._item
        if isinstance(item, Fixed):
            pack = source_name(struct.Struct(f"<{item.code}").pack)
            yield f"pieces += [{pack}({item.pack.format('each')}) for each in {values}]"
        else:
            each = f"each{source_name(None)}"
            yield f"for {each} in {values}:"
            yield from (f" {line}" for line in _writing(item, each))

    def reading(self) -> Iterable[str]:
        """Return source that reads the values with their number, and returns them."""
        item = self._item
        into = "" if self._into is list else source_name(self._into)
        if isinstance(item, Fixed):
            size, names = struct.calcsize(f"<{item.code}"), [f"v{at}" for at in range(item.items)]
            unpack = source_name(struct.Struct(f"<{item.code}").iter_unpack)
            yield f"rows, at = {source_name(_rows)}(data, at, {size})"
            made = item.unpack.format(*names)
            yield f"return {into}([{made} for {', '.join(names)}, in {unpack}(rows)]), at"
        else:
            lines, made = _reading(item, "v")
            yield f"count, = {source_name(_U32.unpack_from)}(data, at)"
            yield "at += 4"
            yield "found = []"
            yield "for _ in range(count):"
            yield from (f" {line}" for line in lines)
            yield f" found.append({made})"
            yield f"return {into}(found), at"

    def _compile(self) -> tuple[Write, Read]:
        return _functions(_writing(self, "value"), self.reading())


def _rows(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    (count,) = _U32.unpack_from(data, at)
    return piece(data, at + 4, at + 4 + count * size)


def piece(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    """Return the bytes up to an offset, and that offset. Raises `ValueError` if some of them are missing."""
    if end > len(data):
        raise ValueError(f"{end - len(data)} bytes are missing")
    return data[at:end], end


class _Row(Layout[tuple[Any, ...]]):
    def _of(self, value: str, name: str) -> str:
        return f"{value}[{name}]"

    def _made(self, values: Mapping[str, str]) -> str:
        return f"({', '.join(values.values())},)"


def row(*items: Field) -> Layout[tuple[Any, ...]]:
    """A tuple of these fields."""
    return _Row(tuple, **{str(at): item for at, item in enumerate(items)})


U8: Final = Fixed("B")
U16: Final = Fixed("H")
U32: Final = Fixed("I")
U64: Final = Fixed("Q")
I64: Final = Fixed("q")
FLAG: Final = Fixed("?")


def choice(values: Iterable[Any]) -> Fixed:
    """One of several values, at most 256, as its number among them. One of them may be None."""
    values = tuple(values)
    numbers = {value: number for number, value in enumerate(values)}
    return Fixed("B", f"{source_name(numbers)}[{{0}}]", f"{source_name(values)}[{{0}}]")


def optional(field: Field) -> Fixed:
    """A value of constant size, or None."""
    field = _inlined(field)
    assert isinstance(field, Fixed)
    count = field.items
    unpack = field.unpack.format(*(f"{{{at}}}" for at in range(1, count + 1)))
    if field.pack == "{0}":
        pack = "{0} is not None, {0} or 0"
    else:
        pack = f"*({(False, *[0] * count)} if {{0}} is None else (True, {field.pack}))"
    return Fixed(f"?{field.code}", pack, f"{unpack} if {{0}} else None")


def mapping(key: Field, value: Field) -> Many:
    """A mapping, in its order."""
    return Many(row(key, value), dict, lambda entries: entries.items())


def _write_bytes(data: bytes, pieces: list[bytes]) -> None:
    pieces.append(_U32.pack(len(data)))
    pieces.append(data)


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    (length,) = _U32.unpack_from(data, at)
    return piece(data, at + 4, at + 4 + length)


def as_bytes(pack: Callable[[Any], bytes], unpack: Callable[[bytes], Any]) -> Varying:
    """A value that two functions encode and decode, the latter raising `ValueError`; up to 4 GiB."""

    def read(data: bytes, at: int) -> tuple[Any, int]:
        content, at = _read_bytes(data, at)
        return unpack(content), at

    return Varying(lambda value, pieces: _write_bytes(pack(value), pieces), read)


def maybe(field: Varying | Codec[Any]) -> Varying:
    """A value whose size varies, or None."""

    def write(value: Any, pieces: list[bytes]) -> None:
        pieces.append(b"\0" if value is None else b"\1")
        if value is not None:
            field.write(value, pieces)

    return Varying(write, lambda data, at: field.read(data, at + 1) if data[at] else (None, at + 1))


BYTES: Final = Varying(_write_bytes, _read_bytes)
TEXT: Final = as_bytes(
    lambda text: text.encode(errors="surrogatepass"), lambda data: data.decode(errors="surrogatepass")
)
REST: Final = Varying(lambda data, pieces: pieces.append(data), lambda data, at: (data[at:], len(data)))
"""All remaining bytes; their length is known from elsewhere."""


def _write_numbers(numbers: Sequence[int], pieces: list[bytes]) -> None:
    count = len(numbers)
    if not count:
        pieces.append(b"\0\0\0\0\0")
        return
    first = numbers[0]
    if numbers[-1] - first == count - 1 and (
        isinstance(numbers, range) or list(numbers) == list(range(first, first + count))
    ):
        pieces.append(_RANGE.pack(1, first, count))
    else:
        pieces.append(_COUNT.pack(0, count) + little_endian(array("Q", numbers)))


def _read_numbers(data: bytes, at: int) -> tuple[Sequence[int], int]:
    if data[at]:
        _, first, count = _RANGE.unpack_from(data, at)
        return range(first, first + count), at + _RANGE.size
    at += _COUNT.size
    (count,) = _U32.unpack_from(data, at - 4)
    numbers, end = piece(data, at, at + 8 * count)
    return from_little_endian("Q", numbers).tolist(), end


NUMBERS: Final = Varying(_write_numbers, _read_numbers)
"""Numbers of 64 bits in their order; consecutive ones as a range."""


def _write_blobs(blobs: Sequence[bytes], pieces: list[bytes]) -> None:
    pieces.append(struct.pack(f"<I{len(blobs)}I", len(blobs), *map(len, blobs)))
    pieces += blobs


def _read_blobs(data: bytes, at: int) -> tuple[tuple[bytes, ...], int]:
    lengths, at = _rows(data, at, 4)
    sizes = from_little_endian("I", lengths)
    content, at = piece(data, at, at + sum(sizes))
    ends = accumulate(sizes)
    return tuple([content[end - size : end] for size, end in zip(sizes, ends, strict=True)]), at


BLOBS: Final = Varying(_write_blobs, _read_blobs)
"""Byte strings: their sizes before all of them."""


def little_endian(numbers: array[int]) -> bytes:
    """Return an array's bytes in little-endian order."""
    if byteorder == "big":
        numbers = array(numbers.typecode, numbers)
        numbers.byteswap()
    return numbers.tobytes()


def from_little_endian(typecode: str, data: bytes) -> array[int]:
    """Decode an array of little-endian items. Raises `ValueError` if the length is not a multiple of the item
    size.
    """
    numbers: array[int] = array(typecode)
    numbers.frombytes(data)
    if byteorder == "big":
        numbers.byteswap()
    return numbers
