"""R5: a file that is cut off, moved or replaced is said to be damaged, on every route and command. R7: nothing that
people do to a lock file or a name lets a second process in. And nobody else may read the files of a store.
"""

import asyncio
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lamina.errors import StoreBusyError, StoreDamagedError, StoreError
from lamina.gateway.schemas import PARAMETER
from lamina.store.database import hide_password
from lamina.store.lock import OwnerLock, StoreFile, create_private
from lamina.store.store import open_store
from tests.cli.process import Lamina
from tests.faults.load import Load
from tests.gateway.apis import api_on, as_piece
from tests.gateway.worlds import world


@pytest.fixture
def lamina(tmp_path: Path) -> Lamina:
    return Lamina(tmp_path)


# R5: files that are cut off

WITHOUT_STORE = {
    "POST /api/login", "POST /api/logout", "GET /", "GET /web/{file}", "GET /api/openapi.json",
    "GET /api/live",
}  # fmt: skip
"""Routes that answer without a look into the store; a route that is new must say 503 or be named here."""


def cut_to(size: int) -> Callable[[Path], None]:
    """To so many bytes, or by so many when negative."""
    return lambda path: os.truncate(path, size if size >= 0 else path.stat().st_size + size)


def overwrite_header(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(os.urandom(4_096))


def replace_by_another(path: Path) -> None:
    shutil.copyfile(path, f"{path}.copy")
    os.replace(f"{path}.copy", path)


CUTS: dict[str, Callable[[Path], None]] = {
    "no bytes": cut_to(0), "1 byte": cut_to(1), "17 bytes": cut_to(17), "half a header": cut_to(50),
    "a header": cut_to(100), "a page": cut_to(4_096), "a page and a half": cut_to(6_000), "50 kB": cut_to(50_000),
    "all but a page": cut_to(-4_096), "all but a byte": cut_to(-1),
}  # fmt: skip
LATER: dict[str, Callable[[Path], None]] = {
    **{what: CUTS[what] for what in ("no bytes", "a header", "50 kB", "all but a byte")},
    "it is gone": os.unlink,
    "another file": replace_by_another,
    "a folder": lambda path: to_folder(path),
}


def to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


async def answers_after(where: Path, harm: Callable[[Path], None]) -> dict[str, tuple[int, bytes]]:
    """What every route says after the file was harmed behind the gateway's back."""
    async with api_on(os.fspath(where)) as api:
        ids = await world(api)
        await api.app.store.messages.append("ann", ids["session_id"], [{"role": "user", "content": "word " * 300}] * 50)
    async with api_on(os.fspath(where)) as api:
        ids |= {"file": "app.js", "model": "none"}
        await api.key("ann")
        harm(where)
        found: dict[str, tuple[int, bytes]] = {}
        for route in api.routes:
            path = PARAMETER.sub(lambda match: as_piece(ids[match[1]]), route.path)
            async with asyncio.timeout(20):
                got = await api(route.method, path, route.example)
            found[f"{route.method} {route.path}"] = got.status, got.raw
    return found


@pytest.mark.parametrize("what", LATER)
async def test_R5_every_route_says_503_and_why_when_the_file_is_cut_off_while_it_is_open(
    tmp_path: Path, what: str, load: Load
) -> None:
    found = await answers_after(tmp_path / "store.db", LATER[what])
    load.tried(len(found), "requests")
    wrong = {route: got for route, got in found.items() if got[0] != 503 and route not in WITHOUT_STORE}
    assert wrong == {}
    silent = [route for route, (code, raw) in found.items() if code == 503 and b"the store is damaged" not in raw]
    assert silent == []
    lost = [route for route, (code, raw) in found.items() if code == 503 and b"restore a backup" not in raw]
    assert lost == [], "nothing can be read: no other command would help"
    assert str(tmp_path).encode() not in b"".join(raw for _, raw in found.values()), "and nobody is told where it is"


@pytest.mark.planted("a file that nobody looks at while SQLite has it in memory")
async def test_R5_a_planted_blindness_for_the_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreFile, "check", lambda self: None)
    found = await answers_after(tmp_path / "store.db", cut_to(-1))
    assert {route for route, (code, _) in found.items() if code != 503} - WITHOUT_STORE


