"""Settings: `lamina.toml` and the environment in, one frozen value out. The only place that reads the environment.

Each setting is looked for in five places, the later winning: its default, the file, the file's table of the channel
(`[telegram]`), `LAMINA_NAME`, `LAMINA_TELEGRAM_NAME`. A value that cannot be used is an error that names its place.
"""

import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from lamina.errors import SettingsError, shown
from lamina.settings.readers import HOSTED, READERS
from lamina.types import Form, Grammar, Key, Lang, Layout, Share

FILE = "lamina.toml"
MAX_BYTES = 64 * 1024
MAX_LINE = 1_000
MAX_RULE_BYTES = 256 * 1024
CHANNELS = ("cli", "telegram", "gateway")
ENVIRONMENT_ONLY = {
    "api_key": "no key lies in a repository",
    "approvals": "no folder approves itself",
    "base_url": "no folder sends your words elsewhere",
    "body_limit": "no folder opens the gateway wider",
    "connections": "no folder opens the gateway wider",
    "embedder": "no folder sends your words elsewhere",
    "embedder_key": "no key lies in a repository",
    "host_names": "no folder lends the gateway its name",
    "listen": "no folder opens a door of yours",
    "mcp": "no folder starts programs",
    "mode": "no folder gives itself tools",
    "origins": "no folder lets pages of others in",
    "otel": "no folder sends what you do elsewhere",
    "provider": "no folder sends your words elsewhere",
    "public_https": "no folder says how people come to you",
    "rate_limit": "no folder opens the gateway wider",
    "script": "no folder speaks for a model",
    "store": "no folder opens another's store",
    "telegram_allow": "no folder lets people in",
    "telegram_api": "no folder sends your words elsewhere",
    "telegram_token": "no key lies in a repository",
    "telegram_users": "no folder says who somebody is",
    "token_limit": "no folder opens the gateway wider",
    "tools": "no folder gives itself tools",
    "user": "no folder says who you are",
}
"""Settings that a `lamina.toml` must not make, and why."""
NOT_SETTINGS = ("LAMINA_BENCH_DATA", "LAMINA_BENCH_MEMORIES")
"""Variables of ours that are read elsewhere, outside the product."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting with its default. `origin` says where each that is not a default came from."""

    identity: str = ""
    """A file that replaces the shipped identity."""
    budget: int = 8_000
    counter: str = "cjk"
    model: str = ""
    """Which model answers. Another one is told everything anew."""
    provider: str = ""
    """`local` (the embedded model), `openai` (any compatible server), `anthropic` or `scripted`; empty for none."""
    base_url: str = ""
    """Where the provider answers; empty is its own address."""
    api_key: str = field(default="", repr=False)
    """Only from the environment, and never shown."""
    script: str = ""
    """The file that the scripted provider plays."""
    window: int = 0
    """How many tokens the model takes; 0 asks the provider, where it knows."""
    pictures: Literal["auto", "yes", "no"] = "auto"
    """Whether the model sees pictures; `auto` asks the provider, where it knows."""
    max_tokens: int = 0
    """How long one answer may be; 0 leaves it to the provider."""
    steps: int = 50
    """Requests of one turn, each tool call leading to another."""
    turn_seconds: int = 600
    turn_tokens: int = 0
    """Of all requests and answers of a turn; 0 for no limit."""
    compaction: bool = True
    """Older messages are folded into a summary when the window is four fifths full."""
    learn: Literal["auto", "model", "rules"] = "auto"
    """Who finds facts and writes summaries: the model or rules; `auto` is the model unless it is the embedded one."""
    tools: bool = False
    """Offers the tools that ship, in the modes `agent` and `plan`; `lamina chat` switches it on."""
    mcp: str = ""
    """A file of MCP servers, in the common form `{"mcpServers": …}`."""
    mode: Literal["agent", "plan", "ask"] = "ask"
    """Of new sessions."""
    grammar: Grammar = "openai"
    lang: str = ""
    """What people read: `en` or `zh`; empty follows the locale."""
    prompt_lang: Lang = "en"
    """What the model reads: the headings in the prompt. Never the locale's: the same files give the same bytes."""
    instructions: str = ""
    """A file that replaces the shipped instructions."""
    rules: str = ".lamina/rules.md"
    """The workspace's rules; where there are none, its AGENTS.md files count."""
    max_rule_bytes: int = MAX_RULE_BYTES
    approvals: str = ""
    """Where approved hashes are kept; empty is the user's state folder."""
    reinjection_enabled: bool = True
    reinjection_turns: int = 15
    instructions_turns: int = 0
    """A cadence for the instructions alone; 0 is `reinjection_turns`."""
    rules_turns: int = 0
    """A cadence for the rules alone; 0 is `reinjection_turns`."""
    store: str = ""
    """A file, or `postgresql://…`; empty is `lamina.db` in the user's data folder."""
    user: str = ""
    """Whose chats the commands show; empty is the name of the account."""
    workspace: str = ""
    """A folder whose instructions and rules are in every chat; empty for none."""
    context: str = ""
    """A file whose text is the layer `context` of every turn: what a project is about just now."""
    scenario: str = "common"
    host: str = ""
    """The app in which the chat runs, such as Excel: it decides which skills speak."""
    form: Form = "headed"
    layout: Layout = "strict"
    """How requests of stored sessions grow: `strict` builds each anew, `ledger` adds to the one before."""
    missing_slots: Literal["error", "keep"] = "error"
    memory: bool = True
    """Switches [3] and [4] off altogether."""
    memories: int = 5
    summaries: int = 5
    collected: int = 3
    memory_deadline: int = 150
    """Milliseconds after which a turn goes on without memories."""
    embedder: str = "embedded"
    """`embedded`, `none`, or the address of an OpenAI-compatible endpoint, then with model and dimension."""
    embedder_model: str = ""
    embedder_dimension: int = 512
    embedder_key: str = field(default="", repr=False)
    """Only from the environment, and never shown."""
    listen: str = "127.0.0.1:8765"
    """Where the gateway answers. Anything but this machine's own addresses needs a key in the store."""
    host_names: str = ""
    """Names under which people reach the gateway, with commas between them; others in `Host` are refused."""
    origins: str = ""
    """Pages of others that may call the gateway with a key, as `https://host`, with commas between them."""
    public_https: bool = False
    """Whether people reach the gateway by https, through a proxy: then its cookie is only sent that way."""
    body_limit: int = 20_000_000
    """Bytes of a request's body."""
    connections: int = 1_000
    """Open at the gateway at one time; from one address, such as a proxy's, half of them."""
    rate_limit: int = 0
    """Requests a minute of a key that has no limit of its own; 0 for none."""
    token_limit: int = 0
    """Tokens a day of a key that has no limit of its own; 0 for none."""
    otel: bool = False
    """Sends traces and metrics by OpenTelemetry, as its own variables say where; needs the extra `otel`."""
    shares: Mapping[str, Share] = field(default_factory=dict[str, Share])
    """What layers may take of the budget, `memory=0:0.15`, or a table `[shares]` with `memory = [0, 0.15]`."""
    telegram_token: Key | None = field(default=None, repr=False)
    """Of the bot, from @BotFather; only from the environment, and never shown."""
    telegram_allow: tuple[int, ...] = ()
    """Who may talk to the bot, by numeric id; empty lets nobody in."""
    telegram_users: Mapping[int, str] = field(default_factory=dict[int, str])
    """Whose chats somebody's are, `123=ann`: so one person has one memory in all channels."""
    telegram_api: str = ""
    """Another server of the Bot API, such as a local one; empty is Telegram's own."""
    home: str = ""
    """The folder of `lamina.toml`: files that it names never lead out of it. Not a setting."""
    environ: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """The environment itself, of which programs that are started get a few harmless names. Not a setting."""
    origin: Mapping[str, str] = field(default_factory=dict[str, str])


