"""docs/operating.md says the truth: its checklist is doctor's, and what it tells to type is there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from amqp10broker.api.table import ROUTES
from amqp10broker.cli.main import homes
from amqp10broker.cli.serving import HTTP_PORT_ABOVE, PROMETHEUS_PORT_ABOVE
from amqp10broker.config.records import SETTINGS, Config
from amqp10broker.operations import checklist
from amqp10broker.operations.checklist import CHECKS
from amqp10broker.runtime.cluster.cluster_listener import PORT_ABOVE

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operating.md").read_text()
UNIT = ROOT / "docs" / "operating" / "amqp10broker.service"
CONTAINERFILE = (ROOT / "docs" / "operating" / "Containerfile").read_text()
SECTIONS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")}


def rows(section: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    lines = [line for line in SECTIONS[section].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_each_row_of_the_checklist_is_a_check_of_doctor() -> None:
    """In doctor's order; and none is missing."""
    assert [row[0].strip("`") for row in rows("The checklist")] == list(CHECKS)


def test_thresholds_are_those_of_the_code() -> None:
    """Days, seconds and shares that the page names."""
    said = {row[0].strip("`"): row for row in rows("The checklist")}
    assert f"{checklist.CERTIFICATE_BAD_MS // checklist.DAY_MS} days" in said["certificates"][1]
    assert f"{checklist.CERTIFICATE_WARN_MS // checklist.DAY_MS} days" in said["certificates"][2]
    assert f"{checklist.FILES_FULL_SHARE:.0%}".replace("%", " %") in said["open-files"][1]
    assert f"{checklist.MEMORY_WARN_SHARE:.0%}".replace("%", " %") in said["memory"][2]
    assert f"{checklist.DISK_LOW_BYTES // 1024**3} GiB" in said["disk"][2]
    for name in ("clock", "cluster-clocks"):
        assert f"{checklist.CLOCK_BAD_MS // 1000} s or more" in said[name][1]
        assert f"{checklist.CLOCK_WARN_MS // 1000} s or more" in said[name][2]


def test_commands_and_paths_that_the_page_names_exist() -> None:
    """What is told to type can be typed."""
    known = {command for home in homes().values() for command in home}
    typed = set(re.findall(r"(?:`|\$ |bin/|mq |&& )amqp10broker ([a-z-]+)", PAGE))
    assert len(typed) >= 11
    assert typed <= known
    paths = re.findall(r"`GET (/api/[a-z/-]+)[`/]", PAGE)
    assert len(paths) >= 4
    there = {route.pattern for route in ROUTES}
    assert [path for path in paths if not any(each.startswith(path) for each in there)] == []


def test_ports_are_those_of_the_settings() -> None:
    """Those above `port` by a fixed number, too."""
    config = Config()
    said = {row[1].strip("`"): int(row[0]) for row in rows("Ports")}
    assert said == {
        "port": config.port,
        "tls_port": config.tls_port,
        "http_port": config.port + HTTP_PORT_ABOVE,
        "prometheus_port": config.port + PROMETHEUS_PORT_ABOVE,
        "cluster_port": config.port + PORT_ABOVE,
    }
    exposed = re.findall(r"^EXPOSE (.+)$", CONTAINERFILE, re.MULTILINE)[0].split()
    assert sorted(map(int, exposed)) == sorted(said.values())


@pytest.mark.parametrize("text", [UNIT.read_text(), CONTAINERFILE, PAGE], ids=["unit", "image", "page"])
def test_variables_are_those_of_settings(text: str) -> None:
    """A slip in a name would be refused at the start, at a place far from here."""
    known = {setting.variable for setting in SETTINGS.values()} | {"AMQP10BROKER_CONFIG"}
    named = set(re.findall(r"\b(AMQP10BROKER_[A-Z_]+)", text))
    assert named
    assert named <= known


def test_the_unit_is_one_to_systemd(tmp_path: Path) -> None:
    """With a program that is there in place of the broker's."""
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("there is no systemd-analyze")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/amqp10broker/bin/amqp10broker", sys.executable))
    done = subprocess.run([verify, "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
