"""Documents and the page say what is there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import amqp10broker
from amqp10broker.config.settings import SETTINGS, Config
from amqp10broker.emulation import ROWS

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted(
    [
        REPOSITORY / "CONTRIBUTING.md",
        *(REPOSITORY / folder / "README.md" for folder in (".", "examples", "tests", "amqp10broker/runtime")),
        *REPOSITORY.glob("docs/*.md"),
        *REPOSITORY.glob("docs/adr/*.md"),
    ]
)
_LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)]*)?\)")
FOLDERS = ("amqp10broker", "benchmarks", "tests", "examples", "docs", "spec", ".ci")
_NAMED = re.compile(r"`(?!\.\./)([\w./-]+\.(?:py|md|txt|toml|xml))(?:::\w+)?`")
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[str]:
    text = _CODE.sub("", page.read_text(encoding="utf-8"))
    return [link for link in _LINK.findall(text) if "://" not in link]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_what_a_page_links_to_is_there(page: Path) -> None:
    assert [link for link in links(page) if not (page.parent / link).exists()] == []


def paths() -> set[str]:
    files = [path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*") if path.is_file()]
    files += [path for path in REPOSITORY.iterdir() if path.is_file()]
    parts = [path.relative_to(REPOSITORY).parts for path in files]
    return {"/".join(each[first:]) for each in parts for first in range(len(each))}


def named(text: str) -> set[str]:
    return set(_NAMED.findall(_FENCED.sub("", text)))


def test_files_named_in_backticks_are_there() -> None:
    there = paths()
    sources = [path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*.py")]
    notes = REPOSITORY.glob("benchmarks/**/*.md")
    missing = {
        f"{page.relative_to(REPOSITORY)}: {name}"
        for page in (*PAGES, *notes, *sources)
        for name in named(page.read_text(encoding="utf-8"))
        if name not in there
    }
    assert sorted(missing) == []


def test_the_page_of_versions_has_the_rows_of_the_table() -> None:
    page = (REPOSITORY / "docs" / "differences-from-rabbitmq.md").read_text()
    words = {True: "yes", False: "no", None: "none", "": "this broker's"}
    for row in ROWS:
        shown = [
            str(each) if type(each) is int else words.get(each, each) for each in (*row.values, row.unset)
        ]
        assert "| " + " | ".join([f"`{row.name}`", *shown, row.change]) + " |\n" in page


ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "limits-and-hardening.md").read_text()
ROW = re.compile(r"^\| `([a-z0-9_.A-Z]+)` \| ([0-9 ]+) \|", re.MULTILINE)
ROWS_LIMITS = [(name, int(value.replace(" ", ""))) for name, value in ROW.findall(DOCUMENT)]

NOT_LIMITS = {
    *("port", "tls_port", "cluster_port", "record_every", "quorum_reconciliation_target_group_size"),
    *("quorum_initial_group_size", "cluster_target_size"),
    "otel_metrics_interval_ms",
    *("quorum_reconciliation_interval_ms", "quorum_reconciliation_trigger_interval_ms"),
}
"""Settings that are numbers, and bound nothing."""


def default_of(setting: str) -> object:
    config = Config()
    return getattr(config, setting) if hasattr(config, setting) else getattr(config.flow, setting)


@pytest.mark.parametrize(("name", "value"), ROWS_LIMITS)
def test_a_figure_is_that_of_the_code(name: str, value: int) -> None:
    """The figure is a setting's default, or a constant where the page names it."""
    if "." not in name:
        assert default_of(name) == value
        return
    module, _, constant = name.rpartition(".")
    assert getattr(import_module(f"amqp10broker.{module}"), constant) == value


def test_every_setting_that_bounds_something_is_on_the_page() -> None:
    """A new one needs a row that says what happens beyond it."""
    numbers = {name for name in SETTINGS if type(default_of(name)) is int} - NOT_LIMITS
    assert numbers == {name for name, _ in ROWS_LIMITS if "." not in name}


UNIT = ROOT / "docs" / "operating" / "amqp10broker.service"


def test_the_unit_is_one_to_systemd(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("there is no systemd-analyze")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/amqp10broker/bin/amqp10broker", sys.executable))
    done = subprocess.run([verify, "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


PAGE = Path(amqp10broker.__file__).parent / "api" / "page"
SCRIPTS = sorted(PAGE.rglob("*.js"))
SOURCES = sorted(path for path in PAGE.rglob("*.*") if path.is_file())

_IMPORT = re.compile(r"""(?:^(?:import|export) .*\bfrom |^import |\bimport\()"([^"\n]+)\"""", re.MULTILINE)
_NAMED_PAGE = re.compile(r"^import \{([^}]*)\} from \"([^\"]+)\";", re.MULTILINE)
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
    for names, where in _NAMED_PAGE.findall(text):
        exported = set(_EXPORTED.findall((path.parent / where).read_text(encoding="utf-8")))
        asked = {each.split(" as ")[0].strip() for each in names.split(",") if each.strip()}
        assert asked <= exported, where
        assert [each for each in asked if len(re.findall(rf"\b{each}\b", text)) < 2] == [], "not used"
