"""Reads that wait for a person, inside of an event loop: the first Ctrl-C ends them.

The handler of an event loop only asks its task to stop, and a task that waits in a read never hears of it.
"""

import asyncio
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Generator[None, None, None]:
    """Within it Ctrl-C raises KeyboardInterrupt at once; where it is ignored, it stays so."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before in (None, signal.SIG_IGN):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if _is_cancelling():
            raise KeyboardInterrupt
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _is_cancelling() -> bool:
    """Whether Ctrl-C came just before the read."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # there is no event loop
        return False
    return task is not None and task.cancelling() > 0
