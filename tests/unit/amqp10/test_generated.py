"""The generated module is what its generator would write, and matches what is written by hand."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from amqp10broker.protocols.amqp10 import performatives
from amqp10broker.protocols.amqp10.errors import Condition

ROOT = Path(__file__).parents[3]
GENERATOR = ROOT / ".ci" / "generate_performatives.py"
NAMESPACE = {"a": "https://www.amqp.org/schema/amqp.xsd"}


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(GENERATOR), "--check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_performatives_do_not_drift_from_their_definitions() -> None:
    """The module that is checked in is the one the generator writes."""
    result = check()
    assert result.returncode == 0, result.stderr


def test_every_composite_of_the_definitions_has_its_class() -> None:
    """Names, descriptors and fields are those of the XML files."""
    found = 0
    for path in (ROOT / "spec" / "amqp-1.0").glob("*.xml"):
        for element in (
            ElementTree.parse(path).getroot().iterfind("a:section/a:type[@class='composite']", NAMESPACE)
        ):
            descriptor = element.find("a:descriptor", NAMESPACE)
            assert descriptor is not None
            name = "".join(part.capitalize() for part in element.attrib["name"].split("-"))
            composite = getattr(performatives, name)
            assert descriptor.attrib["name"] == composite.NAME
            assert int(descriptor.attrib["code"].replace(":0x", ""), 16) == composite.DESCRIPTOR
            fields = [f.attrib["name"].replace("-", "_") for f in element.iterfind("a:field", NAMESPACE)]
            assert list(composite.__slots__) == fields
            found += 1
    assert found == 33


def test_every_error_condition_of_the_transport_has_its_constant() -> None:
    """The conditions written by hand are complete and spelled as in the XML."""
    root = ElementTree.parse(ROOT / "spec" / "amqp-1.0" / "transport.xml").getroot()
    specified = {
        choice.attrib["value"]
        for element in root.iterfind("a:section/a:type[@provides='error-condition']", NAMESPACE)
        for choice in element.iterfind("a:choice", NAMESPACE)
    }
    assert specified
    assert {value for name, value in vars(Condition).items() if name.isupper()} >= specified
