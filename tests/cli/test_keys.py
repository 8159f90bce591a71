"""`lamina keys` and `lamina serve` as real processes."""

import json
import re
import signal
import stat
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from lamina.app.config import loopback_token
from lamina.settings import load_settings
from tests.cli.process import Lamina


def test_a_key_is_shown_once_and_listed_without_it(lamina: Lamina) -> None:
    made = lamina("keys", "new", "--name", "laptop", "--scope", "read", "--rate", "60", "--expires", "30d").split("\n")
    key = made[1]
    assert re.fullmatch(r"lam_[0-9a-f]{16}_[\w-]{43}", key)
    listed = lamina("keys")
    assert key.split("_")[1][:8] in listed
    assert key.split("_", 2)[2] not in listed
    assert "60/min" in listed
    (row,) = lamina.json("keys")
    assert (row["name"], row["scopes"], row["rate"], row["state"], row["used"]) == (
        "laptop",
        ["read"],
        60,
        "usable",
        None,
    )
    assert row["expires"] - row["created"] == pytest.approx(30 * 86_400, abs=60)
    assert not {"hash", "key"} & set(row)
    assert "可用" in lamina("--lang", "zh", "keys")


def test_a_key_is_revoked_by_the_beginning_of_its_id(lamina: Lamina) -> None:
    row = lamina.json("keys", "new", "--name", "x", "--user", "bo")
    assert (row["owner"], row["scopes"]) == ("bo", ["chat", "read", "write"])
    assert "ann has no keys" in lamina("keys")
    assert "no key" in lamina.error("keys", "revoke", row["key_id"])  # ann's it is not
    assert "add --yes" in lamina.error("keys", "revoke", row["key_id"], "--user", "bo")
    assert lamina.json("keys", "--user", "bo")[0]["state"] == "usable"
    assert row["key_id"] in lamina("keys", "revoke", row["key_id"][:6], "--user", "bo", "--yes")
    assert lamina.json("keys", "--user", "bo")[0]["state"] == "revoked"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--name", "x", "--scope", "all"), "'all' is not a valid value for --scope"),
        (("--name", "x", "--expires", "soon"), "--expires must be a duration, not 'soon'"),
        (("--name", "x", "--expires", "0d"), "--expires must be a duration, not '0d'"),
        (("--name", " "), "--name is empty"),
        (("--name", "x", "--user", "@shared"), "'@shared' cannot have a key"),
    ],
)
def test_a_key_that_cannot_be_made_says_why(lamina: Lamina, arguments: tuple[str, ...], says: str) -> None:
    assert says in lamina.error("keys", "new", *arguments)


@contextmanager
def serving(lamina: Lamina, *arguments: str, **more: str) -> Generator[tuple["subprocess.Popen[str]", str]]:
    """A gateway, and its first lines."""
    process = subprocess.Popen(
        [sys.executable, "-m", "lamina", "serve", "--listen", "127.0.0.1:0", *arguments], cwd=lamina.folder, text=True,
        env=lamina.environ(**more), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        lines = list[str]()
        while not lines or (lines[-1] and "Ctrl-C" not in lines[-1]):
            lines.append(process.stdout.readline())
        yield process, "".join(lines)
    finally:
        process.kill()
        process.communicate()


def ask(url: str, key: str = "", **headers: str) -> tuple[int, Any]:
    given = {"Authorization": f"Bearer {key}", **headers} if key else headers
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=given), timeout=30) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_serve_says_where_it_is_keeps_its_token_and_ends_at_a_signal(lamina: Lamina) -> None:
    lamina.script([{"text": "Hello."}, {"done": "stop"}])
    with serving(lamina, "--log", "debug", LAMINA_GATEWAY_TOOLS="on") as (process, said):
        assert "tools: only web_fetch, because there is no workspace; --workspace FOLDER adds files and bash" in said
        assert "scripted" in said
        assert lamina.store in said
        found = re.search(r"(http://127\.0\.0\.1:\d+)/\?token=(lam_loopback_\S+)", said)
        assert found
        url, token = found.groups()
        assert ask(f"{url}/api/health") == (200, b'{"status":"ok"}')
        assert ask(f"{url}/metrics", token)[0] == 200
        assert ask(f"{url}/metrics")[0] == 401
        assert ask(f"{url}/metrics", token, Host="evil.example")[0] == 403
        (file,) = (lamina.folder / "state" / "lamina").glob("*.token")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert file.read_text().strip() == token
        assert "in use by process" in lamina.error("keys", code=4)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, "")
        lines = [json.loads(line) for line in error.splitlines() if line.startswith("{")]
        assert {line["path"] for line in lines} == {"/api/health", "/metrics", "-"}
        assert token not in error
    with serving(lamina) as (_, said):
        assert token in said  # the same at the next start
    with serving(lamina, "--user", "bo") as (_, said):
        assert "token=" in said
        assert token not in said  # ann's token never becomes somebody else's