def setting_names() -> list[str]:
    return [setting.name for setting in fields(Settings) if setting.name not in ("home", "environ", "origin")]


def load_settings(
    folder: Path | None = None, environ: Mapping[str, str] | None = None, channel: str = "cli"
) -> Settings:
    """The settings of one channel, started in `folder`."""
    environ = os.environ if environ is None else environ
    folder = folder or _here()
    if channel not in CHANNELS:
        raise SettingsError(f"no channel is named {shown(channel)}", hint=f"known: {', '.join(CHANNELS)}")
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for name, value, where in [*_file_values(folder, channel), *_variables(environ, channel)]:
        values[name], origin[name] = READERS[name](value, where), _place(where)
        if where.startswith(FILE) and name == "model" and str(value).endswith(".gguf"):
            raise SettingsError(f"{where} names a file", hint="set LAMINA_MODEL: no folder speaks for a model")
        if where.startswith(FILE) and name == "workspace" and value:
            values[name] = _inside(folder, values[name], where, itself=True)
        named = name in ("identity", "instructions", "context") or (name == "counter" and str(value).endswith(".json"))
        if where.startswith(FILE) and named and value:
            values[name] = _inside(folder, values[name], where)
        if where.startswith(FILE) and name == "max_rule_bytes" and values[name] > MAX_RULE_BYTES:
            raise SettingsError(
                f"{where} is {values[name]:,}, more than {MAX_RULE_BYTES:,}",
                hint="a file may lower it; the variable LAMINA_MAX_RULE_BYTES raises it",
            )
    if not values.get("lang"):
        values["lang"] = spoken(environ)
    if not values.get("store"):
        origin.pop("store", None)  # empty is as if nobody had set it
    _fill_places(values, environ)
    return Settings(**values, home=os.path.realpath(folder), environ=dict(environ), origin=origin)


