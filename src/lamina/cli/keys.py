"""`lamina keys`: who may come in by the gateway. A key is shown when it is made, and never again."""

import re
import time
from itertools import count
from typing import Annotated, Any

import typer

from lamina.cli.common import (
    SHORT,
    Say,
    argument,
    chosen,
    day,
    flag,
    one_line,
    only_below,
    opened,
    option,
    page,
    run,
    show_json,
    styled,
    table,
    tell,
    tell_none,
)
from lamina.errors import InputError, shown
from lamina.records import ApiKey

SCOPES = ("chat", "read", "write", "metrics")
USUAL = ("chat", "read", "write")
SPANS = {"m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}
LEAST = 4
COLOURS = {"usable": "green", "revoked": "red", "expired": "yellow"}


def add_keys(app: typer.Typer, say: Say) -> None:
    keys = typer.Typer(no_args_is_help=False, invoke_without_command=True)
    keys.callback()(_lister(say))
    keys.command("list", hidden=True)(_lister(say))
    keys.command("new", help=say["keys.new"], epilog=say["keys.new.examples"])(_maker(say))
    keys.command("revoke", help=say["keys.revoke"])(_revoker(say))
    app.add_typer(keys, name="keys", help=say["keys.help"])


def _plain(key: ApiKey) -> dict[str, Any]:
    return {name: getattr(key, name) for name in ApiKey.__slots__} | {"scopes": list(key.scopes), "state": _state(key)}


def _state(key: ApiKey) -> str:
    return "revoked" if key.revoked is not None else "usable" if key.usable(time.time()) else "expired"


def _lister(say: Say) -> Any:
    def keys(
        context: typer.Context,
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
        as_json: Annotated[bool, flag(say, "as_json", "--json")] = False,
    ) -> None:
        if not only_below(context, "keys", bool(user or store) or as_json):
            return
        settings = chosen(user, store)

        async def read() -> list[ApiKey]:
            async with opened(settings) as app:
                return list(await app.store.keys.list(settings.user))

        found = run(read())
        if as_json:
            show_json([_plain(key) for key in found])
        elif not found:
            tell_none(say, "keys.none", settings)
        else:
            columns = ("id", "name", "scopes", "limits", "expires", "used", "key_state")
            yields = ("limits", "used", "expires", "scopes")
            page(table(say, columns, [_row(say, key) for key in found], yields=yields))

    return keys


def _row(say: Say, key: ApiKey) -> list[Any]:
    state = _state(key)
    limits = [say["keys.rate"].format(number=key.rate)] if key.rate else []
    limits += [say["keys.tokens"].format(number=key.tokens)] if key.tokens else []
    said = styled(say[f"keys.state.{state}"], COLOURS[state])
    return [
        styled(key.key_id[:SHORT], "cyan"), one_line(key.name, 24), " ".join(key.scopes), ", ".join(limits) or "—",
        day(key.expires), day(key.used), said,
    ]  # fmt: skip


def _maker(say: Say) -> Any:
    def new(
        name: Annotated[str | None, option(say, "key_name", "--name")] = None,
        scope: Annotated[list[str] | None, option(say, "scope", "--scope")] = None,
        rate: Annotated[int, option(say, "rate", "--rate", min=0, max=10**9)] = 0,
        tokens: Annotated[int, option(say, "tokens", "--tokens", min=0, max=10**15)] = 0,
        expires: Annotated[str | None, option(say, "expires", "--expires")] = None,
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
        as_json: Annotated[bool, flag(say, "as_json", "--json")] = False,
    ) -> None:
        settings = chosen(user, store)
        scopes = _scopes(scope or USUAL)
        until = None if expires is None else time.time() + _span(expires)
        if name is not None and not name.strip():
            raise InputError("--name is empty", hint="say what the key is for")

        async def make() -> tuple[ApiKey, str]:
            async with opened(settings, makes=True) as app:
                named = _free({key.name for key in await app.store.keys.list(settings.user)}) if name is None else name
                return await app.store.keys.add(
                    settings.user, named.strip(), scopes=scopes, rate=rate, tokens=tokens, expires=until
                )

        key, text = run(make())
        if as_json:
            show_json(_plain(key) | {"key": text})
            return
        tell(say, "keys.made", id=key.key_id, user=key.owner)
        print(text)

    return new


def _free(taken: set[str]) -> str:
    """A name for a key that nobody named."""
    return next(name for number in count(1) if (name := f"key-{number}") not in taken)


def _scopes(given: Any) -> tuple[str, ...]:
    for name in given:
        if name not in SCOPES:
            raise InputError(f"--scope has no choice {shown(name)}", hint=f"choose of {', '.join(SCOPES)}")
    return tuple(name for name in SCOPES if name in given)


def _span(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,6})([mhdw])", text.strip())
    if not found or not int(found[1]):
        raise InputError(f"--expires cannot be {shown(text)}", hint="a number and m, h, d or w: 12h, 30d")
    return int(found[1]) * SPANS[found[2]]


def _revoker(say: Say) -> Any:
    def revoke(
        key: Annotated[str, argument(say, "key", "ID")],
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
        as_json: Annotated[bool, flag(say, "as_json", "--json")] = False,
    ) -> None:
        settings = chosen(user, store)

        async def change() -> ApiKey:
            async with opened(settings) as app:
                known = [each.key_id for each in await app.store.keys.list(settings.user)]
                return await app.store.keys.revoke(settings.user, _whole(key, known))

        gone = run(change())
        if as_json:
            show_json(_plain(gone))
        else:
            tell(say, "keys.revoked", id=gone.key_id, name=gone.name)

    return revoke


def _whole(begin: str, known: list[str]) -> str:
    """The one id that begins so; of one that is not there the store says it."""
    found = [key_id for key_id in known if key_id.startswith(begin)] if len(begin) >= LEAST else []
    if len(found) > 1:
        raise InputError(f"more than one key begins with {shown(begin)}", hint="give more characters of the id")
    return found[0] if found else begin
