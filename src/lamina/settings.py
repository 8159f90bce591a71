"""Settings: `lamina.toml` and the environment in, one frozen value out. The only place that reads the environment."""

import math
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from lamina.errors import SettingsError, shown
from lamina.types import Grammar, Lang

FILE = "lamina.toml"


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting with its default. `origin` says where each that is not a default came from."""

    identity: str = ""
    """A file that replaces the shipped identity (P6)."""
    budget: int = 8_000
    counter: str = "cjk"
    grammar: Grammar = "openai"
    lang: str = ""
    """What people read: `en` or `zh`; empty follows the locale."""
    prompt_lang: Lang = "en"
    """What the model reads: the headings in the prompt. Never the locale's: the same files give the same bytes."""
    origin: Mapping[str, str] = field(default_factory=dict[str, str])


def load_settings(folder: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Defaults, then `lamina.toml` in `folder`, then `LAMINA_*`. A bad value is an error that names its place."""
    environ = os.environ if environ is None else environ
    folder = folder or Path.cwd()
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for name, value in _from_file(folder / FILE).items():
        if name not in _READERS:
            raise SettingsError(f"{FILE} sets {name!r}, which is no setting", hint=f"known: {', '.join(_READERS)}")
        values[name], origin[name] = _READERS[name](value, f"{FILE}: {name}"), FILE
        if name == "identity" and value:
            values[name] = str(folder / values[name])
    for name, read in _READERS.items():
        variable = f"LAMINA_{name.upper()}"
        if variable in environ:
            values[name], origin[name] = read(environ[variable], variable), variable
    values.setdefault("lang", "")
    if not values["lang"]:
        spoken = environ.get("LC_ALL") or environ.get("LC_MESSAGES") or environ.get("LANG") or ""
        values["lang"] = "zh" if spoken.lower().startswith("zh") else "en"
    return Settings(**values, origin=origin)


def _from_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path.name} cannot be read: {error}", hint="mend it or move it away") from None


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise SettingsError(f"{where} must be text, not {shown(value)}")
    return value


def _number(value: object, where: str) -> int:
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or number < 0 or number != int(number):
        raise SettingsError(
            f"{where} must be a whole number of at least 0, not {shown(value)}", hint="for example 8000"
        )
    return int(number)


def _one_of(*known: str) -> Callable[[object, str], str]:
    def read(value: object, where: str) -> str:
        if value not in known:
            raise SettingsError(f"{where} must be one of {', '.join(filter(None, known))}, not {shown(value)}")
        return str(value)

    return read


_READERS: dict[str, Callable[[object, str], Any]] = {
    "identity": _text,
    "budget": _number,
    "counter": _text,
    "grammar": _one_of(*get_args(Grammar)),
    "lang": _one_of("", "en", "zh"),
    "prompt_lang": _one_of(*get_args(Lang)),
}
