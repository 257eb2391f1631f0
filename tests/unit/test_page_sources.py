"""The page's sources keep what its policy of content promises, and hang together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import amqp10broker

PAGE = Path(amqp10broker.__file__).parent / "api" / "page"
SCRIPTS = sorted(PAGE.rglob("*.js"))
SOURCES = sorted(path for path in PAGE.rglob("*.*") if path.is_file())

_IMPORT = re.compile(r"""(?:^(?:import|export) .*\bfrom |^import |\bimport\()"([^"\n]+)\"""", re.MULTILINE)
_NAMED = re.compile(r"^import \{([^}]*)\} from \"([^\"]+)\";", re.MULTILINE)
_EXPORTED = re.compile(r"^export (?:async )?(?:function|class|const|let) (\w+)", re.MULTILINE)
_MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|srcdoc"
    r"|\beval\(|new Function|javascript:"
)
_ELSEWHERE = re.compile(r"""(?:https?:)?//(?!www\.w3\.org/2000/svg)[\w-]+\.[\w.-]+""")


def name_of(path: Path) -> str:
    return str(path.relative_to(PAGE))


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_nothing_makes_markup_of_text_or_names_another_host(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert _MARKUP.findall(text) == []
    assert _ELSEWHERE.findall(text) == []


@pytest.mark.parametrize("path", SCRIPTS, ids=name_of)
def test_what_a_module_imports_is_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    wanted = _IMPORT.findall(text)
    assert [each for each in wanted if not each.startswith("./") and not each.startswith("../")] == []
    assert [each for each in wanted if not (path.parent / each).is_file()] == []
    for names, where in _NAMED.findall(text):
        exported = set(_EXPORTED.findall((path.parent / where).read_text(encoding="utf-8")))
        asked = {each.split(" as ")[0].strip() for each in names.split(",") if each.strip()}
        assert asked <= exported, where
        assert [each for each in asked if len(re.findall(rf"\b{each}\b", text)) < 2] == [], "not used"
