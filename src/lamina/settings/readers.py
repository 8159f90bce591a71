"""How each setting is read: from text of the environment or a value of the file to what it means, or an error that
names its place. The settings themselves are defined in `lamina.settings`.
"""

import os
import re
from collections.abc import Callable
from typing import Any, cast, get_args

from lamina.errors import SettingsError, format_value
from lamina.settings.environment import mask_passwords
from lamina.text.messages import Phrase
from lamina.types import Form, Grammar, Key, Lang, Layout, Share

Where = str | Phrase
"""The place of a value, as an error names it: a variable, a line of the file, or a setting that Python code gave."""
HOSTED = ("openai", "anthropic")
"""Providers behind an address: each is a module of its name in `lamina.providers` with a function `provider`, and its
own key is in `NAME_API_KEY`."""


def _read_text(value: object, where: Where) -> str:
    if not isinstance(value, str):
        raise SettingsError("settings.not_text", where=where, value=format_value(value))
    return value


def _read_name(value: object, where: Where) -> str:
    if not _read_text(value, where).strip():
        raise SettingsError("settings.empty", where=where)
    return str(value)


def read_store(value: object, where: Where) -> str:
    """A place whose `~` is the home folder; a slip in a server's address, or one in the form `host=… password=…`, would
    be the name of a file."""
    text = _read_text(value, where)
    meant = text.strip().lower().startswith("postgres") and (":" in text or "@" in text)
    meant = meant or any(word.startswith(("host=", "dbname=", "password=")) for word in text.lower().split())
    if meant and not text.startswith(("postgresql://", "postgres://")):  # not shown: a password may be in it
        raise SettingsError("settings.bad_store_address", where=where)
    prefix = "sqlite:///" if text.startswith("sqlite:///") else ""
    return prefix + os.path.expanduser(text.removeprefix(prefix))


def _read_user(value: object, where: Where) -> str:
    called = _read_text(value, where)
    if called.startswith("@") or not (called.isprintable() or not called):
        raise SettingsError("settings.bad_value", hint="settings.user_names", where=where, value=format_value(called))
    return called


def _number_reader(least: int, hint: str = "") -> Callable[[object, Where], int]:
    def read(value: object, where: Where) -> int:
        digits = isinstance(value, str) and re.fullmatch(r"[0-9]{1,15}", value)
        whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**15
        number = int(value) if digits or whole else -1  # pyright: ignore[reportArgumentType] -- digits or an int
        if number < least:
            too_large = isinstance(value, int) and not isinstance(value, bool) and number < 0 < value
            code = "settings.number_out_of_range" if too_large else "settings.number_too_small"
            raise SettingsError(
                code, hint=hint or _number_hint(value), where=where, least=least, value=format_value(value)
            )
        return number

    return read


def _number_hint(value: object) -> str:
    given = str(value)
    if not re.fullmatch(r"-?[0-9]{1,4000}", given):
        return "settings.write_digits"
    return "settings.smaller_number" if len(given) > 15 and given[0] != "-" else "settings.number_at_least"


def _read_switch(value: object, where: Where) -> bool:
    if isinstance(value, bool):
        return value
    words = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    # as the documentation spells it: a variable has words, a file has booleans
    is_variable = isinstance(where, str) and where.startswith("LAMINA_")
    code = "settings.not_switch" if is_variable else "settings.not_boolean"
    raise SettingsError(code, where=where, value=format_value(value))


def _read_shares(value: object, where: Where) -> dict[str, Share]:
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
                "settings.bad_share", where=where, name=format_value(name), value=format_value(pair)
            ) from None
    return shares


def _read_address(value: object, where: Where) -> str:
    if value == "" or (isinstance(value, str) and value.startswith(("http://", "https://"))):
        return str(value)
    given = format_value(mask_passwords(str(value)))
    raise SettingsError("settings.bad_value", hint="settings.address_form", where=where, value=given)


def _read_bot_token(value: object, where: Where) -> Key | None:
    """The value is never shown, not even when it is wrong."""
    text = value.strip() if isinstance(value, str) else ""
    if value != "" and not re.fullmatch(r"[0-9]{1,20}:[A-Za-z0-9_-]{1,200}", text):
        raise SettingsError("settings.bad_bot_token", where=where)
    return Key(text) if text else None


def _read_person(text: str, where: Where) -> int:
    if not re.fullmatch(r"[0-9]{1,15}", text.strip()):
        raise SettingsError("settings.bad_person", where=where, value=format_value(text))
    return int(text)


