"""Frames as readable lines, both ways: ``FLOW h=1 dc=0 cr=10 echo=true``.

The abbreviations are those of the specification's readers: h handle, did delivery-id, dc
delivery-count, cr link-credit, nii next-incoming-id, iw incoming-window, noi next-outgoing-id, ow
outgoing-window, idc initial-delivery-count. Fields with their default value are left out, and so is
the broker's outgoing-window, which is 4294967295 in every frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from amqp10broker.protocols.amqp10 import performatives
from amqp10broker.protocols.amqp10.codec import decode, encode
from amqp10broker.protocols.amqp10.types import Described, Symbol, UInt, ULong

SHORT = {
    "handle": "h",
    "delivery_id": "did",
    "delivery_tag": "tag",
    "delivery_count": "dc",
    "link_credit": "cr",
    "next_incoming_id": "nii",
    "incoming_window": "iw",
    "next_outgoing_id": "noi",
    "outgoing_window": "ow",
    "initial_delivery_count": "idc",
}
LONG = {short: name for name, short in SHORT.items()}
SETTLE_MODES = {"snd_settle_mode": ("unsettled", "settled", "mixed"), "rcv_settle_mode": ("first", "second")}
UINT_MAX = 0xFFFF_FFFF
_DATA = ULong(0x75)
_FILL = bytes((number * 7 + 3) % 251 for number in range(251))


# --- bodies --------------------------------------------------------------------------------------


def body_bytes(name: str, size: int | None = None) -> bytes:
    """Return a unique body: its name, filled up to `size` bytes."""
    if size is None:
        return name.encode()
    head = name.encode() + b"|"
    assert size >= len(head), "the body is too small to hold its name"
    fill = size - len(head)
    return head + (_FILL * (fill // len(_FILL) + 1))[:fill]


def body_name(body: bytes) -> str:
    """Return the name from which `body_bytes` made a body, with its size if it was filled up."""
    name, filled, _ = body.partition(b"|")
    text = name.decode(errors="replace")
    if not filled:
        return text
    return f"{text}[{len(body)}]" if body_bytes(text, len(body)) == body else f"CORRUPT[{len(body)}]"


def message(body: bytes, *, before: bytes = b"") -> bytes:
    """Return an encoded message of one data section, with `before` in front of it."""
    return before + encode(Described(_DATA, body))


def show_message(payload: bytes) -> str:
    """Show a whole message: its body, and header fields that are not plain."""
    shown: list[str] = []
    body = b""
    pos = 0
    while pos < len(payload):
        code = payload[pos + 2]
        if code == performatives.Header.DESCRIPTOR:
            header, pos = performatives.decode_composite(payload, pos)
            assert isinstance(header, performatives.Header)
            if header.durable:
                shown.append("durable=true")
            if not header.first_acquirer:
                shown.append("first-acquirer=false")
            if header.delivery_count:
                shown.append(f"delivery-count={header.delivery_count}")
            continue
        section, pos = decode(payload, pos)
        if code == _DATA:
            body += section.value
    return " ".join([f"body={body_name(body)}", *shown])


# --- frames to lines -----------------------------------------------------------------------------


def show(performative: Any) -> str:
    words = [type(performative).__name__.upper()]
    for field in fields(performative):
        value = getattr(performative, field.name)
        if value is None or (value == field.default and field.name not in ("role", "settled")):
            continue
        if field.name == "settled" and not value:
            continue
        if field.name == "outgoing_window" and value == UINT_MAX:
            continue
        text = _show_field(performative, field.name, value)
        if text is not None:
            words.append(text)
    if isinstance(performative, performatives.Attach):
        # A refused attach has a null terminus at the end that its sender owns: it must be seen.
        own = performative.target if performative.role else performative.source
        if own is None:
            words.append("target=null" if performative.role else "source=null")
    return " ".join(words)


def _show_field(performative: Any, name: str, value: Any) -> str | None:
    shown = SHORT.get(name, name.replace("_", "-"))
    match name:
        case "role":
            return f"role={'receiver' if value else 'sender'}"
        case "snd_settle_mode" | "rcv_settle_mode":
            return f"{shown}={SETTLE_MODES[name][value]}"
        case "delivery_tag":
            number = int.from_bytes(value, "big")
            return f"tag={number}" if value == number.to_bytes(4, "big") else f"tag=0x{value.hex()}"
        case "source" | "target":
            address = getattr(value, "address", None)
            if isinstance(value, performatives.Coordinator):
                return f"{shown}=coordinator"
            return None if address is None else f"{shown}={address}"
        case "state":
            return f"state={show_state(value)}"
        case "error":
            return f"error={show_error(value)}"
        case "unsettled" | "properties":
            if not value:
                return None if performative.__class__ is not performatives.Attach else f"{shown}={{}}"
            return f"{shown}={_show_unsettled(value) if name == 'unsettled' else _show_map(value)}"
    if isinstance(value, bool):
        return f"{shown}={str(value).lower()}"
    return f"{shown}={value}"


def _show_map(value: dict[Any, Any]) -> str:
    pairs = []
    for key, content in value.items():
        text = str(content).lower() if isinstance(content, bool) else str(content)
        pairs.append(f"{key}:{text}")
    return "{" + ",".join(pairs) + "}"


def _show_unsettled(value: dict[bytes, Any]) -> str:
    pairs = []
    for tag, state in value.items():
        if isinstance(state, Described):
            state, _ = performatives.decode_composite(encode(state))
        name = f"#{int.from_bytes(tag, 'big')}" if len(tag) == 4 else f"0x{tag.hex()}"
        pairs.append(f"{name}:{'null' if state is None else show_state(state)}")
    return "{" + ",".join(pairs) + "}"


def show_error(error: performatives.Error) -> str:
    text = str(error.condition)
    return f'{text} "{error.description}"' if error.description else text


def show_state(state: Any) -> str:
    """Show a delivery state by its name, with its fields."""
    match state:
        case performatives.Rejected(error=performatives.Error() as error):
            return f"rejected({show_error(error)})"
        case performatives.Modified():
            flags = [
                name
                for name, flag in (
                    ("failed", state.delivery_failed),
                    ("undeliverable", state.undeliverable_here),
                )
                if flag
            ]
            return f"modified({','.join(flags)})" if flags else "modified"
        case performatives.Received():
            return f"received({state.section_number},{state.section_offset})"
    return type(state).__name__.lower()


# --- lines to frames -----------------------------------------------------------------------------


def build(name: str, values: dict[str, str]) -> Any:
    """Build a performative from its name and its fields' values as text."""
    cls = getattr(performatives, name.capitalize())
    kwargs: dict[str, Any] = {}
    terminus: dict[str, Any] = {}
    for key, text in values.items():
        field = LONG.get(key, key.replace("-", "_"))
        if cls is performatives.Attach and field in _TERMINUS_FIELDS:
            terminus[field] = _TERMINUS_FIELDS[field](text)
            continue
        kwargs[field] = _parse_field(cls, field, text)
    if cls is performatives.Attach:
        _complete_attach(kwargs, terminus)
    if cls is performatives.Begin:
        kwargs.setdefault("next_outgoing_id", 0)
        kwargs.setdefault("incoming_window", 2_147_483_647)
        kwargs.setdefault("outgoing_window", UINT_MAX)
    return cls(**kwargs)