@pytest.mark.parametrize("what", CUTS)
async def test_R5_a_store_that_was_cut_off_is_not_opened_as_a_new_one(tmp_path: Path, what: str) -> None:
    where = tmp_path / "store.db"
    async with open_store(where) as store:
        session = (await store.sessions.new("ann")).session_id
        await store.messages.append("ann", session, [{"role": "user", "content": "word " * 300}] * 50)
    CUTS[what](where)
    before = where.read_bytes()
    with pytest.raises(StoreDamagedError):
        async with open_store(where):
            pass
    assert where.read_bytes() == before


def test_R5_commands_say_what_is_wrong_with_a_file_that_was_cut_off(lamina: Lamina) -> None:
    lamina("sessions", "new")
    whole = Path(lamina.store).read_bytes()
    for size, command in (
        (0, ("sessions",)),
        (50, ("store", "verify")),
        (4_096, ("store", "reindex")),
        (-1, ("ask", "a")),
    ):
        Path(lamina.store).write_bytes(whole[:size])
        said = lamina.error(*command, code=4)
        assert "chats.db" in said, (size, command)
        assert "restore a backup" in said, (size, command)
        assert "lamina store" not in said, "no command reads it, and none names another that cannot either"
    Path(lamina.store).write_bytes(b"")
    assert "被截断" in lamina.error("--lang", "zh", "sessions", code=4)


def test_R5_a_store_that_was_removed_is_said_to_be_and_no_empty_file_takes_its_place(lamina: Lamina) -> None:
    lamina("sessions", "new")
    Path(lamina.store).unlink()
    said = lamina.error("ask", "a", code=4)
    assert "was removed" in said
    assert f"remove {lamina.store}.lock first" in said
    assert "已被删除" in lamina.error("--lang", "zh", "ask", "a", code=4)
    assert not Path(lamina.store).exists()
    Path(f"{lamina.store}.lock").unlink()
    lamina("sessions", "new")


ODD_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a FIFO": (os.mkfifo, "is not a regular file"),
    "a link to a device": (lambda path: path.symlink_to("/dev/null"), "is not a regular file"),
    "a lock that is a FIFO": (lambda path: os.mkfifo(f"{path}.lock"), "cannot write the lock file"),
}


@pytest.mark.parametrize("what", ODD_FILES)
async def test_R5_what_cannot_be_a_store_is_not_called_damaged(tmp_path: Path, what: str) -> None:
    make, said = ODD_FILES[what]
    make(tmp_path / "store.db")
    before = sorted(path.name for path in tmp_path.iterdir())
    async with asyncio.timeout(10):
        with pytest.raises(StoreError, match=said) as error:
            async with open_store(tmp_path / "store.db"):
                pass
    assert not isinstance(error.value, StoreDamagedError)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


FILE_LIMIT = """
import asyncio, resource, sys
from lamina import open_store
async def main(where, limit):
    async with open_store(where) as store:
        await store.sessions.new("ann")
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))
        try:
            await store.sessions.new("ann", title="x" * 150)
        except Exception as error:
            print(type(error).__name__, error)
        try:
            await store.admin.backup(where + ".copy")
        except Exception as error:
            print(type(error).__name__, error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await store.sessions.new("ann")
        print(len(await store.sessions.list("ann")))
asyncio.run(main(*sys.argv[1:]))
"""


def test_R5_a_limit_of_file_sizes_is_not_damage_and_leaves_no_half_backup(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FILE_LIMIT, os.fspath(tmp_path / "store.db"), "8192"]
    done = subprocess.run(command, capture_output=True, text=True)
    *said, count = done.stdout.strip().split("\n")
    assert [line.split()[0] for line in said] == ["StoreError", "StoreError"], done
    assert ["cannot write to the store" in line for line in said] == [True, False]
    assert "cannot be written" in said[1]
    assert count == "2", "writing goes on without the limit"
    assert [path.name for path in tmp_path.iterdir() if "copy" in path.name] == []


# R7: one owner, whatever happens to its lock file

Prank = Callable[[Path], Path]
"""Does something to a store that is open; returns the path to open it by."""


def remove_lock(path: Path) -> Path:
    Path(f"{path}.lock").unlink()
    return path


def another_lock(path: Path) -> Path:
    Path(f"{path}.lock.new").write_text("12345\n")
    os.replace(f"{path}.lock.new", f"{path}.lock")
    return path


def linked_lock(path: Path) -> Path:
    (path.parent / "elsewhere").write_text("")
    Path(f"{path}.lock").unlink()
    Path(f"{path}.lock").symlink_to(path.parent / "elsewhere")
    return path


def renamed(path: Path) -> Path:
    return path.rename(path.with_name("other.db"))


def hard_linked(path: Path) -> Path:
    os.link(path, path.with_name("other.db"))
    return path.with_name("other.db")


