"""R3 power loss, R4 disk full, R5 damage, R6 our hands off the files. SQLite only: PostgreSQL looks after its own."""

import ast
import asyncio
import hashlib
import os
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lamina.errors import InputError, StoreBusyError, StoreError
from lamina.store.database import Steps
from lamina.store.sqlite import SqliteDatabase
from lamina.store.store import Store, open_store
from tests.faults.load import Load

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "lamina"

# R3: what is acknowledged has been synced

ONE_BY_ONE = """
import asyncio, os, sys
from lamina.store.sqlite import SqliteDatabase, open_sqlite
from lamina.store.store import Store

async def main():
    SqliteDatabase.synchronous = sys.argv[2]
    db, _ = await open_sqlite(sys.argv[1], lambda: 1.0)
    store = Store(db, lambda: 1.0)
    session = (await store.sessions.new("ann")).session_id
    for n in range(40):
        turn = await store.turns.begin("ann", session, {"role": "user", "content": f"question {n}"})
        os.write(1, b"ACK question\\n")
        await store.turns.chunk("ann", turn.turn_id, 0, "x" * 100)
        os.write(1, b"ACK chunk\\n")
        await store.turns.finish("ann", turn.turn_id)
        os.write(1, b"ACK answer\\n")
    await db.close()

asyncio.run(main())
"""


def acknowledgements(trace: str) -> tuple[int, int]:
    """How many there were, and how many came while the write-ahead log had bytes that were not synced."""
    dirty, all_of_them, early = False, 0, 0
    syncing: dict[str, bool] = {}
    for line in trace.splitlines():
        thread = line.partition(" ")[0]
        if re.search(r"pwrite64\(\d+<[^>]*-wal>", line):
            dirty = True
        elif re.search(r"f(data)?sync\(", line):
            syncing[thread] = "-wal>" in line
            dirty = dirty and not (syncing[thread] and "unfinished" not in line)
        elif re.search(r"f(data)?sync resumed", line):
            dirty = dirty and not syncing[thread]
        elif "ACK " in line:
            all_of_them += 1
            early += dirty
    return all_of_them, early


def traced(folder: Path, synchronous: str) -> tuple[int, int]:
    trace = folder / f"trace-{synchronous}"
    subprocess.run(
        ["strace", "-f", "-y", "-s", "16", "-e", "trace=pwrite64,write,fsync,fdatasync", "-o", trace,
         sys.executable, "-c", ONE_BY_ONE, folder / f"{synchronous}.db", synchronous],
        check=True, stdout=subprocess.DEVNULL, cwd=ROOT, timeout=100,
    )  # fmt: skip
    return acknowledgements(trace.read_text(errors="replace"))


def can_trace() -> bool:
    return bool(shutil.which("strace")) and not subprocess.run(["strace", "true"], capture_output=True).returncode


@pytest.mark.planted("a log that is not synced at each commit")
def test_R3_nothing_is_acknowledged_while_the_log_is_not_synced(tmp_path: Path, load: Load) -> None:
    if not can_trace():
        pytest.skip("strace is not there, or may not trace here; the next test checks the setting alone")
    assert traced(tmp_path, "FULL") == (120, 0)
    count, early = traced(tmp_path, "NORMAL")  # the planted bug
    assert (count, early > 100) == (120, True)
    load.tried(120, "acknowledgements")


async def test_R3_the_writer_syncs_at_every_commit(tmp_path: Path) -> None:
    def settings() -> Steps[tuple[int, str, int, int]]:
        found: list[int | str] = []
        for name in ("synchronous", "journal_mode", "foreign_keys", "wal_autocheckpoint"):
            rows = yield f"PRAGMA {name}", ()
            found.append(rows[0][0])
        return tuple(found)  # pyright: ignore[reportReturnType]

    async with open_store(os.fspath(tmp_path / "store.db")) as store:
        assert await store.db.write_any_owner(settings) == (2, "wal", 1, 0)


# R4: the disk is full


@contextmanager
def small_disk(folder: Path) -> Generator[Path, None, None]:
    folder.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-nt", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True).returncode
    ):
        pytest.skip("mounting a small disk needs root; the next test limits the pages of the database instead")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-n", folder], check=True)  # -n: no table of mounts, which would stay in /run/mount


