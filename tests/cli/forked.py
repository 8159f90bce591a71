"""`lamina` for a shell: asks the process of `forks.py` for a start with this one's folder, environment and files."""

import json
import os
import socket
import sys


def main() -> int:
    address, *arguments = sys.argv[1:]
    status, told = os.pipe()
    order = {"arguments": arguments, "folder": os.getcwd(), "environ": dict(os.environ), "terminal": False}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as way:
        way.connect(f"\0{address}")
        socket.send_fds(way, [json.dumps(order).encode()], [0, 1, 2, told])
    os.close(told)
    lines = b""
    while piece := os.read(status, 64):
        lines += piece
    code = os.waitstatus_to_exitcode(int(lines.split()[-1]))
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
