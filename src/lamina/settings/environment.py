"""The environment of this process: read once, then out of sight (fault T4).

`ps eww` and /proc/PID/environ show the memory in which a process was given its environment and its arguments, as long
as it lives, to every process of the same user: also to a command that a model wrote. The command line calls
`hide_environment` before anything else. A library never does: there the environment belongs to the host.
"""

import os
import re
from contextlib import suppress

SECRET_NAME = re.compile(r"^LAMINA_|KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|HEADERS|_PWD$|_DSN$", re.IGNORECASE)
LIBRARY_NAME = re.compile(r"^PG|^OTEL_|_PROXY$", re.IGNORECASE)
"""Read by the libraries of PostgreSQL, OpenTelemetry and HTTP when they connect: kept here, but given to no child."""
PASSWORD_IN_URL = re.compile(r"(?<=://)[^\s\0'\"]+(?=@)|(?<=[?&]password=)[^&#\s\0'\"]+")
"""Up to the last @: a password that should have been encoded may hold a slash."""
PR_SET_DUMPABLE = 4
_hidden: dict[str, str] = {}


def process_environment() -> dict[str, str]:
    """What this process was started with, also after `hide_environment`."""
    return {**_hidden, **os.environ}


def child_environment() -> dict[str, str]:
    """What a program of the user's own, such as the browser, inherits: everything but secrets."""
    return {name: value for name, value in os.environ.items() if not is_secret(name, value)}


def mask_passwords(text: str) -> str:
    """For messages: a URL without its user and password."""
    return PASSWORD_IN_URL.sub("…", text)


def is_secret(name: str, value: str) -> bool:
    return bool(SECRET_NAME.search(name) or PASSWORD_IN_URL.search(value))


def hide_environment() -> None:
    """Take the secrets out of `os.environ`, blank the memory that /proc shows, and close our memory to others.

    The last two work on Linux only. Where the system refuses one, the other steps are still taken.
    """
    import ctypes  # noqa: PLC0415 -- 2 ms that only a process of our own spends

    given = dict(os.environ)
    hidden = {n: v for n, v in given.items() if is_secret(n, v) and not LIBRARY_NAME.search(n)}
    _hidden.update(hidden)
    os.environ.clear()
    os.environ.update({n: v for n, v in given.items() if n not in hidden})  # libc copies them out of the old block
    with suppress(OSError, ValueError):
        _blank_memory()
    with suppress(OSError, AttributeError, TypeError):  # no debugger, no /proc/PID/mem for others, no core dump
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def _blank_memory() -> None:
    """By way of /proc/self/mem, where a wrong address is an error and not the end of the process."""
    with open("/proc/self/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
    arguments, arguments_end, block, block_end = map(int, fields[45:49])  # 48 to 51 in proc(5)
    if not 0 < arguments < arguments_end <= block < block_end:
        return
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(arguments)
        words = memory.read(arguments_end - arguments).decode("latin-1")
        masked = PASSWORD_IN_URL.sub(lambda found: "x" * len(found[0]), words)
        memory.seek(arguments)
        memory.write(masked.encode("latin-1"))
        memory.seek(block)
        memory.write(bytes(block_end - block))
