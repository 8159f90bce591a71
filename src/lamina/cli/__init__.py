"""The command line. Commands are imported when they are used, so that `lamina --help` stays quick."""

import io
import os
import sys


def main(arguments: list[str] | None = None) -> int:
    """Run one command; an error of the user's is shown in two lines, without a traceback."""
    for stream in (sys.stdout, sys.stderr):  # a C locale must not break Chinese output
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")
    try:
        import typer  # noqa: F401  # pyright: ignore[reportUnusedImport] -- only to see whether the extra is there
    except ImportError:
        print("lamina: the commands need the extra `app`.\nnext: pip install 'lamina[app]'", file=sys.stderr)
        return 1
    from lamina.cli.root import run

    try:
        return run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `lamina context | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
