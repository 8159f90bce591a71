"""A gateway whose event loop is stuck is useless: its supervisor is notified, or it ends itself.

The loop gives a sign of life at short intervals. systemd gets it as a datagram (`sd_notify`) and restarts a service
that is silent for `WatchdogSec`. Without systemd a timer in C, which needs neither the loop nor the interpreter's lock,
prints where every thread is and ends the process; whatever started it starts it again. Nothing here reads the store.
"""

import asyncio
import faulthandler
import os
import socket
import sys
import threading
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress

from lamina.errors import SettingsError, format_value

SIGNS_IN_TIME = 3
"""Signs of life in the time after which a silent process is ended: two of them may be late."""
LOOKS_IN_TIME = 10
"""Checks for them in that time."""


class Supervisor:
    """Notifies systemd; does nothing where it does not ask for that."""

    def __init__(self, environ: Mapping[str, str], pid: int) -> None:
        self._place = environ.get("NOTIFY_SOCKET", "")
        wanted, whose = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
        if wanted and not (wanted.isascii() and wanted.isdigit() and int(wanted) > 0):
            raise SettingsError("gateway.bad_watchdog", value=format_value(wanted))
        meant = self._place and wanted and whose in ("", str(pid))
        self.seconds = int(wanted) / 1_000_000 if meant else 0.0
        """Of silence after which it restarts the gateway; 0 where it does not watch."""

    def notify(self, state: str) -> None:
        """A supervisor that cannot be reached does not stop the gateway."""
        if not self._place or not hasattr(socket, "AF_UNIX"):
            return
        place = f"\0{self._place[1:]}" if self._place.startswith("@") else self._place
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.sendto(state.encode(), place)


@asynccontextmanager
async def watched(environ: Mapping[str, str], seconds: float) -> AsyncGenerator[None, None]:
    """Inside, the event loop is watched: by systemd where it asks, and by a timer where `seconds` are given."""
    supervisor = Supervisor(environ, os.getpid())
    times = [each for each in (supervisor.seconds, seconds) if each]
    signs_of_life = SignsOfLife(seconds)
    signs = asyncio.create_task(_give_signs(supervisor, signs_of_life, min(times) / SIGNS_IN_TIME)) if times else None
    await asyncio.sleep(0)  # the first sign is given before it says that it is ready
    supervisor.notify("READY=1")
    try:
        yield
    finally:
        supervisor.notify("STOPPING=1")
        if signs:
            signs.cancel()
            signs_of_life.end()


class SignsOfLife:
    """The timer that ends the process, and a thread that reports it just before.

    Where the interpreter's lock is held the thread cannot run; then the timer prints its name, which says the same.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._last = seconds, time.monotonic()
        self._ended = threading.Event()
        if seconds:
            threading.Thread(target=self.end_lamina_when_its_event_loop_stands_still, daemon=True).start()

    def give(self) -> None:
        if self._seconds:
            self._last = time.monotonic()
            faulthandler.dump_traceback_later(self._seconds, exit=True, file=sys.__stderr__ or 2)

    def end(self) -> None:
        self._ended.set()
        faulthandler.cancel_dump_traceback_later()

    def end_lamina_when_its_event_loop_stands_still(self) -> None:
        reported = 0.0
        while not self._ended.wait(self._seconds / LOOKS_IN_TIME):
            silent = time.monotonic() - self._last
            if silent > self._seconds * (1 - 2 / LOOKS_IN_TIME) and reported != self._last:
                reported = self._last
                what = f"lamina: the event loop has stood still for {silent:.1f} s; the watchdog ends this process"
                print(f"{what} after {self._seconds:g} s. Where its threads are:", file=sys.__stderr__, flush=True)


async def _give_signs(supervisor: Supervisor, signs_of_life: SignsOfLife, interval_s: float) -> None:
    while True:
        if supervisor.seconds:
            supervisor.notify("WATCHDOG=1")
        signs_of_life.give()
        await asyncio.sleep(interval_s)
