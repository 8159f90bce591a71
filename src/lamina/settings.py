"""Settings: `lamina.toml` and the environment in, one frozen value out. The only place that reads the environment."""

import os
import re
import stat
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from lamina.errors import SettingsError, shown
from lamina.types import Grammar, Lang

FILE = "lamina.toml"
MAX_BYTES = 64 * 1024


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
            values[name] = _inside(folder, values[name], f"{FILE}: {name}")
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
    """The settings file: regular, small, UTF-8, TOML; nothing else is waited for or read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SettingsError(f"{path.name} cannot be read: {error.strerror}", hint="mend it or move it away") from None
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise SettingsError(f"{path.name} is not a regular file", hint="move it away")
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise SettingsError(f"{path.name} has more than {MAX_BYTES:,} bytes", hint="settings are a few lines")
    try:
        return tomllib.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        place = f"byte {error.start} is 0x{raw[error.start]:02x}"
        raise SettingsError(f"{path.name} is not UTF-8: {place}", hint="save it as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path.name} is not TOML: {error}", hint="mend it or move it away") from None


def _inside(folder: Path, name: str, where: str) -> str:
    """A file beside the settings: a repository's own settings must not read files elsewhere into the prompt."""
    path = os.path.realpath(folder / name)
    if not path.startswith(os.path.realpath(folder) + os.sep):
        raise SettingsError(
            f"{where} is {shown(name)}, which leads out of the folder",
            hint="name a file in it, or set the variable LAMINA_IDENTITY",
        )
    return path


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise SettingsError(f"{where} must be text, not {shown(value)}")
    return value


def _number(value: object, where: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**15:
        return value
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,15}", value):
        return int(value)
    raise SettingsError(f"{where} must be a whole number of at least 0, not {shown(value)}", hint="for example 8000")


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
