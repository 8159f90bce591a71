"""The command line. Commands are imported when they are used, so that `lamina --help` stays quick."""

import io
import os
import sys


def main(arguments: list[str] | None = None) -> int:
    """Run one command; an error of the user's is shown in two lines, and Ctrl-C in none, however early it comes."""
    try:
        if arguments is None:  # this process is the command, not a program that calls it
            from lamina.settings.environment import hide_environment

            hide_environment()
        return _main(arguments)
    except KeyboardInterrupt:
        return 130


def _main(arguments: list[str] | None) -> int:
    for stream in (sys.stdout, sys.stderr):  # a C locale must not break Chinese output
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison] -- None where the descriptor is closed
        print("error: there is no standard output to write to", file=sys.stderr)
        return 2
    try:
        import typer  # noqa: F401  # pyright: ignore[reportUnusedImport] -- only to see whether the extra is there
    except ImportError:
        print("lamina: the commands need the extra `app`.", file=sys.stderr)
        print("next: in a clone of lamina, run pip install '.[app]'", file=sys.stderr)
        return 1
    from lamina.cli.root import run

    try:
        code = run(_expand_help(sys.argv[1:] if arguments is None else arguments))
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # pyright: ignore[reportUnnecessaryComparison] -- None where the descriptor is closed
                stream.flush()
        return code
    except BrokenPipeError:  # `lamina context | head`
        _drop_output()
        return 141
    except OSError as error:  # the disk of the output is full
        _drop_output()
        what = "the output cannot be written" if error.filename is None else f"{error.filename!r} cannot be used"
        print(f"error: {what}: {error.strerror or error}", file=sys.stderr)
        return 1


def _expand_help(arguments: list[str]) -> list[str]:
    """`-h` is short for `--help`, before a `--` that ends the options."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return ["--help" if word == "-h" else word for word in arguments[:end]] + arguments[end:]


def _drop_output() -> None:
    """What is still buffered goes nowhere, so that Python does not fail once more when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
