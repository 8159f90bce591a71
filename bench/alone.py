"""One row in a process of its own: what another row has loaded weighs on no figure, and a crash takes no other along.

`measured` starts `python -m bench.alone MODULE FILE`, which leaves there the section, what was missing, or the error.
"""

import importlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

from bench.measure import ROOT, MissingError, Section

PATIENCE, LEAST = 4, 1_800.0
"""A row is ended after so many times its share, and not before half an hour: it must not hang the rest."""
FAREWELL = 15.0


class RowError(Exception):
    """A row that ended without a result; the text says how."""


def measured(module: str, share: float, least: float = LEAST) -> Section | MissingError:
    """What the module's `run` returns. Raises `RowError` where it raised, crashed or did not end."""
    with tempfile.TemporaryDirectory(prefix="lamina-bench-") as folder:
        path = Path(folder) / "found"
        child = subprocess.Popen([sys.executable, "-m", "bench.alone", module, os.fspath(path)], cwd=ROOT)
        limit = max(PATIENCE * share, least)
        try:
            status = child.wait(limit)
        except subprocess.TimeoutExpired:
            raise RowError(f"not done after {limit:.0f} s") from None
        finally:
            _end(child)
        if not path.exists():
            raise RowError(f"its process ended with {f'signal {-status}' if status < 0 else f'status {status}'}")
        found: Section | MissingError | str = pickle.loads(path.read_bytes())
    if isinstance(found, str):
        raise RowError(found)
    return found


def _end(child: "subprocess.Popen[bytes]") -> None:
    """A terminal's Ctrl-C reaches the child as well; whoever else interrupts has it passed on. Servers that the child
    has started end with it, so it is given time to do that."""
    for farewell in (None, signal.SIGINT, signal.SIGKILL):
        if farewell is not None and child.poll() is None:
            child.send_signal(farewell)
        try:
            child.wait(FAREWELL if farewell else 1)
        except subprocess.TimeoutExpired:
            continue
        return


def main(module: str, path: str) -> int:
    try:
        found: Section | MissingError | str = importlib.import_module(module).run()
    except MissingError as missing:
        found = missing
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # whatever a row or a peer raises is that row's result
        traceback.print_exc()
        found = f"{type(error).__name__}: {str(error).strip() or 'no message'}".splitlines()[0][:300]
    Path(path).write_bytes(pickle.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
