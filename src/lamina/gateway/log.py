"""One line of JSON for each request, to the standard error. Templates of paths, never the path: no ids, no query, no
body, no credential is here to be read. Lines are written by a thread, so that a full pipe holds up nobody.
"""

import asyncio
import json
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

from lamina.gateway.options import LogLevel

WRITE_INTERVAL_S = 0.1
"""Seconds for which lines are gathered."""
MAX_LINES, MAX_WAITING_BATCHES = 10_000, 50
"""Lines that are gathered, and gatherings that wait for a slow reader; what comes on top is counted and left out."""
_quoted = json.encoder.encode_basestring_ascii


class RequestLog:
    def __init__(self, level: LogLevel, out: TextIO | None = None) -> None:
        self.level = level
        self.on = level != "off"
        self._out = sys.stderr if out is None else out
        self._new: list[str] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._left_out = 0
        self._thread: threading.Thread | None = None
        self._stamp = (0, "")

    def line(
        self, request_id: str, method: str, path: str, status: int, seconds: float, size: int, user: str, key_id: str,
        turn: str, error: str = "",
    ) -> None:  # fmt: skip
        """`error` is the name of an unforeseen one and its place, never its words."""
        if not self.on:
            return
        if len(self._new) >= MAX_LINES or self._lines.qsize() > MAX_WAITING_BATCHES:
            self._left_out += 1
            return
        made = (
            f'{{"time":"{self._time()}","id":"{request_id}","method":{_quoted(method)},"path":"{path}",'
            f'"status":{status},"ms":{seconds * 1_000:.2f},"bytes":{size}'
        )
        if user:
            made += f',"user":{_quoted(user)},"key_id":"{key_id}"'
        if turn:
            made += f',"turn":{_quoted(turn)}'
        if error:
            made += f',"error":{_quoted(error)}'
        if not self._new:  # to wake the thread for each line would cost more than the line
            asyncio.get_running_loop().call_later(WRITE_INTERVAL_S, self._hand_to_thread)
        self._new.append(made + "}\n")

    def _hand_to_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="request log", daemon=True)
            self._thread.start()
        if self._left_out:
            self._new.append(f'{{"time":"{self._time()}","left_out":{self._left_out}}}\n')
            self._left_out = 0
        if self._new:
            self._lines.put("".join(self._new))
            self._new = []

    def _time(self) -> str:
        now = time.time()
        second = int(now)
        if self._stamp[0] != second:
            self._stamp = (second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)))
        return f"{self._stamp[1]}.{int((now - second) * 1_000):03}Z"

    def _write(self) -> None:
        lines: Callable[[], str | None] = self._lines.get
        while (line := lines()) is not None:
            try:
                self._out.write(line)
                self._out.flush()
            except (OSError, ValueError):  # nobody reads any more: that ends no request
                continue

    def close(self) -> None:
        """Write what waits, for a moment at most."""
        if self._new:
            self._hand_to_thread()
        if self._thread is not None:
            self._lines.put(None)
            self._thread.join(2)
            self._thread = None
