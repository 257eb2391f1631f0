"""The few pieces of HTML that the report is put together from. Every text given to them is escaped here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape as escape_html
from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #24292f; --soft: #57606a; --grid: #d7dde3;
  --card: #f6f8fa; --good: #1a7f37; --warn: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181d; --ink: #dde3ea; --soft: #9aa5b1; --grid:
  #353d46; --card: #1c2229; --good: #56d364; --warn: #e3b341; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1020px; padding: 24px 28px 80px; background: var(--paper); color:
  var(--ink); font: 15px/1.5 system-ui, "DejaVu Sans", Verdana, sans-serif; }
h1 { font-size: 26px; margin: 0 0 4px; }
h2 { font-size: 20px; margin: 44px 0 8px; border-top: 1px solid var(--grid); padding-top: 20px; }
h3 { font-size: 16px; margin: 28px 0 6px; }
p.soft, figcaption, dt { color: var(--soft); }
figcaption { font-size: 13.5px; margin: 2px 0 0; }
figure { margin: 18px 0 26px; }
figure svg { width: 100%; height: auto; display: block; }
.card { background: var(--card); border: 1px solid var(--grid); border-left: 5px solid var(--good);
  border-radius: 6px; padding: 12px 18px 14px; margin: 14px 0; }
.card.none { border-left-color: var(--warn); }
.card h3 { margin: 0 0 2px; }
.card .figure { font-size: 17px; margin: 4px 0 8px; }
.warn { color: var(--warn); }
ul { margin: 4px 0 8px; padding-left: 22px; }
pre { background: var(--paper); border: 1px solid var(--grid); border-radius: 4px; padding: 8px 12px;
  margin: 6px 0; white-space: pre-wrap; font: 13px/1.45 ui-monospace, "DejaVu Sans Mono", monospace; }
.side { display: grid; grid-template-columns: 3fr 2fr; gap: 12px; }
@media (max-width: 760px) { .side { grid-template-columns: 1fr; }
}
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; margin: 8px 0; }
th, td { padding: 3px 10px; border-bottom: 1px solid var(--grid); text-align: right; white-space:
  nowrap; }
th { color: var(--soft); font-weight: 600; }
th.text, td.text { text-align: left; }
tr.chosen td { font-weight: 700; }
summary { cursor: pointer; margin: 10px 0 4px; }
dl { margin: 6px 0; }
dd { margin: 0 0 8px 0; }
"""


def page(title: str, body: Iterable[str]) -> str:
    """A whole document, well-formed as XML too; it fetches nothing and runs nothing."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


_CONTROL: Final = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")
"""Characters that XML does not have, not even escaped; names of queues and cases may."""


def plain(text: str) -> str:
    """A text without characters that no XML may have: a mark stands for each."""
    return _CONTROL.sub("\ufffd", text)


def escape(text: str) -> str:
    """A text as it may stand in an element or an attribute."""
    return escape_html(plain(text), quote=True)


def element(name: str, text: str, css: str = "") -> str:
    """An element with a text in it."""
    return f"<{name}{_class(css)}>{escape(text)}</{name}>"


def bullets(texts: Sequence[str], css: str = "") -> str:
    """A list; nothing if it is empty."""
    if not texts:
        return ""
    return f"<ul{_class(css)}>" + "".join(element("li", text) for text in texts) + "</ul>"


def figure(svg: str, caption: str) -> str:
    """A picture and how to read it.

    Args:
        svg: an element from `drawing.as_svg`, put in as it is.
        caption: below it.
    """
    return f"<figure>{svg}{element('figcaption', caption)}</figure>"


def table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 1, chosen: Iterable[int] = ()
) -> str:
    """A table.

    Args:
        headings: of its columns.
        rows: cells, line by line.
        texts: so many columns are aligned left, the others right.
        chosen: numbers of the rows that are emphasised.
    """
    marked = set(chosen)

    def line(cells: Sequence[str], tag: str, css: str = "") -> str:
        made = (element(tag, cell, "text" if place < texts else "") for place, cell in enumerate(cells))
        return f"<tr{_class(css)}>" + "".join(made) + "</tr>"

    body = "\n".join(
        line(cells, "td", "chosen" if number in marked else "") for number, cells in enumerate(rows)
    )
    return f'<div class="wide"><table>\n{line(headings, "th")}\n{body}\n</table></div>'


def details(summary: str, inside: str) -> str:
    """Something that opens when asked for."""
    return f"<details>{element('summary', summary)}{inside}</details>"


def _class(css: str) -> str:
    return f' class="{css}"' if css else ""