async def fill_up(store: Store, session: str, early: bool = False) -> tuple[list[str], StoreError]:
    """Stream until the store refuses; what was acknowledged, and the refusal. `early` is the planted bug."""
    said: list[str] = []
    turn = await store.turns.begin("ann", session, {"role": "user", "content": "go"})
    for n in range(10_000):
        text = f"{n:06}" + "x" * 5_000
        if early:
            said.append(text)
        try:
            await store.turns.chunk("ann", turn.turn_id, n, text)
        except StoreError as error:
            return [turn.turn_id, *said], error
        if not early:
            said.append(text)
    raise AssertionError("the disk was never full")


async def lost(store: Store, said: list[str]) -> int:
    turn_id, *texts = said
    kept = [text for _, text in await store.turns.chunks("ann", turn_id)]
    return len(texts) - len(kept) if texts[: len(kept)] == kept else -1


@pytest.mark.parametrize(
    "early", [False, pytest.param(True, marks=pytest.mark.planted("text that counts as saved before it is written"))]
)
async def test_R4_a_full_disk_is_said_before_acknowledging_and_writing_resumes(tmp_path: Path, early: bool) -> None:
    with small_disk(tmp_path / "disk") as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(b"\0" * 1_500_000)
        async with open_store(os.fspath(disk / "store.db")) as store:
            session = (await store.sessions.new("ann", title="before")).session_id
            said, error = await fill_up(store, session, early)
            assert error.code == "store.disk_full"
            assert "free some space" in error.hint
            assert (await store.sessions.get("ann", session)).title == "before"
            assert await lost(store, said) == (1 if early else 0)
            ballast.unlink()
            begin = time.monotonic()
            await store.turns.finish("ann", said[0], state="interrupted")
            assert time.monotonic() - begin < 1
            assert await store.admin.verify() == []
        async with open_store(os.fspath(disk / "store.db")) as store:
            text = (await store.messages.list("ann", session))[-1].text
            assert text == "".join(said[1 : len(said) - early])


async def test_R4_without_root_a_full_database_behaves_the_same(tmp_path: Path) -> None:
    def limit(pages: int) -> Steps[None]:
        yield f"PRAGMA max_page_count = {pages}", ()

    async with open_store(os.fspath(tmp_path / "store.db")) as store:
        session = (await store.sessions.new("ann", title="before")).session_id
        await store.db.write_any_owner(lambda: limit(400))
        said, error = await fill_up(store, session)
        assert error.code == "store.disk_full"
        assert await lost(store, said) == 0
        await store.db.write_any_owner(lambda: limit(1_000_000))
        await store.turns.finish("ann", said[0], state="interrupted")
        assert await store.admin.verify() == []


# R5: damage