def _complete_attach(kwargs: dict[str, Any], terminus: dict[str, Any]) -> None:
    role = kwargs.setdefault("role", kwargs.get("source") is not None)
    kwargs.setdefault("name", f"link-{kwargs['handle']}")
    if role:
        if kwargs.get("source") is not None:
            for field, value in terminus.items():
                setattr(kwargs["source"], field, value)
        kwargs.setdefault("target", performatives.Target())
    else:
        if isinstance(kwargs.get("target"), performatives.Target):
            for field, value in terminus.items():
                setattr(kwargs["target"], field, value)
        kwargs.setdefault("source", performatives.Source())
        kwargs.setdefault("initial_delivery_count", 0)


def _symbols(text: str) -> tuple[Symbol, ...]:
    return tuple(Symbol(name) for name in text.split(","))


_TERMINUS_FIELDS: dict[str, Callable[[str], Any]] = {
    "default_outcome": lambda text: parse_state(text),
    "outcomes": _symbols,
    "capabilities": _symbols,
    "dynamic": lambda text: text == "true",
    "durable": int,
    "expiry_policy": Symbol,
    "timeout": int,
    "distribution_mode": Symbol,
    "filter": lambda text: {
        Symbol("a-filter"): Described(_descriptor(text.partition("=")[0]), text.partition("=")[2] or "a = 1")
    },
}


def _descriptor(text: str) -> Symbol | ULong:
    return ULong(int(text, 16)) if text.startswith("0x") else Symbol(text)


def _parse_field(cls: type, field: str, text: str) -> Any:
    if text == "none":
        return None
    match field:
        case "role":
            return text == "receiver"
        case "snd_settle_mode" | "rcv_settle_mode":
            return SETTLE_MODES[field].index(text)
        case "source" | "target":
            return _parse_terminus(field, text)
        case "state":
            return parse_state(text)
        case "error":
            return performatives.Error(condition=Symbol(text))
        case "delivery_tag":
            return bytes.fromhex(text[2:]) if text.startswith("0x") else int(text).to_bytes(4, "big")
        case "properties":
            return {Symbol(key): _parse_value(value) for key, value in _pairs(text)}
        case "unsettled":
            return {_parse_tag(key): parse_state(value) for key, value in _pairs(text)}
        case "desired_capabilities":
            return _symbols(text)
        case "name" | "container_id" | "hostname":
            return text
    return _parse_plain(text)


