"""The image of docs/operating/Containerfile, built and run by its own steps in a chroot."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.image_root import Stage, make_image

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root may change its root"),
]

START_S = 60.0


def healthy(image: Stage) -> bool:
    return image.start(image.health, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).wait(START_S) == 0


def test_the_image_serves_and_answers_its_health_check(tmp_path: Path) -> None:
    """Its user owns only its data; it is configured as RabbitMQ's image, and SIGTERM stops it."""
    image = make_image(tmp_path)
    assert image.user == 10001
    image.environment |= {"RABBITMQ_DEFAULT_USER": "ann", "RABBITMQ_DEFAULT_PASS": "a-password"}
    image.environment["RABBITMQ_NODE_PORT"] = "35672"
    image.path("/etc/rabbitmq/rabbitmq.conf").write_text("management.tcp.port = 35673\n")
    assert not healthy(image)
    with (tmp_path / "log").open("wb") as log:
        server = image.start(image.command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_S
        while not healthy(image):
            assert server.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
        assert image.run(["rabbitmqctl", "authenticate_user", "ann", "a-password", "-q"]) == ""
        declared = ["rabbitmqadmin", "-u", "ann", "-p", "a-password", "queues", "declare", "--name", "q"]
        assert "queue declared" in image.run([*declared, "--type", "quorum"])
        assert image.run(["rabbitmqctl", "list_queues", "-q", "--silent", "name"]) == "q\n"
        assert image.path("/var/lib/rabbitmq/data/format").stat().st_uid == image.user
        assert "Server startup complete" in (tmp_path / "log").read_text()
    finally:
        server.terminate()
        code = server.wait(START_S)
    assert code == 0, (tmp_path / "log").read_text()
