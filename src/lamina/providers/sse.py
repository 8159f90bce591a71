"""A parser of server-sent events: bytes in, events out. Pure: it neither reads nor waits.

The events do not depend on how the bytes are split. Lines end in LF, CR or CRLF; comments, ids and unknown fields are
skipped; bytes that are not UTF-8 become U+FFFD, as the standard says. A line or an event that grows without end is an
error, so that it does not fill the memory.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from lamina.errors import BrokenStreamError

MAX_EVENT_BYTES = 4 * 1024 * 1024
"""Bytes of one event, its longest line included."""
BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\r|\n")


class ServerEvent(NamedTuple):
    """`kind` is the field `event`, empty when there was none."""

    kind: str
    data: str


class EventParser:
    """Call `feed` with bytes as they come, and `end` when no more will come."""

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._rest: list[bytes] = []  # the pieces of an incomplete line
        self._rest_size = 0
        self._after_cr = False
        self._first = True
        self._kind = ""
        self._data: list[str] = []
        self._size = 0

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        """The events that this piece completes. Take them all before the next piece."""
        if self._after_cr and piece:
            self._after_cr = False
            piece = piece[1:] if piece[:1] == b"\n" else piece
        self._after_cr = self._after_cr or piece[-1:] == b"\r"
        begin = 0
        for ending in _LINE_END.finditer(piece):
            self._append(piece[begin : ending.start()])
            begin = ending.end()
            yield from self._read_line(self._take_line())
        self._append(piece[begin:])

    def end(self) -> Iterator[ServerEvent]:
        """The last event, if its closing blank line is missing: some servers leave it out."""
        yield from self._read_line(self._take_line())
        yield from self._read_line(b"")

    def _append(self, part: bytes) -> None:
        self._rest_size += len(part)
        if self._rest_size + self._size > self._max_bytes:
            raise BrokenStreamError("provider.event_too_large", most=self._max_bytes, hint="provider.hint_endpoint")
        if part:
            self._rest.append(part)

    def _take_line(self) -> bytes:
        line = b"".join(self._rest)
        self._rest, self._rest_size = [], 0
        return line

    def _read_line(self, line: bytes) -> Iterator[ServerEvent]:
        if self._first:
            self._first = False
            line = line.removeprefix(BOM)
        if not line:
            if self._data:
                yield ServerEvent(self._kind, "\n".join(self._data))
            self._kind, self._data, self._size = "", [], 0
            return
        name, _, value = line.partition(b":")
        value = value[1:] if value[:1] == b" " else value
        if name == b"data":
            self._data.append(value.decode("utf-8", "replace"))
            self._size += len(line) + 1
        elif name == b"event":
            self._kind = value.decode("utf-8", "replace")
