"""`lamina store` and `lamina worker` as real processes."""

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lamina import open_store
from lamina.records import NewJob
from tests.cli.process import Lamina

HEADER = '{"lamina":"export","format":1}\n'
CHAT = [{"role": "user", "content": "Where is 上海?"}, {"role": "assistant", "content": "In the east."}]


@pytest.fixture
def filled(lamina: Lamina) -> Lamina:
    """A store with a session, a memory and a profile value of ann and a session of bob."""
    (lamina.folder / "chat.json").write_text(json.dumps(CHAT))
    lamina("sessions", "import", "chat.json")
    lamina("sessions", "import", "chat.json", "--user", "bob")
    lamina("memory", "add", "I live in Porto.")
    lamina("memory", "profile", "city", "Porto")
    return lamina


def park(lamina: Lamina, *jobs: NewJob, error: str = "the model answered nonsense") -> list[str]:
    """Jobs of ann's that failed too often; returns their ids."""

    async def work() -> list[str]:
        async with open_store(lamina.store) as store:
            ids: list[str] = []
            for job in jobs:
                await store.jobs.add("ann", job.kind, job.payload)
                (taken,) = await store.jobs.claim("w")
                await store.jobs.fail(taken, error, park_after=1)
                ids.append(taken.job_id)
            return ids

    return asyncio.run(work())


def test_it_says_what_is_in_the_store(filled: Lamina) -> None:
    found = filled.json("store")
    info = found["info"]
    assert (info["kind"], info["owners"], info["where"]) == ("sqlite", 2, str(filled.folder / "chats.db"))
    assert info["counts"] == {"sessions": 1, "messages": 2, "memories": 1, "summaries": 0, "templates": 0}
    assert info["version"] >= 2
    assert info["sizes"]["file"] > 0
    text = filled("store")
    assert "sqlite" in text
    assert "parked 0" in text


def test_looking_never_makes_a_store(lamina: Lamina) -> None:
    for command in ([], ["verify"], ["export"], ["backup", "b.db"], ["reindex"], ["jobs"], ["retry", "abcd"]):
        assert "there is no store at" in lamina.error("store", *command, code=4)
    assert not list(lamina.folder.glob("chats.db*"))


def test_a_password_is_never_shown(lamina: Lamina) -> None:
    where = "postgresql://ann:hunter2@127.0.0.1:1/none"
    assert "hunter2" not in lamina.error("store", "--store", where, code=4)
    code = "from lamina.app.store_admin import hide_password as h; print(h('postgresql://a:b@c:5/d'), h('/a:b@c.db'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["postgresql://a:…@c:5/d", "/a:b@c.db"]


def test_a_backup_is_a_store_and_never_overwrites(filled: Lamina) -> None:
    assert "copied to" in filled("store", "backup", "b.db")
    assert filled.json("memory", "--store", "b.db")[0]["text"] == "I live in Porto."
    before = (filled.folder / "b.db").read_bytes()
    assert "already exists" in filled.error("store", "backup", "b.db")
    assert (filled.folder / "b.db").read_bytes() == before
    assert "no folder" in filled.error("store", "backup", "nowhere/b.db")
    assert not list(filled.folder.glob("*.partial"))


def test_verify_finds_damage_and_says_so_by_its_exit_code(filled: Lamina) -> None:
    assert "no faults" in filled("store", "verify")
    assert filled.json("store", "verify") == {"problems": [], "details": [], "complete": True}
    path = filled.folder / "chats.db"
    whole = bytearray(path.read_bytes())
    for at in range(8 * 4096, len(whole), 4096):
        whole[at : at + 200] = b"\xaa" * 200
    path.write_bytes(whole)
    done = filled.run("store", "verify")
    assert done.returncode in (1, 4)
    assert "Traceback" not in done.stderr
    assert done.stdout + done.stderr


def test_verify_finds_a_message_that_cannot_be_found_and_reindex_mends_it(filled: Lamina) -> None:
    import sqlite3  # noqa: PLC0415 -- the planted damage, by another program

    with sqlite3.connect(filled.folder / "chats.db") as connection:
        connection.execute(
            "DELETE FROM message_word WHERE block_id IN (SELECT id FROM message_block WHERE owner = 'ann')"
        )
    connection.close()
    done = filled.run("store", "verify")
    assert (done.returncode, "run `lamina store reindex`" in done.stdout, "faults: 2" in done.stdout) == (1, True, True)
    assert filled.json("sessions", "search", "上海") == []
    assert "indexed 4 messages and 1 memories" in filled("store", "reindex")
    assert filled("store", "verify")
    assert len(filled.json("sessions", "search", "上海")) == 1


