"""A model with the first layers of another: the same words, the same server, the same counters, in a fraction of the
time. It says nonsense, and nobody listens. GGUF is read and written as its specification has it (version 3)."""

import struct
from pathlib import Path

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of the plain types of a value; 8 is a text, 9 a list."""
TEXT, LIST = 8, 9
ALIGNED = 32


class _Reader:
    def __init__(self, data: memoryview) -> None:
        self.data, self.at = data, 0

    def take(self, form: str) -> int:
        (value,) = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return value

    def text(self) -> str:
        size = self.take("Q")
        self.at += size
        return bytes(self.data[self.at - size : self.at]).decode()

    def skip(self, kind: int) -> None:
        if kind == TEXT:
            self.text()
        elif kind == LIST:
            inner, count = self.take("I"), self.take("Q")
            for _ in range(count):
                self.skip(inner)
        else:
            self.at += SIZES[kind]


def first_layers(path: Path, layers: int, to: Path) -> int:
    """Write the model with its first layers only; returns how many it had."""
    data = memoryview(path.read_bytes())
    read = _Reader(data)
    if bytes(data[:4]) != b"GGUF":
        raise ValueError(f"{path.name} is no GGUF file")
    read.at = 4
    version, tensors, values = read.take("I"), read.take("Q"), read.take("Q")
    begin, had, counted = read.at, 0, 0
    for _ in range(values):
        name, kind = read.text(), read.take("I")
        if name.endswith(".block_count"):
            counted = read.at
            (had,) = struct.unpack_from("<I", data, counted)
        read.skip(kind)
    header = bytearray(data[begin : read.at])
    header[counted - begin : counted - begin + 4] = struct.pack("<I", layers)
    found: list[tuple[str, bytes, int]] = []
    for _ in range(tensors):
        name = read.text()
        begin, dimensions = read.at, read.take("I")
        read.at += 8 * dimensions + 4
        found.append((name, bytes(data[begin : read.at]), read.take("Q")))
    base = -(-read.at // ALIGNED) * ALIGNED
    ends = dict(
        zip(sorted(one[2] for one in found), [*sorted(one[2] for one in found)[1:], len(data) - base], strict=True)
    )
    kept = [one for one in found if not _beyond(one[0], layers)]
    infos, body = bytearray(), bytearray()
    for name, shape, offset in kept:
        infos += struct.pack("<Q", len(name.encode())) + name.encode() + shape + struct.pack("<Q", len(body))
        body += data[base + offset : base + ends[offset]]
        body += b"\0" * (-len(body) % ALIGNED)
    front = b"GGUF" + struct.pack("<IQQ", version, len(kept), values) + header + infos
    to.write_bytes(front + b"\0" * (-len(front) % ALIGNED) + body)
    return had


def _beyond(tensor: str, layers: int) -> bool:
    first, _, rest = tensor.partition(".")
    return first == "blk" and int(rest.partition(".")[0]) >= layers
