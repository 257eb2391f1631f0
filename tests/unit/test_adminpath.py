"""The administration socket is out of reach of other users, or it is refused."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from amqp10broker import portable
from amqp10broker.errors import AdminSocketError
from amqp10broker.runtime.admin import path as adminpath


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the default directory, in a temporary place; it is not created yet."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return tmp_path / f"amqp10broker-{os.getuid()}"


@contextmanager
def listening(path: str) -> Iterator[socket.socket]:
    with adminpath.listen(path) as listener:
        yield listener


class TestDefaultPlace:
    def test_is_named_by_user_in_the_temporary_directory(self) -> None:
        assert adminpath.default_path(1, {}) == f"/tmp/amqp10broker-{os.getuid()}/1.sock"
        assert adminpath.default_path(1, {"TMPDIR": "/t"}) == f"/t/amqp10broker-{os.getuid()}/1.sock"

    @pytest.mark.parametrize("runtime", ["", "relative", "/nonexistent-runtime"])
    def test_an_unusable_runtime_directory_is_passed_over(self, runtime: str) -> None:
        assert adminpath.directories({"XDG_RUNTIME_DIR": runtime, "TMPDIR": "/t"}) == (
            f"/t/amqp10broker-{os.getuid()}",
        )

    def test_the_socket_is_found_though_the_broker_had_no_runtime_directory(
        self, tmp_path: Path, place: Path
    ) -> None:
        path = adminpath.default_path(7)
        with listening(path):
            runtime = tmp_path / "run"
            runtime.mkdir()
            environ = {"TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": str(runtime)}
            assert adminpath.find(7, environ) == path
            assert adminpath.find(8, environ) is None
            assert adminpath.found_ports(environ) == (7,)


class TestDirectory:
    def test_is_made_for_us_alone(self, place: Path) -> None:
        with listening(adminpath.default_path(1)):
            assert stat.S_IMODE(place.stat().st_mode) == 0o700

    @pytest.mark.parametrize("mode", [0o755, 0o777, 0o710, 0o701])
    def test_one_open_to_others_is_refused(self, place: Path, mode: int) -> None:
        place.mkdir()
        place.chmod(mode)
        with pytest.raises(AdminSocketError, match=rf"may be used by others \(mode 0{mode:o}"):
            adminpath.listen(adminpath.default_path(1))

    def test_a_link_is_refused(self, place: Path, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir(0o700)
        place.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(AdminSocketError, match="is a symbolic link"):
            adminpath.listen(adminpath.default_path(1))

    def test_the_command_line_refuses_too(self, place: Path) -> None:
        path = adminpath.default_path(1)
        with listening(path):
            place.chmod(0o755)
            with pytest.raises(AdminSocketError, match="may be used by others"):
                adminpath.connect(path, timeout_s=1)


class TestSocket:
    def test_the_command_line_refuses_a_broker_of_another_user(
        self, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = adminpath.default_path(1)
        with listening(path):
            ours = os.getuid()
            monkeypatch.setattr(adminpath, "peer_uid", lambda stream: ours + 5)
            monkeypatch.setattr(portable, "user_id", lambda: ours or 1)
            monkeypatch.setattr(adminpath, "directories", lambda environ=None: ())
            with pytest.raises(AdminSocketError, match="belongs to user"):
                adminpath.connect(path, timeout_s=1)

    def test_one_left_by_a_dead_broker_is_replaced(self, tmp_path: Path) -> None:
        path = str(tmp_path / "s")
        adminpath.listen(path).close()
        with listening(path), adminpath.connect(path, timeout_s=1):
            pass

    def test_one_of_a_living_broker_is_not_taken(self, tmp_path: Path) -> None:
        path = str(tmp_path / "s")
        with listening(path), pytest.raises(AdminSocketError, match="another broker serves"):
            adminpath.listen(path)

    def test_a_file_in_its_place_is_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "s"
        path.write_text("precious")
        with pytest.raises(AdminSocketError, match="is not a socket; it is left alone"):
            adminpath.listen(str(path))
        with pytest.raises(AdminSocketError, match="is not a socket"):
            adminpath.connect(str(path), timeout_s=1)
        assert path.read_text() == "precious"

    def test_a_path_too_long_for_the_system_is_told_in_words(self, tmp_path: Path) -> None:
        path = str(tmp_path / ("x" * 120))
        for use in (adminpath.listen, lambda path: adminpath.connect(path, timeout_s=1)):
            with pytest.raises(AdminSocketError, match="the system allows 103"):
                use(path)