def prints(folder: Path) -> dict[str, str]:
    """The files of a store and their content; the log and its index come and go with each use."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if not path.name.endswith(("-wal", "-shm", ".lock"))
    }


async def damaged_store(folder: Path) -> tuple[str, str]:
    folder.mkdir()
    where = folder / "store.db"
    async with open_store(os.fspath(where)) as store:
        session = (await store.sessions.new("ann")).session_id
        for _ in range(20):
            await store.messages.append("ann", session, [{"role": "user", "content": "word " * 400}] * 10)
    with where.open("r+b") as file:
        size = where.stat().st_size
        for page in range(100, size // 4096):  # behind the roots of the tables
            file.seek(page * 4096)
            file.write(b"\xde\xad" * 200)
    return os.fspath(where), session


async def test_R5_a_damaged_store_says_so_only_reads_and_is_not_touched(tmp_path: Path) -> None:
    where, session = await damaged_store(tmp_path / "damaged")
    before = prints(tmp_path / "damaged")
    async with open_store(where) as store:
        with pytest.raises(StoreError) as error:
            await store.messages.list("ann", session)
        assert "damaged" in str(error.value)
        for command in ("lamina store verify", "lamina store backup"):
            assert command in error.value.hint
        with pytest.raises(StoreError, match="read-only"):
            await store.sessions.new("ann")
        assert (await store.sessions.get("ann", session)).session_id == session
        assert await store.admin.verify()
    assert prints(tmp_path / "damaged") == before
    Path(where).rename(f"{where}.broken")  # the planted bug: put it out of the way
    assert prints(tmp_path / "damaged") != before


async def test_R5_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("these are my notes\n" * 500)
    before = prints(tmp_path)
    with pytest.raises(StoreError, match=r"notes\.txt is not a store"):
        async with open_store(os.fspath(tmp_path / "notes.txt")):
            pass
    assert prints(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"], "no lock file is left behind"
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE bookmarks (address TEXT)")
    other.close()
    before = prints(tmp_path)
    with pytest.raises(StoreError, match=r"other\.db is not a store, but a database of another program"):
        async with open_store(os.fspath(tmp_path / "other.db")):
            pass
    assert prints(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "other.db"]
    with pytest.raises(StoreError, match="no folder"):
        async with open_store(os.fspath(tmp_path / "no" / "store.db")):
            pass


FOREIGN = {
    "notes of another program": "CREATE TABLE notes (x); INSERT INTO notes VALUES ('mine')",
    "a version that is no number": "CREATE TABLE schema_version (version TEXT); "
    "INSERT INTO schema_version VALUES ('abc')",
    "a table named like one of ours": "CREATE TABLE conversation (x)",
    "a version without its tables": "CREATE TABLE schema_version (version INTEGER PRIMARY KEY, name TEXT NOT NULL, "
    "applied REAL NOT NULL); INSERT INTO schema_version VALUES (1, 'x', 0)",
    "a mark of its own": "PRAGMA application_id = 7",
}


@pytest.mark.parametrize("what", FOREIGN)
async def test_R5_a_database_of_another_program_is_refused_at_once_and_left_alone(tmp_path: Path, what: str) -> None:
    with closing(sqlite3.connect(tmp_path / "theirs.db")) as connection:
        connection.executescript(FOREIGN[what])
    before = prints(tmp_path)
    for _ in range(2):
        with pytest.raises(StoreError, match="another program"):
            async with asyncio.timeout(20), open_store(os.fspath(tmp_path / "theirs.db")):
                pass
    assert prints(tmp_path) == before


async def test_R5_a_store_whose_versions_were_overwritten_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    where = os.fspath(tmp_path / "store.db")
    async with open_store(where) as store:
        await store.sessions.new("ann")
    with closing(sqlite3.connect(where, isolation_level=None)) as connection:
        connection.executescript(
            "DROP TABLE schema_version; CREATE TABLE schema_version (version, name, applied); "
            "INSERT INTO schema_version VALUES ('abc', '', 0)"
        )
    with pytest.raises(StoreError):
        async with asyncio.timeout(20), open_store(where):
            pass


async def test_R5_a_store_without_our_mark_is_known_by_its_tables_and_gets_the_mark(tmp_path: Path) -> None:
    where = os.fspath(tmp_path / "store.db")
    async with open_store(where) as store:
        session = (await store.sessions.new("ann")).session_id
    with closing(sqlite3.connect(where, isolation_level=None)) as connection:
        ours = connection.execute("PRAGMA application_id").fetchone()[0]
        connection.execute("PRAGMA application_id = 0")  # as it was before there was a mark
    async with open_store(where) as store:
        assert (await store.sessions.get("ann", session)).session_id == session
    with closing(sqlite3.connect(where)) as connection:
        assert connection.execute("PRAGMA application_id").fetchone()[0] == ours != 0


class Blaming(SqliteDatabase):
    """The planted bug: what goes wrong with the target of a copy is taken for damage of the store."""

    async def run_separately(self, work: Callable[[sqlite3.Connection], object]) -> Any:
        try:
            return await super().run_separately(work)
        except StoreError as error:
            self.trouble = error.phrase
            raise


@pytest.mark.parametrize(
    "planted", [False, pytest.param(True, marks=pytest.mark.planted("a full target taken for damage of the store"))]
)
async def test_R5_a_backup_that_fails_is_about_its_target_and_writing_goes_on(tmp_path: Path, planted: bool) -> None:
    db = (Blaming if planted else SqliteDatabase)(os.fspath(tmp_path / "store.db"))
    await db.start(lambda: 1.0)
    store = Store(db, lambda: 1.0)
    session = (await store.sessions.new("ann")).session_id
    stale = tmp_path / "copy.db.partial"
    stale.write_text("this is no database, a copy that was killed left it\n" * 200)
    await store.admin.backup(os.fspath(tmp_path / "copy.db"))
    assert not stale.exists()
    with small_files(), pytest.raises(StoreError, match=re.escape(f"the backup {tmp_path}/full.db cannot be written")):
        await store.admin.backup(os.fspath(tmp_path / "full.db"))
    for target in (tmp_path / "no" / "folder.db", Path("/proc/x.db")):
        with pytest.raises(StoreError, match=re.escape(f"the backup {target} cannot be written")):
            await store.admin.backup(os.fspath(target))
    if planted:
        with pytest.raises(StoreError, match="read-only"):
            await store.sessions.new("ann")
    else:
        await store.messages.append("ann", session, [{"role": "user", "content": "goes on"}])
        assert await store.admin.verify() == []
    await db.close()


async def test_R5_a_backup_never_goes_by_way_of_the_store_itself(tmp_path: Path) -> None:
    async with open_store(os.fspath(tmp_path / "x.partial")) as store:
        await store.sessions.new("ann")
        with pytest.raises(InputError, match="the store itself"):
            await store.admin.backup(os.fspath(tmp_path / "x"))
        assert await store.admin.owners() == ["ann"]


@contextmanager
def small_files() -> Generator[None, None, None]:
    """No file may grow beyond a few pages: a full disk without root."""
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8_192, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


async def test_R5_a_store_whose_beginning_was_overwritten_is_called_damaged_and_keeps_its_lock_file(
    tmp_path: Path,
) -> None:
    where = tmp_path / "store.db"
    async with open_store(os.fspath(where)) as store:
        await store.sessions.new("ann")
    with where.open("r+b") as file:
        file.write(b"overwritten from here")
    with pytest.raises(StoreError, match="damaged or cannot be read"):
        async with open_store(os.fspath(where)):
            pass
    assert (tmp_path / "store.db.lock").exists()


# R6: a plain open and close of one of SQLite's files would drop the locks of the whole process

TOUCHES = {
    "open", "fdopen", "unlink", "remove", "rename", "replace", "renames", "chmod", "chown", "truncate", "link",
    "symlink", "copy", "copy2", "copyfile", "copyfileobj", "copytree", "move", "rmtree", "read_text", "read_bytes",
    "write_text", "write_bytes", "touch", "mkstemp", "NamedTemporaryFile",
}  # fmt: skip
ALLOWED = {
    ("lock.py", "os.open"): "the lock file of its own, and a new file before SQLite opens it",
    ("lock.py", "os.chmod"): "takes rights away by the name of a file; nothing is opened or closed",
    ("lock.py", "os.unlink"): "the same, when it was just made beside what is no store",
    ("admin.py", "open"): "the export that is a backup of PostgreSQL",
    ("admin.py", "os.replace"): "the finished backup takes its name; nobody has it open",
    ("admin.py", "create_private"): "the same, and an empty file for a copy",
    ("admin.py", "os.unlink"): "a copy that was ended before it had its name; it is never the store's own file",
    ("schema.py", "file.read_text"): "a packaged migration",
}


def touches(name: str, code: str) -> Iterator[str]:
    """Calls that open, move or change a file, but for those with a reason."""
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called.rpartition(".")[2] in TOUCHES and (name, called) not in ALLOWED:
            if called == "replace" or (called.endswith(".replace") and called != "os.replace"):
                continue  # of a dataclass or a text
            yield f"{name}:{node.lineno} {called}"


def test_R6_nothing_of_ours_touches_the_files_of_the_database() -> None:
    found = [each for path in sorted((SOURCE / "store").rglob("*.py")) for each in touches(path.name, path.read_text())]
    assert found == []
    elsewhere = [
        str(path.relative_to(SOURCE))
        for path in sorted(SOURCE.rglob("*.py"))
        if path.parent.name != "store" and re.search(r"-wal\b|-shm\b|-journal\b", path.read_text())
    ]
    assert elsewhere == ["app/config.py", "tools/files.py"], "they name them in order to keep away from them"


@pytest.mark.planted("code that opens, copies or deletes a file of the database")
@pytest.mark.parametrize(
    "code",
    ["open(self.path)", "os.unlink(path + '-wal')", "path.read_bytes()", "shutil.copyfile(a, b)", "os.replace(a, b)"],
)  # fmt: skip
def test_R6_a_planted_touch_is_found(code: str) -> None:
    assert list(touches("planted.py", code))


def test_R6_the_reason_is_real_a_plain_open_and_close_drops_the_locks(tmp_path: Path) -> None:
    """Another process may then write in the middle of our transaction."""
    path = tmp_path / "plain.db"
    ours = sqlite3.connect(path, isolation_level=None)
    ours.execute("CREATE TABLE t (x)")
    ours.execute("BEGIN EXCLUSIVE")
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None); "
        "c.execute('BEGIN EXCLUSIVE'); c.close()"
    )
    theirs = [sys.executable, "-c", code, str(path)]
    assert subprocess.run(theirs, capture_output=True).returncode != 0
    path.open("rb").close()
    assert subprocess.run(theirs, capture_output=True).returncode == 0
    ours.close()


# The driver itself


async def test_transactions_that_wait_together_do_not_spoil_each_other(tmp_path: Path) -> None:
    async with open_store(os.fspath(tmp_path / "store.db")) as store:
        session = (await store.sessions.new("ann")).session_id

        def broken() -> Steps[None]:
            yield "INSERT INTO user_profile (owner, name, value, updated) VALUES ('ann', 'no', '1', 1)", ()
            raise MemoryError  # what a damaged row may raise is told as damage

        def wrong() -> Steps[None]:
            yield "INSERT INTO chunk (owner, turn_id, n, text) VALUES ('ann', 'nobody', 1, '')", ()

        results = await asyncio.gather(
            *(store.messages.append("ann", session, [{"role": "user", "content": str(n)}]) for n in range(50)),
            store.db.write("ann", broken),
            store.db.write("ann", wrong),
            *(store.messages.append("ann", session, [{"role": "user", "content": str(n)}]) for n in range(50)),
            return_exceptions=True,
        )
        assert isinstance(results[50], MemoryError)
        assert isinstance(results[51], StoreError)
        assert sum(isinstance(each, BaseException) for each in results) == 2
        assert (await store.sessions.get("ann", session)).last_seq == 100
        assert await store.profile.get("ann") == {}
        assert await store.admin.verify() == []


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    async with open_store(os.fspath(tmp_path / "store.db")) as store:
        pass
    assert isinstance(store.db, SqliteDatabase)
    with pytest.raises(StoreError, match="closed"):
        await store.sessions.new("ann")


class Unforeseen(Exception):  # noqa: N818 -- no error that anybody knows
    """What no thread is prepared for."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_mistake_that_ends_a_thread_leaves_nobody_waiting(tmp_path: Path) -> None:
    def unforeseen() -> Steps[None]:
        yield "SELECT 1", ()
        raise Unforeseen

    async with open_store(os.fspath(tmp_path / "store.db")) as store:
        with pytest.raises(StoreError, match="the store's reader failed"):
            await store.db.read("ann", unforeseen)
        assert await store.sessions.list("ann") == []
        works = [store.db.write("ann", unforeseen), *(store.sessions.new("ann") for _ in range(20))]
        results = await asyncio.gather(*works, return_exceptions=True)
        assert all(isinstance(each, StoreError) for each in results)
    async with open_store(os.fspath(tmp_path / "store.db")) as store:
        assert await store.sessions.list("ann") == []


async def test_a_database_that_another_program_locks_is_said_to_be_busy_once_for_all(tmp_path: Path) -> None:
    class Hasty(SqliteDatabase):
        patience = 50

    db = Hasty(os.fspath(tmp_path / "store.db"))
    await db.start(time.time)
    store = Store(db, time.time)
    hold = sqlite3.connect(db.path, isolation_level=None)
    hold.execute("BEGIN IMMEDIATE")
    results = await asyncio.gather(*(store.sessions.new("ann") for _ in range(5)), return_exceptions=True)
    hold.execute("ROLLBACK")
    hold.close()
    assert {type(each) for each in results} == {StoreBusyError}
    await store.sessions.new("ann")
    await db.close()
