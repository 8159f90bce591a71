"""`lamina keys`: who may use the gateway. A key is shown when it is created, and never again."""

import re
import time
from itertools import count
from typing import Annotated, Any

from lamina.cli.call import Call, Commands, Json, argument, check_choice, option, show_json
from lamina.cli.common import format_time, one_line, page, short_id, styled, table
from lamina.cli.say import Say
from lamina.errors import InputError, format_value
from lamina.records import ApiKey

SCOPES = ("chat", "read", "write", "metrics")
DEFAULT_SCOPES = ("chat", "read", "write")
UNIT_SECONDS = {"m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}
LEAST_ID_CHARACTERS = 4
COLOURS = {"usable": "green", "revoked": "red", "expired": "yellow"}
COMMANDS = Commands("keys")


def _to_dict(key: ApiKey) -> dict[str, Any]:
    return {name: getattr(key, name) for name in ApiKey.__slots__} | {"scopes": list(key.scopes), "state": _state(key)}


def _state(key: ApiKey) -> str:
    return "revoked" if key.revoked is not None else "usable" if key.usable(time.time()) else "expired"


@COMMANDS.listing()
async def list_keys(call: Call, as_json: Json = False) -> None:
    async with call.open() as app:
        found = await app.store.keys.list(call.user)
    if as_json:
        show_json([_to_dict(key) for key in found])
    elif not found:
        call.tell_none("cli.keys.none")
    else:
        columns = ("id", "name", "scopes", "limits", "expires", "used", "key_state")
        rows = [_row(call.say, key) for key in found]
        page(table(call.say, columns, rows, yields=("limits", "used", "expires", "scopes")))


def _row(say: Say, key: ApiKey) -> list[Any]:
    state = _state(key)
    limits = [say("cli.keys.rate", number=key.rate)] if key.rate else []
    limits += [say("cli.keys.tokens", number=key.tokens)] if key.tokens else []
    return [
        styled(short_id(key.key_id), "cyan"), one_line(key.name, 24), " ".join(key.scopes), ", ".join(limits) or "—",
        format_time(key.expires), format_time(key.used), styled(say(f"cli.keys.state.{state}"), COLOURS[state]),
    ]  # fmt: skip


@COMMANDS.command("new", examples=True)
async def new(
    call: Call,
    name: Annotated[str | None, option("key_name", "--name")] = None,
    scope: Annotated[list[str] | None, option("scope", "--scope")] = None,
    rate: Annotated[int, option("rate", "--rate", least=0, most=10**9)] = 0,
    tokens: Annotated[int, option("tokens", "--tokens", least=0, most=10**15)] = 0,
    expires: Annotated[str | None, option("expires", "--expires")] = None,
    as_json: Json = False,
) -> None:
    for each in scope or ():
        check_choice("--scope", each, SCOPES)
    scopes = tuple(each for each in SCOPES if each in (scope or DEFAULT_SCOPES))
    until = None if expires is None else time.time() + _seconds(expires)
    if name is not None and not name.strip():
        raise InputError("option.empty", option="--name")
    async with call.open(makes=True) as app:
        taken = {key.name for key in await app.store.keys.list(call.user)}
        named = next(free for number in count(1) if (free := f"key-{number}") not in taken) if name is None else name
        key, text = await app.store.keys.add(
            call.user, named.strip(), scopes=scopes, rate=rate, tokens=tokens, expires=until
        )
    if as_json:
        show_json(_to_dict(key) | {"key": text})
        return
    call.tell("cli.keys.made", id=key.key_id, user=key.owner)
    print(text)


def _seconds(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,6})([mhdw])", text.strip())
    if not found or not int(found[1]):
        raise InputError("option.bad_duration", option="--expires", value=format_value(text))
    return int(found[1]) * UNIT_SECONDS[found[2]]


@COMMANDS.command("revoke")
async def revoke(call: Call, key: Annotated[str, argument("key", "ID")], as_json: Json = False) -> None:
    async with call.open() as app:
        known = [each.key_id for each in await app.store.keys.list(call.user)]
        gone = await app.store.keys.revoke(call.user, _complete_id(key, known))
    if as_json:
        show_json(_to_dict(gone))
    else:
        call.tell("cli.keys.revoked", id=gone.key_id, name=gone.name)


def _complete_id(begin: str, known: list[str]) -> str:
    """The one id that begins so; if there is none, the store says so."""
    found = [key_id for key_id in known if key_id.startswith(begin)] if len(begin) >= LEAST_ID_CHARACTERS else []
    if len(found) > 1:
        raise InputError("key.ambiguous", id=format_value(begin))
    return found[0] if found else begin