def spoken(environ: Mapping[str, str] | None = None) -> str:
    """The language that the environment asks for, also where the settings cannot be read: somebody is to hear why."""
    environ = os.environ if environ is None else environ
    asked = (environ.get(name) for name in ("LAMINA_LANG", "LC_ALL", "LC_MESSAGES", "LANG"))
    return "zh" if next(filter(None, asked), "").lower().startswith("zh") else "en"


def state_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Where lamina keeps things of the user's own. Never a relative folder: that would be the repository's."""
    environ = os.environ if environ is None else environ
    home, state = environ.get("HOME", ""), environ.get("XDG_STATE_HOME", "")
    home = home if os.path.isabs(home) else os.path.expanduser("~")
    return Path(state if os.path.isabs(state) else os.path.join(home, ".local", "state")) / "lamina"


def _fill_places(values: dict[str, Any], environ: Mapping[str, str]) -> None:
    """Where things of the user's own lie, unless a setting says so."""
    if not values.get("approvals"):
        values["approvals"] = str(state_folder(environ) / "approved.json")
    if not values.get("store"):
        home, data = environ.get("HOME", ""), environ.get("XDG_DATA_HOME", "")
        home = home if os.path.isabs(home) else os.path.expanduser("~")
        data = data if os.path.isabs(data) else os.path.join(home, ".local", "share")
        values["store"] = os.path.join(data, "lamina", "lamina.db")
    name = values.get("provider", "")
    if name in HOSTED and not values.get("api_key") and not values.get("base_url"):
        values["api_key"] = environ.get(f"{name.upper()}_API_KEY", "")  # a key goes to whom it is for, and nowhere else
    values["user"] = values.get("user") or environ.get("USER") or environ.get("LOGNAME") or "me"


def _here() -> Path:
    try:
        return Path.cwd()
    except OSError:
        raise SettingsError("the folder you are in is gone", hint="change into one that is there") from None


def _place(where: str) -> str:
    """`lamina.toml [telegram]` for `lamina.toml: telegram.budget`."""
    place, _, name = where.partition(": ")
    table = name.rpartition(".")[0]
    return f"{place} [{table}]" if table else place


