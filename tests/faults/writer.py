"""A program that writes one file again and again, until it is killed (fault T7).

`python -m tests.faults.writer <root> <planted bug>`: each line it prints names a version that is about to be written.
"""

import os
import sys
from pathlib import Path

from lamina.tools.files import write_atomically

SIZE = 400_000


def version(number: int) -> bytes:
    """A text that shows which version it is, from its first byte to its last."""
    return (f"{number:08d}\n" * (SIZE // 9)).encode()


def in_place(root: str, path: str, data: bytes) -> None:
    """The planted bug: the usual way to write a file."""
    with Path(root, path).open("wb") as file:
        for at in range(0, len(data), 65_536):
            file.write(data[at : at + 65_536])
            file.flush()


def main() -> None:
    root, planted = sys.argv[1], sys.argv[2]
    number = 0
    while True:
        number += 1
        os.write(1, f"{number}\n".encode())
        if planted:
            in_place(root, "文/file.txt", version(number))
        else:
            write_atomically(root, "文/file.txt", version(number))


if __name__ == "__main__":
    main()
