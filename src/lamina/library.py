"""The doors of assembly for those who use it as a library: where they give no mark, one is made here.

A mark tells lamina's own tags from text that imitates them, so none is built in. Assembly itself is pure and takes the
mark that it is given; a `Window` and a `Ledger` get one each, `assemble` gets one for each owner as long as the process
lives. To have the same bytes in another process, pass your own.
"""

import os
from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from lamina.assembly import context, ledger, window
from lamina.assembly.fences import session_mark

F = TypeVar("F", bound=Callable[..., Any])


def new_mark() -> str:
    return os.urandom(4).hex()


@cache
def _process_secret() -> bytes:
    return os.urandom(16)


def _owner_mark(settings: Mapping[str, Any]) -> str:
    """The same for all requests of an owner, so that a provider's cache holds: `assemble` knows no session."""
    return session_mark(_process_secret(), str(settings.get("owner") or ""))


def _with_mark(function: F, make: Callable[[Mapping[str, Any]], str] = lambda settings: new_mark()) -> F:
    @wraps(function)
    def marked(*arguments: object, **settings: object) -> Any:
        mark = settings.get("mark")
        return function(*arguments, **{**settings, "mark": make(settings) if mark is None else mark})

    return cast(F, marked)


assemble = _with_mark(context.assemble, _owner_mark)


class Window(window.Window):
    __doc__ = window.Window.__doc__
    if not TYPE_CHECKING:  # type checkers see the signature of the window itself
        __init__ = _with_mark(window.Window.__init__)


class Ledger(ledger.Ledger):
    __doc__ = ledger.Ledger.__doc__
    if not TYPE_CHECKING:  # the same
        __init__ = _with_mark(ledger.Ledger.__init__)