def _read_people(value: object, where: Where) -> tuple[int, ...]:
    """`123, 456`."""
    found = (_read_person(piece, where) for piece in re.split(r"[,;\s]+", _read_text(value, where).strip()) if piece)
    return tuple(dict.fromkeys(found))


def _read_named_people(value: object, where: Where) -> dict[int, str]:
    """`123=ann, 456=bob`."""
    names: dict[int, str] = {}
    for piece in filter(str.strip, _read_text(value, where).split(",")):
        number, sign, name = piece.partition("=")
        person = _read_person(number, where)
        if not sign or not name.strip() or person in names:
            raise SettingsError("settings.bad_named_person", where=where, value=format_value(piece))
        names[person] = _read_user(name.strip(), where)
    return names


def _read_folders(value: object, where: Where) -> str:
    """`/data:/srv/models`."""
    for folder in filter(None, _read_text(value, where).split(":")):
        if not folder.startswith("/"):
            raise SettingsError("settings.bad_folder", where=where, value=format_value(folder))
    return str(value)


def _read_embedder(value: object, where: Where) -> str:
    if value in ("embedded", "none") or (isinstance(value, str) and value.startswith(("http://", "https://"))):
        return str(value)
    given = format_value(mask_passwords(str(value)))
    raise SettingsError("settings.bad_value", hint="settings.embedder_choices", where=where, value=given)


def _choice_reader(*known: str) -> Callable[[object, Where], str]:
    def read(value: object, where: Where) -> str:
        if value not in known:
            choices = [one for one in known if one]
            raise SettingsError(
                "settings.bad_value", hint="settings.choices", where=where, value=format_value(value), choices=choices
            )
        return str(value)

    return read


READERS: dict[str, Callable[[object, Where], Any]] = {
    "identity": _read_text,
    "budget": _number_reader(0, "settings.budget_example"),
    "counter": _read_text,
    "model": _read_text,
    "provider": _choice_reader("", "local", *HOSTED, "scripted"),
    "base_url": _read_address,
    "api_key": _read_text,
    "script": _read_text,
    "window": _number_reader(0),
    "pictures": _choice_reader("auto", "yes", "no"),
    "max_tokens": _number_reader(0),
    "steps": _number_reader(1),
    "turn_seconds": _number_reader(1),
    "turn_tokens": _number_reader(0),
    "compaction": _read_switch,
    "learn": _choice_reader("auto", "model", "rules"),
    "tools": _read_switch,
    "bash_sandbox": _choice_reader("auto", "required", "off"),
    "bash_network": _read_switch,
    "bash_readable": _read_folders,
    "bash_memory": _number_reader(64),
    "bash_processes": _number_reader(16),
    "mcp": _read_text,
    "mode": _choice_reader("agent", "plan", "ask"),
    "grammar": _choice_reader(*get_args(Grammar)),
    "lang": _choice_reader("", "en", "zh"),
    "prompt_lang": _choice_reader(*get_args(Lang)),
    "instructions": _read_text,
    "rules": _read_name,
    "max_rule_bytes": _number_reader(1),
    "approvals": _read_text,
    "reinjection_enabled": _read_switch,
    "reinjection_turns": _number_reader(1),
    "instructions_turns": _number_reader(0),
    "rules_turns": _number_reader(0),
    "store": read_store,
    "user": _read_user,
    "workspace": _read_text,
    "context": _read_text,
    "scenario": _read_name,
    "host": _read_text,
    "form": _choice_reader(*get_args(Form)),
    "layout": _choice_reader(*get_args(Layout)),
    "missing_slots": _choice_reader("error", "keep"),
    "memory": _read_switch,
    "memories": _number_reader(0),
    "summaries": _number_reader(0),
    "collected": _number_reader(0),
    "memory_deadline": _number_reader(1),
    "embedder": _read_embedder,
    "embedder_model": _read_text,
    "embedder_dimension": _number_reader(1),
    "embedder_key": _read_text,
    "listen": _read_name,
    "host_names": _read_text,
    "origins": _read_text,
    "public_https": _read_switch,
    "body_limit": _number_reader(1_000),
    "connections": _number_reader(2),
    "rate_limit": _number_reader(0),
    "watchdog": _number_reader(0),
    "token_limit": _number_reader(0),
    "otel": _read_switch,
    "shares": _read_shares,
    "telegram_token": _read_bot_token,
    "telegram_allow": _read_people,
    "telegram_users": _read_named_people,
    "telegram_api": _read_address,
}