def linked(path: Path) -> Path:
    path.with_name("other.db").symlink_to(path)
    Path(f"{path}.lock").unlink()
    return path.with_name("other.db")


def moved_folder(path: Path) -> Path:
    path.parent.rename(path.parent.with_name("moved"))
    for lock in path.parent.with_name("moved").glob("*.lock"):
        lock.unlink()
    return path.parent.with_name("moved") / path.name


PRANKS: list[Prank] = [remove_lock, another_lock, linked_lock, renamed, hard_linked, linked, moved_folder]


async def second_owner(tmp_path: Path, prank: Prank) -> str:
    """How a second process fares: `in`, or who is said to be in already."""
    (tmp_path / "here").mkdir()
    async with open_store(tmp_path / "here" / "store.db") as store:
        await store.sessions.new("ann")
        name = prank(tmp_path / "here" / "store.db")
        code = "import asyncio, sys\nfrom lamina import open_store\n"
        code += "async def main():\n    async with open_store(sys.argv[1]): print('in')\nasyncio.run(main())"
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", code, os.fspath(name)], capture_output=True, text=True
        )
        return done.stdout.strip() or done.stderr.strip().split("\n")[-1]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the lock file is all there is")
@pytest.mark.parametrize("prank", PRANKS, ids=lambda prank: prank.__name__)
async def test_R7_no_second_process_gets_in_whatever_is_done_to_the_lock_file_or_the_name(
    tmp_path: Path, prank: Prank
) -> None:
    said = await second_owner(tmp_path, prank)
    if prank is linked_lock:
        assert "cannot create the lock file" in said
    else:
        assert f"is in use by process {os.getpid()}" in said
    assert not list(tmp_path.rglob("other.db.lock")), "and nothing is left behind"


@pytest.mark.planted("a lock that is only a file")
async def test_R7_a_planted_lock_that_can_be_removed_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OwnerLock, "claim", lambda self, path: None)
    monkeypatch.setattr(OwnerLock, "renew", lambda self: None)
    assert await second_owner(tmp_path, remove_lock) == "in"


