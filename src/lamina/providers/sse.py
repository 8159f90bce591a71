"""Server-sent events, piece by piece: bytes in, events out. Pure: it neither reads nor waits.

Wherever the bytes are split, the events are the same. Lines end in LF, CR or CRLF; comments, ids and unknown fields are
passed over; bytes that are no UTF-8 become U+FFFD, as the standard says. A line or an event that grows without end is
an error, not memory.
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
    """Feed it bytes as they come; `end` when no more will come."""

    def __init__(self, most: int = MAX_EVENT_BYTES) -> None:
        self._most = most
        self._rest: list[bytes] = []  # the line that is not yet whole, in the pieces in which it came
        self._rest_size = 0
        self._after_cr = False
        self._first = True
        self._kind = ""
        self._data: list[str] = []
        self._size = 0

    def feed(self, piece: bytes) -> Iterator[ServerEvent]:
        """The events that are whole with this piece. Take them all before the next piece."""
        if self._after_cr and piece:
            self._after_cr = False
            piece = piece[1:] if piece[:1] == b"\n" else piece
        self._after_cr = self._after_cr or piece[-1:] == b"\r"
        begin = 0
        for ending in _LINE_END.finditer(piece):
            self._keep(piece[begin : ending.start()])
            begin = ending.end()
            yield from self._line(self._taken())
        self._keep(piece[begin:])

    def end(self) -> Iterator[ServerEvent]:
        """The last event when its closing blank line is missing, as some servers leave it out."""
        yield from self._line(self._taken())
        yield from self._line(b"")

    def _keep(self, part: bytes) -> None:
        self._rest_size += len(part)
        if self._rest_size + self._size > self._most:
            raise BrokenStreamError("provider.event_too_large", most=self._most, hint="provider.hint_endpoint")
        if part:
            self._rest.append(part)

    def _taken(self) -> bytes:
        line = b"".join(self._rest)
        self._rest, self._rest_size = [], 0
        return line

    def _line(self, line: bytes) -> Iterator[ServerEvent]:
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
