"""The generated module is what its generator would write, and matches what is written by hand."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from amqp10broker.protocols.amqp091 import methods
from amqp10broker.protocols.amqp091.errors import ReplyCode

ROOT = Path(__file__).parents[3]
GENERATOR = ROOT / ".ci" / "generate_methods.py"
DEFINITIONS = ElementTree.parse(ROOT / "spec" / "amqp-0-9-1" / "amqp0-9-1.stripped.extended.xml").getroot()


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(GENERATOR), "--check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_methods_do_not_drift_from_their_definitions() -> None:
    """The module that is checked in is the one the generator writes."""
    result = check()
    assert result.returncode == 0, result.stderr


def test_every_method_of_the_definitions_has_its_class() -> None:
    """Names, numbers, content and fields are those of the XML file, without the reserved fields."""
    found = 0
    for class_ in DEFINITIONS.iterfind("class"):
        for element in class_.iterfind("method"):
            name = f"{class_.attrib['name']}.{element.attrib['name']}"
            words = f"{class_.attrib['name']}-{element.attrib['name']}".split("-")
            method = getattr(methods, "".join(word.capitalize() for word in words))
            assert name == method.NAME
            assert (int(class_.attrib["index"]), int(element.attrib["index"])) == (
                method.CLASS_ID,
                method.METHOD_ID,
            )
            assert (element.get("content") == "1") == method.HAS_CONTENT
            fields = [f.attrib["name"] for f in element.iterfind("field") if f.get("reserved") != "1"]
            attributes = [name.replace("-", "_") for name in fields]
            expected = [{"global": "global_", "nowait": "no_wait"}.get(name, name) for name in attributes]
            assert list(method.__slots__) == expected
            found += 1
    assert found == 64


def test_every_reply_code_of_the_definitions_has_its_name() -> None:
    """The codes written by hand are complete."""
    specified = {
        element.attrib["name"].replace("-", "_").upper(): int(element.attrib["value"])
        for element in DEFINITIONS.iterfind("constant")
        if not element.attrib["name"].startswith("frame-") or "class" in element.attrib
    }
    assert {code.name: int(code) for code in ReplyCode} == specified