@pytest.mark.parametrize("prank", [remove_lock, another_lock], ids=lambda prank: prank.__name__)
async def test_R7_an_owner_makes_a_removed_lock_file_again_for_processes_in_other_containers(
    tmp_path: Path, prank: Prank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a process claims without a file is visible only in its own network namespace."""
    monkeypatch.setattr(OwnerLock, "claim", lambda self, path: None)

    def wait_for_the_owner(path: Path) -> Path:
        prank(path)
        end = time.monotonic() + 10
        while not (lock := Path(f"{path}.lock")).exists() or f"{os.getpid()}" not in lock.read_text():
            assert time.monotonic() < end
            time.sleep(0.05)
        return path

    assert f"is in use by process {os.getpid()}" in await second_owner(tmp_path, wait_for_the_owner)


async def test_R7_a_store_can_be_opened_again_after_its_owner_has_ended(tmp_path: Path) -> None:
    for _ in range(3):
        async with open_store(tmp_path / "store.db") as store:
            await store.sessions.new("ann")
            with pytest.raises(StoreBusyError):
                async with open_store(tmp_path / "store.db"):
                    pass


# Who may read the files


@contextmanager
def umask(value: int) -> Generator[None]:
    before = os.umask(value)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    """Of all files and folders below, but those that only their owner may use."""
    found = {path: stat.S_IMODE(path.lstat().st_mode) for path in folder.rglob("*")}
    wide = {path: mode for path, mode in found.items() if mode != (0o700 if path.is_dir() else 0o600)}
    return {str(path.relative_to(folder)): oct(mode) for path, mode in wide.items()}


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o277])
async def test_all_files_of_a_store_are_for_their_owner_alone(tmp_path: Path, mask: int) -> None:
    with umask(mask):
        async with open_store(tmp_path / "store.db") as store:
            session = (await store.sessions.new("ann")).session_id
            await store.messages.append("ann", session, [{"role": "user", "content": "hello"}])
            assert (tmp_path / "store.db-wal").exists()
            assert modes(tmp_path) == {}
            await store.admin.backup(os.fspath(tmp_path / "copy.db"))
            assert modes(tmp_path) == {}
    assert modes(tmp_path) == {}


async def test_files_that_others_may_read_are_narrowed_when_a_store_is_opened(tmp_path: Path) -> None:
    where = tmp_path / "store.db"
    async with open_store(where) as store:
        await store.sessions.new("ann")
        for path in tmp_path.iterdir():  # as 0.1.0 left them, and as a crash leaves the log
            path.chmod(0o644)
        assert modes(tmp_path)
    async with open_store(where) as store:
        await store.sessions.new("ann")
        assert modes(tmp_path) == {}


async def test_a_file_that_is_no_store_keeps_its_rights(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("my notes\n" * 100)
    (tmp_path / "notes.txt").chmod(0o644)
    with pytest.raises(StoreError):
        async with open_store(tmp_path / "notes.txt"):
            pass
    assert modes(tmp_path) == {"notes.txt": "0o644"}


@pytest.mark.parametrize("mask", [0o000, 0o022])
def test_commands_leave_no_file_or_folder_for_others_to_read(lamina: Lamina, mask: int) -> None:
    home = lamina.folder / "home"
    home.mkdir(mode=0o700)
    lamina.script([{"text": "Well."}])
    own = {"HOME": str(home), "XDG_STATE_HOME": "", "XDG_DATA_HOME": "", "LAMINA_STORE": str(home / "chats.db")}
    with umask(mask):
        lamina("ask", "hello", **own)
        lamina("store", "backup", str(home / "copy.db"), **own)
        lamina("store", "export", str(home / "rows.jsonl"), **own)
        lamina("keys", "new", "--name", "mine", **own)
    assert modes(home) == {}


# Passwords


ADDRESSES = [
    "postgresql://ann:hush-hush@127.0.0.1:1/db", "postgres://ann:hush%2Dhush@127.0.0.1:1/db?sslmode=disable",
    "postgresql://127.0.0.1:1/db?user=ann&password=hush-hush", "postgresql://127.0.0.1:1/db?p%61ssword=hush-hush",
    "postgresql://ann:hush/hush@127.0.0.1:1/db", "postgresql://ann:hush?hush@127.0.0.1:1/db",
    "postgresql://ann:hush#hush@127.0.0.1:1/db", "postgresql://ann:hush@hush@127.0.0.1:1/db",
    "postgresql://127.0.0.1:1/db?password=x@hush", "postgresql://ann:hush:hush@[::1]:1/db",
]  # fmt: skip


@pytest.mark.parametrize("address", ADDRESSES)
async def test_no_error_shows_the_password_of_a_store(address: str) -> None:
    assert "hush" not in hide_password(address)
    with pytest.raises(StoreError) as error:
        async with open_store(address):
            pass
    assert "hush" not in str(error.value)


def test_no_command_shows_the_password_of_a_store(lamina: Lamina) -> None:
    for address, command in (
        (ADDRESSES[0], ("config",)), (ADDRESSES[2], ("config", "--json")), (ADDRESSES[0], ("doctor",)),
        (ADDRESSES[4], ("sessions",)), (ADDRESSES[3], ("store",)),
    ):  # fmt: skip
        done = lamina.run(*command, LAMINA_STORE=address)
        assert "postgres" in done.stdout + done.stderr, command
        assert "hush" not in done.stdout + done.stderr, command
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "address", ["host=db.example user=ann password=hush", "dbname=chats  Password='hush'", "password=hush"]
)
def test_an_address_in_the_form_of_libpq_is_refused_and_not_taken_for_a_file(lamina: Lamina, address: str) -> None:
    for command in (("config",), ("doctor",), ("sessions",)):
        done = lamina.run(*command, LAMINA_STORE=address)
        assert "does not begin with postgresql://" in done.stdout + done.stderr
        assert "hush" not in done.stdout + done.stderr


def test_what_is_no_secret_of_an_address_is_shown(lamina: Lamina) -> None:
    address = "postgresql://ann:hush@db.example:5432/chats?sslmode=require&password=hush"
    shown = lamina.json("config", LAMINA_STORE=address)["store"]["value"]
    assert shown == "postgresql://ann:…@db.example:5432/chats?sslmode=require&password=…"
    assert json.loads(lamina("config", "--json"))["store"]["value"] == lamina.store


def test_the_rights_of_a_device_or_a_pipe_stay_as_they_are(tmp_path: Path) -> None:
    """Else a history or an export at /dev/null, as root, would close the device to everybody else."""
    os.mkfifo(tmp_path / "pipe")
    os.chmod(tmp_path / "pipe", 0o666)
    os.close(create_private(str(tmp_path / "pipe"), os.O_RDWR))
    assert stat.S_IMODE(os.stat(tmp_path / "pipe").st_mode) == 0o666