def test_an_export_has_one_user_or_all_and_imports_elsewhere_unchanged(filled: Lamina) -> None:
    own = filled("store", "export").splitlines()
    assert {json.loads(line)["owner"] for line in own[1:]} == {"ann"}
    every = filled("store", "export", "-", "--all")
    assert {json.loads(line)["owner"] for line in every.splitlines()[1:]} == {"ann", "bob"}
    assert "rows written to all.jsonl" in filled("store", "export", "all.jsonl", "--all")
    assert (filled.folder / "all.jsonl").read_text(encoding="utf-8") == every
    assert "already exists" in filled.error("store", "export", "all.jsonl")
    assert "rows added" in filled("store", "import", "all.jsonl", "--store", "other.db")
    assert "0 rows added" in filled("store", "import", "-", "--store", "other.db", given=every)
    assert filled("store", "export", "--all", "--store", "other.db") == every
    filled("store", "import", "all.jsonl", "--store", "third.db", "--user", "eve")
    assert filled.json("store", "--store", "third.db", "--user", "eve")["info"]["owners"] == 1


def test_an_import_works_without_an_index_and_search_finds_it(filled: Lamina) -> None:
    filled("store", "export", "e.jsonl")
    filled("store", "import", "e.jsonl", "--store", "new.db")
    assert len(filled.json("sessions", "search", "上海", "--store", "new.db")) == 1
    assert len(filled.json("memory", "search", "Porto", "--store", "new.db")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "", "\n\n", "{}\n", "nonsense\n", "\x00\xff", '{"lamina":"export","format":9}\n', "[" * 100_000,
        HEADER + '{"table":"outbox"}\n', HEADER + "[" * 100_000,
        HEADER + '{"table":"user_profile","owner":"","name":"a","value":"1","updated":1}\n',
        HEADER + '{"table":"user_profile","owner":7,"name":"a","value":"1","updated":1}\n',
        HEADER + '{"table":["x"],"owner":"a"}\n',
        HEADER + '{"table":"user_profile","owner":"ann","name":"a","value":"x","updated":1}\n',
        HEADER + '{"table":"user_profile","owner":"ann","name":"a","value":{},"updated":1}\n',
        HEADER + '{"table":"user_profile","owner":"ann","name":"\\ud800","value":"1","updated":1}\n',
        HEADER + '{"table":"user_profile","owner":"ann","name":"a","value":"1","updated":1%s}\n' % ("0" * 30),
    ],
)  # fmt: skip
def test_what_is_no_export_is_refused_in_two_lines(lamina: Lamina, text: str) -> None:
    (lamina.folder / "e.jsonl").write_text(text, encoding="latin-1")
    done = lamina.run("store", "import", "e.jsonl")
    assert done.returncode in (2, 3), done
    assert "Traceback" not in done.stderr
    assert lamina.json("memory", "profile") == {}


def test_a_missing_file_and_a_closed_input_are_named(lamina: Lamina) -> None:
    assert "'no.jsonl' does not exist" in lamina.error("store", "import", "no.jsonl")
    closed = f"{sys.executable} -m lamina store import - <&-"
    done = subprocess.run(["bash", "-c", closed], env=lamina.environ(), capture_output=True, text=True, check=False)
    assert (done.returncode, "no standard input" in done.stderr) == (2, True)
    assert "empty" in lamina.error("store", "import", "-", given="")


def test_parked_jobs_are_shown_with_their_errors_and_tried_again(lamina: Lamina) -> None:
    session = lamina.json("sessions", "new")["session_id"]
    ids = park(lamina, NewJob("summary", {"session_id": session}), error="evil \x1b[31m error")
    assert "parked: 1" in lamina("store")
    shown = lamina("store", "jobs")
    assert "evil ⟨U+001B⟩[31m error" in shown
    assert ids[0][:8] in shown
    assert "not yours" in lamina.error("store", "retry", ids[0], "--user", "bob")
    assert lamina.json("store", "jobs", "--user", "bob") == []
    assert "will be tried again" in lamina("store", "retry", ids[0][:6])
    assert lamina.error("store", "retry", ids[0]), "it is parked no longer"
    assert "has no parked jobs" in lamina("store", "jobs")
    assert json.loads(lamina("worker", "--once", "--json"))["job_id"] == ids[0]
    assert lamina.json("store")["info"]["jobs"]["done"] == 1


