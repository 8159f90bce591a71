"""What the gateway records of its requests: counters in the text form of Prometheus, and one line of JSON each.

Routes are named by the templates of their paths, never by the path: there is no id, query, body or credential here.
Lines are written by a thread, so that a full pipe does not hold up any request.
"""

import asyncio
import json
import queue
import sys
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TextIO

from lamina.gateway.limits import LogLevel
from lamina.records import TurnRecord

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
MEDIA = "text/plain; version=0.0.4; charset=utf-8"
WRITE_INTERVAL_S = 0.1
"""Between two writes of the lines that have come."""
MAX_LINES, MAX_WAITING_BATCHES = 10_000, 50
"""Lines in one batch, and batches that wait for a slow reader; further lines are counted and left out."""
_quoted = json.encoder.encode_basestring_ascii


class Metrics:
    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, list[float]] = {}
        """For each route: how many in each bound and above all, and their sum at the end."""
        self.streams = 0
        """Open now."""
        self._turns: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()

    def count_request(self, label: str, status: int, seconds: float) -> None:
        """`label` is a method and the template of a path."""
        self._requests[label, status] += 1
        row = self._seconds.get(label)
        if row is None:
            row = self._seconds[label] = [0] * (len(BOUNDS) + 2)
        row[bisect_left(BOUNDS, seconds)] += 1
        row[-1] += seconds

    def count_turn(self, turn: TurnRecord) -> None:
        """A turn that ended."""
        self._turns[turn.state] += 1
        for kind in ("prompt", "cached", "completion"):
            self._tokens[kind] += int(turn.usage.get(kind, 0))

    def text(self, more: Mapping[str, tuple[str, str, float]]) -> str:
        """`more` has what others know, by name: its kind, its help and its value."""
        lines: list[str] = []
        lines += _family(
            "lamina_requests_total",
            "counter",
            "Requests by route and status.",
            ((_labels(label, status=str(status)), count) for (label, status), count in sorted(self._requests.items())),
        )
        lines += _family("lamina_request_seconds", "histogram", "Seconds from a request to the end of its reply.", ())
        for label, row in sorted(self._seconds.items()):
            lines += _histogram(label, row)
        lines += _family("lamina_streams_open", "gauge", "Replies that come in pieces, open now.", [("", self.streams)])
        lines += _family(
            "lamina_turns_total",
            "counter",
            "Turns that ended here, by state.",
            ((f'{{state="{state}"}}', count) for state, count in sorted(self._turns.items())),
        )
        lines += _family(
            "lamina_tokens_total",
            "counter",
            "Tokens of those turns; cached are part of prompt.",
            ((f'{{kind="{kind}"}}', self._tokens[kind]) for kind in ("prompt", "cached", "completion")),
        )
        for name, (kind, words, value) in more.items():
            lines += _family(name, kind, words, [("", value)])
        return "\n".join(lines) + "\n"


def _labels(label: str, **more: str) -> str:
    method, _, path = label.partition(" ")
    pairs = {"method": method, "route": path, **more}
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _family(name: str, kind: str, words: str, rows: Iterable[tuple[str, float]]) -> list[str]:
    return [f"# HELP {name} {words}", f"# TYPE {name} {kind}", *(f"{name}{labels} {value:g}" for labels, value in rows)]


def _histogram(label: str, row: list[float]) -> list[str]:
    name, total, lines = "lamina_request_seconds", 0.0, list[str]()
    for bound, count in zip((*map(str, BOUNDS), "+Inf"), row[:-1], strict=True):
        total += count
        lines.append(f"{name}_bucket{_labels(label, le=bound)} {total:.0f}")
    return [*lines, f"{name}_sum{_labels(label)} {row[-1]:.6f}", f"{name}_count{_labels(label)} {total:.0f}"]


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
        self,
        request_id: str,
        method: str,
        path: str,
        status: int,
        seconds: float,
        size: int,
        user: str,
        key_id: str,
        turn: str,
        error: str = "",
    ) -> None:
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
            except (OSError, ValueError):  # a reader of the log that is gone does not end a request
                continue

    def close(self) -> None:
        """Write what waits, for a moment at most."""
        if self._new:
            self._hand_to_thread()
        if self._thread is not None:
            self._lines.put(None)
            self._thread.join(2)
            self._thread = None