def _parse_terminus(field: str, text: str) -> Any:
    if text == "null":
        return None
    if text == "coordinator":
        return performatives.Coordinator()
    address = None if text == "dynamic" else text
    terminus = (performatives.Source if field == "source" else performatives.Target)(
        address=None if text == "anonymous" else address
    )
    terminus.dynamic = text == "dynamic"
    return terminus


def _parse_tag(text: str) -> bytes:
    return int(text[1:]).to_bytes(4, "big") if text.startswith("#") else text.encode()


def _pairs(text: str) -> Sequence[tuple[str, str]]:
    pairs = []
    for pair in text.strip("{}").split(","):
        if pair:
            key, _, value = pair.rpartition(":")
            pairs.append((key, value))
    return pairs


def _parse_plain(text: str) -> Any:
    return {"true": True, "false": False}.get(text) if text in ("true", "false") else int(text)


def _parse_value(text: str) -> Any:
    if text in ("true", "false", "null"):
        return None if text == "null" else text == "true"
    if not text.isdigit():
        return text
    return UInt(int(text)) if int(text) <= UInt.MAX else ULong(int(text))


def parse_state(text: str) -> Any:
    name, _, flags = text.rstrip(")").partition("(")
    match name:
        case "null":
            return None
        case "accepted":
            return performatives.Accepted()
        case "released":
            return performatives.Released()
        case "rejected":
            return performatives.Rejected(
                error=performatives.Error(condition=Symbol(flags)) if flags else None
            )
        case "transactional":
            txn_id, _, outcome = flags.partition(",")
            return performatives.TransactionalState(
                txn_id=txn_id.encode(), outcome=parse_state(outcome) if outcome else None
            )
        case "received":
            number, offset = flags.split(",") if flags else ("0", "0")
            return performatives.Received(section_number=int(number), section_offset=int(offset))
        case "modified":
            return performatives.Modified(
                delivery_failed=True if "failed" in flags else None,
                undeliverable_here=True if "undeliverable" in flags else None,
            )
    raise AssertionError(f"no delivery state {text!r}")


# --- long traces ---------------------------------------------------------------------------------


def collapse(lines: list[str]) -> list[str]:
    """Join neighbouring lines whose numbers count up together: ``did=0..299 body=m0..m299``."""
    result: list[str] = []
    start = 0
    while start < len(lines):
        stop = start + 1
        steps: list[int] | None = None
        while stop < len(lines) and " TRANSFER " in lines[start]:
            step = _step(lines[stop - 1], lines[stop])
            if step is None or (steps is not None and step != steps):
                break
            steps = step
            stop += 1
        count = stop - start
        result.append(
            lines[start] if count == 1 else f"{_span(lines[start], lines[stop - 1])} ({count} frames)"
        )
        start = stop
    return result


def _step(before: str, after: str) -> list[int] | None:
    """Return which words grow by one, or None when the lines differ in another way."""
    left, right = before.split(" "), after.split(" ")
    if len(left) != len(right):
        return None
    growing: list[int] = []
    for number, (one, other) in enumerate(zip(left, right, strict=True)):
        if one == other:
            continue
        if not one.startswith(("did=", "tag=", "body=")):
            return None
        head, digits = _number(one)
        other_head, other_digits = _number(other)
        if head != other_head or digits is None or other_digits is None:
            return None
        if (other_digits - digits) & UINT_MAX != 1:
            return None
        growing.append(number)
    return growing


def _number(word: str) -> tuple[str, int | None]:
    suffix = ""
    if word.endswith("]"):
        word, _, size = word.rpartition("[")
        suffix = f"[{size}"
    head = word.rstrip("0123456789")
    return head + suffix, int(word[len(head) :]) if len(head) < len(word) else None


def _span(first: str, last: str) -> str:
    words = []
    for one, other in zip(first.split(" "), last.split(" "), strict=True):
        words.append(one if one == other else f"{one}..{other.partition('=')[2]}")
    return " ".join(words)


def show_bodies(bodies: list[str]) -> str:
    """Show bodies that count up as ``m0..m9 (10)``, and others one by one."""
    if not bodies:
        return "nothing"
    runs: list[list[str]] = []
    for body in bodies:
        if runs and _follows(runs[-1][-1], body):
            runs[-1].append(body)
        else:
            runs.append([body])
    return " ".join(run[0] if len(run) == 1 else f"{run[0]}..{run[-1]} ({len(run)})" for run in runs)


def _follows(before: str, after: str) -> bool:
    before, after = before.partition("[")[0], after.partition("[")[0]
    head = before.rstrip("0123456789")
    digits = before[len(head) :]
    return bool(digits) and after == f"{head}{int(digits) + 1}"