def test_the_worker_reports_each_job_and_what_failed(lamina: Lamina) -> None:
    async def ask() -> None:
        async with open_store(lamina.store) as store:
            session = await store.sessions.new("ann")
            await store.messages.append("ann", session.session_id, [{"role": "user", "content": "I live in Porto."}])
            await store.jobs.add("ann", "summary", {"session_id": session.session_id})
            await store.jobs.add("bob", "memory", {"nothing": "nowhere"})

    asyncio.run(ask())
    rows = [json.loads(line) for line in lamina("worker", "--once", "--json").splitlines()]
    ends = {(row["owner"], row["kind"]): (row["end"], row.get("error", "")) for row in rows}
    assert ends["ann", "summary"][0] == "done"
    assert ends["bob", "memory"][0] == "again"
    assert "KeyError" in ends["bob", "memory"][1]
    assert "done: 0" in lamina("worker", "--once")
    assert "完成：" in lamina("worker", "--once", "--lang", "zh")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_worker_ends_by_itself_when_told_to(lamina: Lamina, number: signal.Signals) -> None:
    lamina("sessions", "end", lamina.json("sessions", "new")["session_id"])
    command = [sys.executable, "-m", "lamina", "worker", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=lamina.environ()) as process:
        assert process.stdout
        assert json.loads(process.stdout.readline())["end"] == "done"
        busy = lamina.error("sessions", code=4)
        assert f"in use by process {process.pid}" in busy
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, b"")
    assert "no faults" in lamina("store", "verify")


def test_on_a_terminal_there_is_progress_and_elsewhere_none(filled: Lamina) -> None:
    done = filled.run("store", "reindex")
    assert done.stderr == ""
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "lamina", "store", "reindex"]
    environ = filled.environ(TERM="xterm-256color", LANG="C.UTF-8")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=child, env=environ) as process:
        os.close(child)
        seen = b""
        try:
            while block := os.read(parent, 65536):
                seen += block
        except OSError:  # the other end is closed
            pass
        assert process.wait() == 0
    assert b"indexing" in seen


def test_a_reader_that_goes_away_ends_an_export_quietly(filled: Lamina) -> None:
    line = f"{sys.executable} -m lamina store export --all | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], env=filled.environ(), capture_output=True, text=True, check=False)
    assert done.stdout.strip() in ("0", "141")
    assert "Traceback" not in done.stderr


def test_it_speaks_chinese(filled: Lamina) -> None:
    assert "位置" in filled("store", "--lang", "zh")
    assert "没有问题" in filled("store", "verify", LANG="zh_CN.UTF-8")
    assert "已备份到" in filled("store", "backup", "备份.db", "--lang", "zh")
    assert Path(filled.folder / "备份.db").is_file()
    assert "没有搁置的任务" in filled("store", "jobs", "--lang", "zh")


def test_an_export_and_its_import_count_alike(filled: Lamina) -> None:
    written = filled("store", "export", "e.jsonl", "--all")
    added = filled("store", "import", "e.jsonl", "--store", "other.db")
    assert (written.split()[0], added.split()[0]) == ("8", "8"), "two sessions of two messages, a fact, a value"


def test_a_file_that_is_no_export_is_called_so(lamina: Lamina) -> None:
    (lamina.folder / "README.md").write_text("# lamina\n\nDecides what a model sees.\n")
    refused = lamina.error("store", "import", "README.md")
    assert ("this is not an export" in refused, "lamina store export" in refused) == (True, True)
    (lamina.folder / "later.jsonl").write_text('{"lamina":"export","format":9}\n')
    assert "newer version" in lamina.error("store", "import", "later.jsonl")


def test_a_file_that_is_no_store_is_called_so_and_nothing_is_left_beside_it(lamina: Lamina) -> None:
    note = lamina.folder / "note.txt"
    note.write_text("my notes\n")
    for command in (["sessions"], ["store"], ["memory", "add", "x"]):
        refused = lamina.error(*command, "--store", "note.txt", code=4)
        assert ("is not a store" in refused, "--store" in refused) == (True, True)
    assert [path.name for path in lamina.folder.glob("note*")] == ["note.txt"]
    assert note.read_text() == "my notes\n"
