"""A gateway that stands still is restarted: what systemd hears of a real process, and how one ends itself."""

import http.client
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from lamina.errors import SettingsError
from lamina.gateway.watchdog import Supervisor
from tests.gateway import processes

SCRIPT = [[{"text": "Well."}]]
FROZEN = """
import re, sys
import lamina.gateway.system_routes as system_routes

def freeze():
    re.match("(a*)*b", "a" * 60)  # holds the interpreter's lock for ever: no thread runs any more

system_routes.page_files = freeze
from lamina.cli import main
sys.exit(main())
"""
"""The planted bug: whoever asks for the page stops the gateway."""


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(30)
        yield sock


def heard(sock: socket.socket, seconds: float) -> list[str]:
    """All that comes within the time."""
    found: list[str] = []
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        sock.settimeout(left)
        try:
            found.append(sock.recv(1_000).decode())
        except TimeoutError:
            break
    return found


def test_systemd_hears_when_it_is_ready_that_it_lives_and_when_it_ends(
    tmp_path: Path, supervisor: socket.socket
) -> None:
    env = processes.environ(tmp_path, str(tmp_path / "s.db"), SCRIPT)
    env |= {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "300000"}
    with processes.gateway(tmp_path, env) as gateway:
        assert "READY=1" in [supervisor.recv(1_000).decode() for _ in range(2)]
        assert heard(supervisor, 0.5).count("WATCHDOG=1") >= 2
        gateway.process.send_signal(signal.SIGSTOP)
        heard(supervisor, 0.2)
        assert heard(supervisor, 0.5) == []  # a frozen process is silent, and systemd ends it
        gateway.process.send_signal(signal.SIGCONT)
        assert "WATCHDOG=1" in heard(supervisor, 2.0)
    assert heard(supervisor, 0.1)[-1] == "STOPPING=1"
    assert gateway.process.returncode == 0


def test_a_frozen_gateway_ends_itself_and_says_where_it_stood(tmp_path: Path) -> None:
    env = processes.environ(tmp_path, str(tmp_path / "s.db"), SCRIPT) | {"LAMINA_WATCHDOG": "1"}
    with processes.gateway(tmp_path, env, ("-c", FROZEN)) as gateway:
        time.sleep(1.5)  # longer than the time: who gives signs is left alone
        with urllib.request.urlopen(f"{gateway.url}/api/live", timeout=20) as reply:
            assert reply.read() == b'{"status":"ok"}'
        with pytest.raises(http.client.RemoteDisconnected):
            urllib.request.urlopen(f"{gateway.url}/", timeout=60)
        assert gateway.process.wait(30) == 1
    said = gateway.log.read_text()
    assert "Timeout" in said
    assert "in freeze" in said
    assert "in end_lamina_when_its_event_loop_stands_still" in said  # its thread cannot run: its name says it


def wait_for_greeting(gateway: processes.Gateway) -> None:
    """It answers a moment before it is watched; what it prints first comes after that."""
    end = time.monotonic() + 30
    while f"{gateway.url}/v1" not in gateway.log.read_text():
        assert time.monotonic() < end, gateway.log.read_text()
        time.sleep(0.02)


def test_N17_a_gateway_that_ends_itself_says_so_and_why(tmp_path: Path) -> None:
    env = processes.environ(tmp_path, str(tmp_path / "s.db"), SCRIPT) | {"LAMINA_WATCHDOG": "1"}
    waits = "import signal, time; signal.signal(signal.SIGUSR1, lambda *_: time.sleep(20))"
    with processes.gateway(tmp_path, env, ("-c", f"{waits}\n{FROZEN}")) as gateway:
        wait_for_greeting(gateway)
        gateway.process.send_signal(signal.SIGUSR1)
        assert gateway.process.wait(15) == 1
    assert "the event loop has stood still for" in gateway.log.read_text()


def test_what_systemd_says_is_only_for_the_process_that_it_names() -> None:
    place = {"NOTIFY_SOCKET": "@lamina-test", "WATCHDOG_USEC": "5000000"}
    assert Supervisor(place, 7).seconds == 5.0
    assert Supervisor({**place, "WATCHDOG_PID": "7"}, 7).seconds == 5.0
    assert Supervisor({**place, "WATCHDOG_PID": "8"}, 7).seconds == 0.0
    assert Supervisor({"WATCHDOG_USEC": "5000000"}, 7).seconds == 0.0
    assert Supervisor({}, 7).seconds == 0.0
    Supervisor(place, 7).notify("READY=1")  # nobody is there, which is no error
    with pytest.raises(SettingsError, match="WATCHDOG_USEC is 'soon'"):
        Supervisor({**place, "WATCHDOG_USEC": "soon"}, 7)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("\0lamina-test")
        sock.settimeout(5)
        Supervisor(place, 7).notify("READY=1")
        assert sock.recv(100) == b"READY=1"