def _file_values(folder: Path, channel: str) -> list[tuple[str, Any, str]]:
    """What the file says, the channel's table last."""
    data = _from_file(folder / FILE)
    tables: dict[str, Any] = {name: data.pop(name) for name in CHANNELS if name in data}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise SettingsError(f"{FILE}: {name} must be a table", hint=f"[{name}] and settings below it")
    for name in (name for name, value in data.items() if isinstance(value, dict) and name not in READERS):
        raise SettingsError(f"{FILE}: [{name}] is no channel", hint=f"known: {', '.join(f'[{c}]' for c in CHANNELS)}")
    found = [(name, value, f"{FILE}: {name}") for name, value in data.items()]
    own = [(name, value, f"{FILE}: {channel}.{name}") for name, value in tables.get(channel, {}).items()]
    for name, _, where in (*found, *((name, 0, f"{FILE}: {t}.{name}") for t in tables for name in tables[t])):
        if name not in READERS:
            raise SettingsError(f"{where} is no setting", hint=_known(name, list(READERS)))
        if name in ENVIRONMENT_ONLY:
            raise SettingsError(
                f"{where} may not be set here", hint=f"set LAMINA_{name.upper()}: {ENVIRONMENT_ONLY[name]}"
            )
    return [*found, *own]


def _variables(environ: Mapping[str, str], channel: str) -> list[tuple[str, str, str]]:
    """What the environment says, the channel's own variables last. A variable that means nothing is a slip."""
    plain = {f"LAMINA_{name.upper()}": name for name in READERS}
    every = {f"LAMINA_{one.upper()}_{name.upper()}": (one, name) for one in CHANNELS for name in READERS}
    for variable in environ:
        if variable.startswith("LAMINA_") and variable not in (*plain, *every, *NOT_SETTINGS):
            raise SettingsError(f"{variable} is no setting", hint=_known(variable, [*plain, *every]))
    found = [(name, environ[variable], variable) for variable, name in plain.items() if variable in environ]
    own = [(n, environ[v], v) for v, (one, n) in every.items() if one == channel and v in environ]
    return [*found, *own]


def _known(name: str, names: list[str]) -> str:
    close = get_close_matches(name, names, 1)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(names[: len(READERS)])}"


def _from_file(path: Path) -> dict[str, Any]:
    """The settings file: regular, small, UTF-8, TOML; nothing else is waited for, no link is followed out."""
    folder = os.path.realpath(path.parent)
    if path.is_symlink() and os.path.dirname(os.path.realpath(path)) != folder:
        raise SettingsError(f"{path.name} is a link out of its folder", hint="put a file in its place")
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SettingsError(f"{path.name} cannot be read: {error.strerror}", hint="mend it or move it away") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise SettingsError(f"{path.name} is not a regular file", hint="move it away")
    with os.fdopen(handle, "rb") as file:
        raw = file.read(MAX_BYTES + 1)
    if len(max(raw.split(b"\n"), key=len)) > MAX_LINE:  # the parser's time grows with the square of a key's dots
        raise SettingsError(f"{path.name} has a line of more than {MAX_LINE:,} bytes", hint="settings are short lines")
    if len(raw) > MAX_BYTES:
        raise SettingsError(f"{path.name} has more than {MAX_BYTES:,} bytes", hint="settings are a few lines")
    try:
        return tomllib.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        place = f"byte {error.start} is 0x{raw[error.start]:02x}"
        raise SettingsError(f"{path.name} is not UTF-8: {place}", hint="save it as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path.name} is not TOML: {error}", hint="mend it or move it away") from None


def _inside(folder: Path, name: str, where: str, *, itself: bool = False) -> str:
    """A file beside the settings: a repository's own settings must not read files elsewhere into the prompt."""
    path = "" if "\0" in name else os.path.realpath(folder / name)
    home = os.path.realpath(folder)
    if not path.startswith(os.path.join(home, "")) and not (itself and path == home):
        setting = where.rpartition(".")[2].rpartition(" ")[2].upper()
        raise SettingsError(
            f"{where} is {shown(name)}, which leads out of the folder",
            hint=f"name a file in it, or set the variable LAMINA_{setting}",
        )
    return path
