"""How each setting is read: from text of the environment or a value of the file to what it means, or an error that
names its place. Which settings there are stands beside.
"""

import os
import re
from collections.abc import Callable
from typing import Any, cast, get_args

from lamina.errors import SettingsError, shown
from lamina.types import Form, Grammar, Key, Lang, Layout, Share

HOSTED = ("openai", "anthropic")
"""Providers behind an address: each is a module of its name in `lamina.providers` with a function `provider`, and its
own key is in `NAME_API_KEY`."""


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise SettingsError(f"{where} must be text, not {shown(value)}", hint="put it in quotation marks")
    return value


def _name(value: object, where: str) -> str:
    if not _text(value, where).strip():
        raise SettingsError(f"{where} is empty", hint="name a file, or take the setting away")
    return str(value)


def read_store(value: object, where: str) -> str:
    """A place whose `~` is the home folder; a slip in a server's address would be the name of a file."""
    text = _text(value, where)
    if text.startswith(("postgres:", "postgresql:")) and "://" not in text:
        what = f"{where} is no address: {text.partition(':')[0]}: stands there without //"  # a password may follow
        raise SettingsError(what, hint="postgresql://user:password@host:5432/name")
    prefix = "sqlite:///" if text.startswith("sqlite:///") else ""
    return prefix + os.path.expanduser(text.removeprefix(prefix))


def _user(value: object, where: str) -> str:
    called = _text(value, where)
    if called.startswith("@") or not (called.isprintable() or not called):
        raise SettingsError(f"{where} cannot be {shown(called)}", hint="a name in letters; those with @ are reserved")
    return called


def _number(least: int) -> Callable[[object, str], int]:
    def read(value: object, where: str) -> int:
        digits = isinstance(value, str) and re.fullmatch(r"[0-9]{1,15}", value)
        whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**15
        number = int(value) if digits or whole else -1  # pyright: ignore[reportArgumentType] -- digits or an int
        if number < least:
            raise SettingsError(
                f"{where} must be a whole number of at least {least} and below 10^15, not {shown(value)}"
                if isinstance(value, int) and number < 0 < value
                else f"{where} must be a whole number of at least {least}, not {shown(value)}",
                hint="for example 8000" if where.lower().endswith("budget") else "write it in digits",
            )
        return number

    return read


def _switch(value: object, where: str) -> bool:
    if isinstance(value, bool):
        return value
    words = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise SettingsError(f"{where} must be true or false, not {shown(value)}", hint="true or false")


def _shares(value: object, where: str) -> dict[str, Share]:
    """`memory=0:0.15, history=0.3:1`, or a table of pairs; which names there are the assembly knows."""
    found: dict[str, Any] = {}
    if isinstance(value, str):
        for piece in filter(str.strip, value.split(",")):
            name, _, pair = piece.partition("=")
            found[name.strip()] = pair.split(":")
    else:
        found = cast(dict[str, Any], value) if isinstance(value, dict) else {"": value}
    shares: dict[str, Share] = {}
    for name, pair in found.items():
        try:
            least, most = pair
            shares[name] = Share(float(least), float(most))
        except (TypeError, ValueError):
            raise SettingsError(
                f"{where}: the share of {shown(name)} is {shown(pair)}", hint="two fractions, such as memory=0:0.15"
            ) from None
    return shares


def _address(value: object, where: str) -> str:
    if value == "" or (isinstance(value, str) and value.startswith(("http://", "https://"))):
        return str(value)
    raise SettingsError(f"{where} cannot be {shown(value)}", hint="an address, such as http://host:port/v1")


def _token(value: object, where: str) -> Key | None:
    """The value is never shown, not even when it is wrong."""
    text = value.strip() if isinstance(value, str) else ""
    if value != "" and not re.fullmatch(r"[0-9]{1,20}:[A-Za-z0-9_-]{1,200}", text):
        raise SettingsError(f"{where} is no token of a bot", hint="copy it from @BotFather: digits, a colon, letters")
    return Key(text) if text else None


