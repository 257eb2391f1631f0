"""What is installed from a wheel runs: built from the source package, in an empty environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import REPOSITORY, BrokerProcess
from tests.support.installed_wheel import PROGRAM, Installed, build, run

pytestmark = pytest.mark.usefixtures("deadline")

WHEEL_BYTES_MAX = 1_500_000


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel of a release (`make release`), or build it."""
    released = os.environ.get("AMQP10BROKER_WHEEL")
    return Path(released) if released else build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    return Installed(tmp_path_factory.mktemp("venv") / "venv", wheel)


def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    """It has py.typed, the page and the report's template; it has no tests, notes or generated files."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "amqp10broker"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("this is no checkout")
    wanted = {name for name in listed.stdout.split("\0") if name and not name.endswith(".md")}
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {"amqp10broker/py.typed", "amqp10broker/tools/analysis/report.html"} < wanted
    assert {name for name in found if (REPOSITORY / name).exists()} == found
    assert wanted - found == set()
    assert wheel.stat().st_size < WHEEL_BYTES_MAX


def test_a_broker_runs_from_it_with_the_packages_that_it_requires(
    installed: Installed, tmp_path: Path
) -> None:
    """Its script has the package's name, as pipx expects; the sources are out of reach."""
    where = run(installed.python, "-I", "-c", "import amqp10broker; print(amqp10broker.__file__)")
    assert Path(where.strip()).is_relative_to(installed.packages)
    assert installed("--version").startswith("amqp10broker ")
    broker = BrokerProcess(tmp_path, python=installed.python, program=PROGRAM)
    try:
        there = ("--admin-socket", broker.admin_socket)
        installed("queue", "declare", "q", *there)
        installed("publish", "--queue", "q", "a message", "--port", broker.port)
        assert "a message" in installed("get", "q", "--ack-mode", "ack", "--port", broker.port)
    finally:
        broker.stop()


def test_the_api_the_page_and_metrics_answer_without_an_extra(installed: Installed, tmp_path: Path) -> None:
    ports = ("--http-port", "0", "--prometheus-port", "0")
    broker = BrokerProcess(tmp_path, *ports, python=installed.python, program=PROGRAM)
    try:
        api = broker.wait_for_log("HTTP API")["address"]
        metrics = broker.wait_for_log("metrics")["address"]
        login = urllib.request.HTTPPasswordMgrWithDefaultRealm()
        login.add_password(None, api, "guest", "guest")
        opener = urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(login))
        with opener.open(f"{api}api/whoami") as answer:
            assert json.load(answer)["name"] == "guest"
        with urllib.request.urlopen(api) as answer:
            assert b"<html" in answer.read()
        with urllib.request.urlopen(f"{metrics}metrics") as answer:
            assert b"rabbitmq_identity_info" in answer.read()
    finally:
        broker.stop()


PROGRAMS = (
    *("simple_send.py", "simple_recv.py", "blocking_send_receive.py", "fetch_with_timeout.py"),
    *("stop_and_resume.py", "request_response.py", "pika_publish_consume.py", "two_protocols.py"),
)


def test_the_examples_run_with_it_and_without_a_checkout(installed: Installed, tmp_path: Path) -> None:
    """Clients need only their library; the tests among them need pytest and the extra."""
    installed.have("testing", "pika", "python-qpid-proton")
    examples = shutil.copytree(REPOSITORY / "examples", tmp_path / "examples")
    broker = BrokerProcess(tmp_path, python=installed.python, program=PROGRAM)
    try:
        for name in PROGRAMS:
            run(installed.python, examples / name, f"amqp://guest:guest@127.0.0.1:{broker.port}", "q")
    finally:
        broker.stop()
    assert "the broker has stopped" in run(installed.python, examples / "embedded_broker.py")
    tests = (examples / "testing" / name for name in ("test_pika.py", "test_proton.py", "test_unittest.py"))
    assert "passed" in run(installed.python, "-m", "pytest", "-q", *tests)
