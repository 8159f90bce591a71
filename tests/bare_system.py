"""`python tests/bare_system.py ARGUMENTS`: the command `lamina` on a system without POSIX, as Windows is one.

The modules, flags and calls that only some systems have are hidden before anything of lamina is loaded; the standard
library and the packages lamina uses, which know their system, are loaded first. `plant=NAME` as the first argument
plants a bug: the lock that never locks.
"""

import asyncio
import os
import signal
import socket
import sys
from importlib import import_module
from typing import Any

LOADED_FIRST = (
    "sqlite3", "ssl", "subprocess", "tempfile", "shutil", "aiohttp", "uvicorn", "typer", "rich.console", "numpy",
)  # fmt: skip
MODULES = ("fcntl", "grp", "pwd", "resource", "termios", "tty", "pty")
NAMES: dict[Any, tuple[str, ...]] = {
    os: (
        "O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC", "O_DIRECTORY", "O_PATH", "O_NOCTTY", "fork", "forkpty", "killpg",
        "getpgid", "setsid", "getuid", "geteuid", "getgid", "getegid", "fchmod", "fchown", "pread", "pwrite", "waitid",
        "sysconf", "statvfs", "getloadavg", "sched_getaffinity", "uname", "mkfifo", "set_blocking", "getppid",
    ),
    signal: (
        "SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGPIPE", "SIGQUIT", "SIGCHLD", "SIGSTOP", "SIGALRM", "SIGWINCH",
    ),
    socket: ("AF_UNIX", "SO_REUSEPORT", "SO_PEERCRED"),
}  # fmt: skip


def hide() -> None:
    for name in LOADED_FIRST:
        import_module(name)
    for name in MODULES:
        sys.modules[name] = None  # pyright: ignore[reportArgumentType] -- importing it is then an ImportError
    pair, unix = socket.socketpair, socket.AF_UNIX
    socket.socketpair = lambda *_: pair(unix)  # event loops wake themselves with it
    for module, names in NAMES.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    os.supports_dir_fd.clear()
    for name in ("open", "stat", "mkdir", "unlink", "rename", "readlink"):
        setattr(os, name, _by_path_only(getattr(os, name)))
    loop: Any = asyncio.SelectorEventLoop
    for name in ("add_signal_handler", "remove_signal_handler"):
        setattr(loop, name, getattr(asyncio.AbstractEventLoop, name))  # both say that they are not implemented


def _by_path_only(function: Any) -> Any:
    def called(path: Any, *arguments: Any, dir_fd: int | None = None, **more: Any) -> Any:
        if dir_fd is not None:
            raise NotImplementedError("dir_fd unavailable on this platform")
        if function.__name__ == "open" and isinstance(path, str) and os.path.isdir(path):
            raise PermissionError(13, "Permission denied", path)
        return function(path, *arguments, **more)

    called.__name__ = function.__name__
    return called


def plant_open_lock() -> None:
    """The bug: the lock is said to be taken and is not."""
    import lamina.portable as portable  # noqa: PLC0415 -- after everything is hidden

    portable.take_lock = lambda *_, **__: lambda: None
    sys.modules.pop("lamina.store.lock", None)


if __name__ == "__main__":
    hide()
    if sys.argv[1] == "plant=open_lock":
        del sys.argv[1]
        plant_open_lock()
    from lamina.cli import main

    sys.exit(main())