def test_a_token_file_that_others_can_read_is_refused(lamina: Lamina) -> None:
    lamina.script([{"text": "Hello."}, {"done": "stop"}])
    with serving(lamina):
        pass
    (file,) = (lamina.folder / "state" / "lamina").glob("*.token")
    file.chmod(0o644)
    assert "can be read by others" in lamina.error("serve", "--listen", "127.0.0.1:0", "--no-open")
    file.chmod(0o600)
    file.write_text("nothing\n")
    assert "contains no token" in lamina.error("serve", "--listen", "127.0.0.1:0", "--no-open")


def test_gateways_that_start_at_the_same_moment_share_the_token(lamina: Lamina) -> None:
    """One makes the file, and another finds it before it is written."""
    settings = load_settings(lamina.folder, lamina.environ())
    token = loopback_token(settings)
    (file,) = (lamina.folder / "state" / "lamina").glob("*.token")
    file.write_text("")
    writing = threading.Timer(0.3, file.write_text, [f"{token}\n"])
    writing.start()
    assert loopback_token(settings) == token
    writing.join()


def test_what_cannot_be_served_is_said_at_the_start(lamina: Lamina) -> None:
    lamina.script([{"text": "Hello."}, {"done": "stop"}])
    serve = ("serve", "--no-open", "--listen")
    assert "is not an address to listen at" in lamina.error(*serve, "8765")
    assert "'loud' is not a valid value for --log" in lamina.error("serve", "--log", "loud")
    assert "--origin cannot be '*'" in lamina.error(*serve, "127.0.0.1:0", "--origin", "*")
    assert "--host-name cannot be 'http://a'" in lamina.error(*serve, "127.0.0.1:0", "--host-name", "http://a")
    assert "LAMINA_RATE_LIMIT" in lamina.error(*serve, "127.0.0.1:0", LAMINA_RATE_LIMIT="many")
    broken = lamina.error(*serve, "127.0.0.1:0", LAMINA_PROVIDER="openai", LAMINA_MODEL="")
    assert "no model is set for openai" in broken
    with serving(lamina) as (_, said):
        port = said.partition("127.0.0.1:")[2].partition("/")[0]
        taken = lamina.error(*serve, f"127.0.0.1:{port}", LAMINA_STORE=str(lamina.folder / "other.db"))
        assert f"cannot listen at 127.0.0.1:{port}" in taken


def test_with_a_key_it_listens_for_others_and_makes_no_token(lamina: Lamina) -> None:
    lamina.script([{"text": "Hello."}, {"done": "stop"}])
    key = lamina.json("keys", "new", "--name", "x", "--scope", "metrics")["key"]
    with serving(lamina, "--listen", "0.0.0.0:0") as (_, said):
        assert "token" not in said
        url = re.search(r"http://localhost:\d+", said)
        assert url
        assert ask(f"{url[0]}/metrics", key)[0] == 200
        assert ask(f"{url[0]}/metrics", "lam_loopback_" + "x" * 43)[0] == 401
    assert not list((lamina.folder / "state").glob("**/*.token"))


def test_a_second_signal_ends_it_at_once(lamina: Lamina) -> None:
    lamina.script([{"text": "Hello."}, {"done": "stop"}])
    with serving(lamina) as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        assert "stopping" in process.stderr.readline()
        time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (0, -signal.SIGTERM)