def _person(text: str, where: str) -> int:
    if not re.fullmatch(r"[0-9]{1,15}", text.strip()):
        raise SettingsError(
            f"{where} holds {shown(text)}, which is no numeric id",
            hint="numbers such as 123456789; the bot tells strangers theirs",
        )
    return int(text)


def _people(value: object, where: str) -> tuple[int, ...]:
    """`123, 456`."""
    found = (_person(piece, where) for piece in re.split(r"[,;\s]+", _text(value, where).strip()) if piece)
    return tuple(dict.fromkeys(found))


def _named_people(value: object, where: str) -> dict[int, str]:
    """`123=ann, 456=bob`."""
    names: dict[int, str] = {}
    for piece in filter(str.strip, _text(value, where).split(",")):
        number, sign, name = piece.partition("=")
        person = _person(number, where)
        if not sign or not name.strip() or person in names:
            raise SettingsError(f"{where} holds {shown(piece)}", hint="one name for each id, such as 123=ann,456=bob")
        names[person] = _user(name.strip(), where)
    return names


def _embedder(value: object, where: str) -> str:
    if value in ("embedded", "none") or (isinstance(value, str) and value.startswith(("http://", "https://"))):
        return str(value)
    raise SettingsError(f"{where} cannot be {shown(value)}", hint="embedded, none, or http://host:port/v1")


def _one_of(*known: str) -> Callable[[object, str], str]:
    def read(value: object, where: str) -> str:
        if value not in known:
            raise SettingsError(f"{where} cannot be {shown(value)}", hint=f"one of {', '.join(filter(None, known))}")
        return str(value)

    return read


READERS: dict[str, Callable[[object, str], Any]] = {
    "identity": _text,
    "budget": _number(0),
    "counter": _text,
    "model": _text,
    "provider": _one_of("", "local", *HOSTED, "scripted"),
    "base_url": _address,
    "api_key": _text,
    "script": _text,
    "window": _number(0),
    "pictures": _one_of("auto", "yes", "no"),
    "max_tokens": _number(0),
    "steps": _number(1),
    "turn_seconds": _number(1),
    "turn_tokens": _number(0),
    "compaction": _switch,
    "learn": _one_of("auto", "model", "rules"),
    "tools": _switch,
    "mcp": _text,
    "mode": _one_of("agent", "plan", "ask"),
    "grammar": _one_of(*get_args(Grammar)),
    "lang": _one_of("", "en", "zh"),
    "prompt_lang": _one_of(*get_args(Lang)),
    "instructions": _text,
    "rules": _name,
    "max_rule_bytes": _number(1),
    "approvals": _text,
    "reinjection_enabled": _switch,
    "reinjection_turns": _number(1),
    "instructions_turns": _number(0),
    "rules_turns": _number(0),
    "store": read_store,
    "user": _user,
    "workspace": _text,
    "context": _text,
    "scenario": _name,
    "host": _text,
    "form": _one_of(*get_args(Form)),
    "layout": _one_of(*get_args(Layout)),
    "missing_slots": _one_of("error", "keep"),
    "memory": _switch,
    "memories": _number(0),
    "summaries": _number(0),
    "collected": _number(0),
    "memory_deadline": _number(1),
    "embedder": _embedder,
    "embedder_model": _text,
    "embedder_dimension": _number(1),
    "embedder_key": _text,
    "listen": _name,
    "host_names": _text,
    "origins": _text,
    "public_https": _switch,
    "body_limit": _number(1_000),
    "connections": _number(2),
    "rate_limit": _number(0),
    "token_limit": _number(0),
    "otel": _switch,
    "shares": _shares,
    "telegram_token": _token,
    "telegram_allow": _people,
    "telegram_users": _named_people,
    "telegram_api": _address,
}
