"""Settings: one frozen value, written in Python or read from `lamina.toml` and the environment. The only place that
reads the environment.

Each setting that is read is looked for in five places, the later winning: its default, the file, the file's table of
the channel (`[telegram]`), `LAMINA_NAME`, `LAMINA_TELEGRAM_NAME`. A value that cannot be used is an error that names
its place.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any, Literal

from lamina.errors import SettingsError, format_value
from lamina.portable import BINARY, NONBLOCK
from lamina.settings.environment import process_environment
from lamina.settings.readers import HOSTED, READERS
from lamina.text.messages import Phrase
from lamina.types import Form, Grammar, Key, Lang, Layout, Share

FILE = "lamina.toml"
MAX_FILE_BYTES = 64 * 1024
MAX_LINE_BYTES = 1_000
MAX_RULE_BYTES = 256 * 1024
CHANNELS = ("cli", "telegram", "gateway")
ENVIRONMENT_ONLY = {
    "api_key": "settings.reason.keys",
    "approvals": "settings.reason.approvals",
    "base_url": "settings.reason.words_elsewhere",
    "bash_memory": "settings.reason.command_limits",
    "bash_processes": "settings.reason.command_limits",
    "bash_readable": "settings.reason.other_folders",
    "body_limit": "settings.reason.gateway_limits",
    "connections": "settings.reason.gateway_limits",
    "embedder": "settings.reason.words_elsewhere",
    "embedder_key": "settings.reason.keys",
    "host_names": "settings.reason.host_names",
    "listen": "settings.reason.listen",
    "mcp": "settings.reason.programs",
    "mode": "settings.reason.tools",
    "origins": "settings.reason.origins",
    "otel": "settings.reason.telemetry",
    "provider": "settings.reason.words_elsewhere",
    "public_https": "settings.reason.https",
    "rate_limit": "settings.reason.gateway_limits",
    "script": "settings.reason.model",
    "store": "settings.reason.store",
    "telegram_allow": "settings.reason.people",
    "telegram_api": "settings.reason.words_elsewhere",
    "telegram_token": "settings.reason.keys",
    "telegram_users": "settings.reason.identity",
    "token_limit": "settings.reason.gateway_limits",
    "tools": "settings.reason.tools",
    "user": "settings.reason.identity",
    "watchdog": "settings.reason.watchdog",
}
"""Settings that a `lamina.toml` must not make, and the code of the reason."""
TIGHTENED = {"bash_network": False, "bash_sandbox": "required"}
"""Settings that a `lamina.toml` may make stricter, and nothing else."""
NOT_SETTINGS = ("LAMINA_BENCH_DATA", "LAMINA_BENCH_MEMORIES")
"""Variables of ours that are read elsewhere, outside the product."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting with its default: `App.open(settings=Settings(provider="openai", model="…", api_key="…"))`.

    `Settings.from_environment()`, `Settings.from_file(folder)` and `Settings.load()`, which does both, read them from
    elsewhere. A value that cannot be used is a `SettingsError` that names the setting.
    """

    identity: str = ""
    """A file that replaces the shipped identity."""
    budget: int = 8_000
    """How many tokens a request may have; the model's window limits it further."""
    counter: str = "cjk"
    """How tokens are counted: `cjk` and `seed` estimate; the name of a vocabulary or a `tokenizer.json` counts them."""
    model: str = ""
    """Which model answers. Another one is sent the instructions and rules again."""
    provider: str = ""
    """`local` (the embedded model), `openai` (any compatible server), `anthropic` or `scripted`; empty is `local`."""
    base_url: str = ""
    """Where the provider answers; empty is its own address."""
    api_key: str = field(default="", repr=False)
    """For the provider. Never in a file, and never shown."""
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
    """How many seconds a turn may take, not counting the time spent waiting for a confirmation."""
    turn_tokens: int = 0
    """Tokens of all requests and answers of a turn; 0 for no limit."""
    compaction: bool = True
    """Older messages are folded into a summary when the window is four fifths full."""
    learn: Literal["auto", "model", "rules"] = "auto"
    """Who finds facts and writes summaries: the model or rules; `auto` is the model unless it is the embedded one."""
    tools: bool = False
    """Offers the tools that ship, in the modes `agent` and `plan`; `lamina chat` switches it on."""
    bash_sandbox: Literal["auto", "required", "off"] = "auto"
    """Holds commands of bash to the workspace: `auto` where the system can, `required` runs none where it cannot."""
    bash_network: bool = False
    """Whether confirmed commands can reach the network."""
    bash_readable: str = ""
    """Folders that commands may read besides the workspace and the system's own, with colons between them."""
    bash_memory: int = 4_096
    """Megabytes for one command with everything that it starts."""
    bash_processes: int = 512
    """Processes and threads of one command."""
    mcp: str = ""
    """A file of MCP servers, in the common form `{"mcpServers": …}`."""
    mode: Literal["agent", "plan", "ask"] = "ask"
    """Of new sessions: `agent`, `plan`, or `ask`, which has no tools."""
    grammar: Grammar = "openai"
    """The form of requests that `lamina context` prints; a provider has its own."""
    lang: str = ""
    """What people read: `en` or `zh`; empty follows the locale."""
    prompt_lang: Lang = "en"
    """What the model reads: the headings in the prompt. Never the locale's: the same files give the same bytes."""
    instructions: str = ""
    """A file that replaces the shipped instructions."""
    rules: str = ".lamina/rules.md"
    """The workspace's rules; where there are none, its AGENTS.md files count."""
    max_rule_bytes: int = MAX_RULE_BYTES
    """How long instructions and rules may be, each with what it includes."""
    approvals: str = ""
    """Where approved hashes are kept; empty is the user's state folder."""
    reinjection_enabled: bool = True
    """Whether instructions and rules are repeated so that the model keeps following them."""
    reinjection_turns: int = 15
    """After how many turns they are."""
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
    """Whose prompt is used; while it is `common`, that of the host, where there is one."""
    host: str = ""
    """The app in which the chat runs, such as Excel: it decides which scenario and which skills are used."""
    form: Form = "headed"
    """How groups of layers appear in the prompt: `plain`, `headed` below headings, or `split` into a message each."""
    layout: Layout = "strict"
    """How requests of stored sessions grow: `strict` builds each from the start, `ledger` adds to the one before."""
    missing_slots: Literal["error", "keep"] = "error"
    """Whether a slot of a template that has no value is an error, or stays as it is."""
    memory: bool = True
    """Whether memories and summaries are kept, found and sent. Off: no [3] and no [4], not even collected answers."""
    memories: int = 5
    """At most so many memories are in a request."""
    summaries: int = 5
    """At most so many summaries of other sessions."""
    collected: int = 3
    """At most so many collected answers of other sessions."""
    memory_deadline: int = 150
    """Milliseconds after which a turn continues without memories."""
    embedder: str = "embedded"
    """`embedded`, `none`, or the address of an OpenAI-compatible endpoint, then with model and dimension."""
    embedder_model: str = ""
    """The model of an embedder that is reached over HTTP."""
    embedder_dimension: int = 512
    """How many numbers its vectors have."""
    embedder_key: str = field(default="", repr=False)
    """For the embedder. Never in a file, and never shown."""
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
    watchdog: int = 0
    """Seconds after which a gateway, worker or bot whose event loop is stuck ends itself; 0 for never."""
    otel: bool = False
    """Sends traces and metrics by OpenTelemetry, as its own variables say where; needs the extra `otel`."""
    shares: Mapping[str, Share] = field(default_factory=dict[str, Share])
    """What layers may take of the budget, `memory=0:0.15`, or a table `[shares]` with `memory = [0, 0.15]`."""
    telegram_token: Key | None = field(default=None, repr=False)
    """Of the bot, from @BotFather. Never in a file, and never shown."""
    telegram_allow: tuple[int, ...] = ()
    """Who may talk to the bot, by numeric id; empty lets no one in."""
    telegram_users: Mapping[int, str] = field(default_factory=dict[int, str])
    """The lamina user of a person, `123=ann`, so that one person has one memory in all channels."""
    telegram_api: str = ""
    """Another server of the Bot API, such as a local one; empty is Telegram's own."""
    home: str = ""
    """The folder of `lamina.toml`: files that it names never lead out of it. Not a setting."""
    environ: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """The environment itself, of which programs that are started get a few harmless names. Not a setting."""
    origin: Mapping[str, str] = field(default_factory=dict[str, str])
    """Where each setting that was read came from, by its name. Not a setting."""

    def __post_init__(self) -> None:
        """Values from Python are checked like those from elsewhere; checking what was read changes nothing."""
        for setting in fields(self):
            value = getattr(self, setting.name)
            if setting.name in PLAIN and value != setting.default:
                place = Phrase("settings.place", name=setting.name)
                object.__setattr__(self, setting.name, READERS[setting.name](value, place))

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, *, channel: str = "cli") -> "Settings":
        """From the variables `LAMINA_…` alone; no file is read."""
        return load_settings("", environ, channel)

    @classmethod
    def from_file(cls, folder: "str | os.PathLike[str]" = ".", *, channel: str = "cli") -> "Settings":
        """From the `lamina.toml` in a folder alone; keys and addresses it cannot hold."""
        return load_settings(folder, {}, channel)

    @classmethod
    def load(cls, folder: "str | os.PathLike[str]" = ".", *, channel: str = "cli") -> "Settings":
        """From the file and the environment, which wins: what the command line and `App.open()` do."""
        return load_settings(folder, None, channel)


PLAIN = frozenset(READERS) - {"shares", "telegram_allow", "telegram_token", "telegram_users", "user"}
"""Settings whose value is the same text, number or switch in Python as elsewhere; users are checked where they act."""


def setting_names() -> list[str]:
    return [setting.name for setting in fields(Settings) if setting.name not in ("home", "environ", "origin")]


def load_settings(
    folder: "str | os.PathLike[str]" = ".", environ: Mapping[str, str] | None = None, channel: str = "cli"
) -> Settings:
    """The settings of one channel: from the file of a folder, unless that is empty, and from the environment."""
    folder = os.fspath(folder)
    environ = process_environment() if environ is None else environ
    if channel not in CHANNELS:
        raise SettingsError(
            "settings.unknown_channel", hint="settings.known", name=format_value(channel), known=list(CHANNELS)
        )
    folder = _absolute(folder) if folder else ""
    found = [*(_file_values(folder, channel) if folder else ()), *_environment_values(environ, channel)]
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for name, value, where in found:
        values[name], origin[name] = READERS[name](value, where), _describe_place(where)
        if where.startswith(FILE):
            values[name] = _check_file_value(folder, name, values[name], where)
    if not values.get("lang"):
        values["lang"] = detect_language(environ)
    if not values.get("store"):
        origin.pop("store", None)  # an empty value counts as none
    _fill_defaults(values, environ)
    return Settings(**values, home=folder, environ=dict(environ), origin=origin)


def _check_file_value(folder: str, name: str, value: Any, where: str) -> Any:
    """A value of the file: what a repository may not decide is refused, and a file that it names is in its folder."""
    if name == "model" and value.endswith(".gguf"):
        reason = Phrase("settings.reason.model")
        raise SettingsError(
            "settings.model_is_file", hint="settings.use_variable", where=where, variable="LAMINA_MODEL", reason=reason
        )
    if name in TIGHTENED and value != TIGHTENED[name]:
        spelled = str(value).lower() if isinstance(value, bool) else format_value(value)
        raise SettingsError("settings.only_stricter", where=where, value=spelled, variable=f"LAMINA_{name.upper()}")
    if name == "max_rule_bytes" and value > MAX_RULE_BYTES:
        raise SettingsError("settings.rules_too_large", where=where, value=value, limit=MAX_RULE_BYTES)
    names_file = name in ("identity", "instructions", "context", "workspace")
    if value and (names_file or (name == "counter" and value.endswith(".json"))):
        return _resolve_inside(folder, value, where, itself=name == "workspace")
    return value


def detect_language(environ: Mapping[str, str] | None = None) -> str:
    """The language that the environment asks for, also where the settings cannot be read: the error is shown in it."""
    environ = process_environment() if environ is None else environ
    asked = (environ.get(name) for name in ("LAMINA_LANG", "LC_ALL", "LC_MESSAGES", "LANG"))
    return "zh" if next(filter(None, asked), "").lower().startswith("zh") else "en"


def state_folder(environ: Mapping[str, str] | None = None) -> str:
    """Where lamina keeps a user's own files. Never a relative folder: that would be in the repository."""
    return _user_folder(environ, "XDG_STATE_HOME", ".local", "state")


def default_store(environ: Mapping[str, str] | None = None) -> str:
    """The store that is used where none is named."""
    return os.path.join(_user_folder(environ, "XDG_DATA_HOME", ".local", "share"), "lamina.db")


def default_approvals(environ: Mapping[str, str] | None = None) -> str:
    return os.path.join(state_folder(environ), "approved.json")


def _user_folder(environ: Mapping[str, str] | None, variable: str, *below_home: str) -> str:
    environ = process_environment() if environ is None else environ
    home, named = environ.get("HOME", ""), environ.get(variable, "")
    home = home if os.path.isabs(home) else os.path.expanduser("~")
    return os.path.join(named if os.path.isabs(named) else os.path.join(home, *below_home), "lamina")


def fill_places(settings: Settings) -> Settings:
    """Settings that were written in Python, with the default places of the store and of approvals filled in."""
    environ = settings.environ or None
    store, approvals = settings.store or default_store(environ), settings.approvals or default_approvals(environ)
    return replace(settings, store=store, approvals=approvals)


def _fill_defaults(values: dict[str, Any], environ: Mapping[str, str]) -> None:
    """The user's own store, approvals, key and name, where no setting gives them."""
    values["approvals"] = values.get("approvals") or default_approvals(environ)
    values["store"] = values.get("store") or default_store(environ)
    name = values.get("provider", "")
    if name in HOSTED and not values.get("api_key") and not values.get("base_url"):
        values["api_key"] = environ.get(f"{name.upper()}_API_KEY", "")  # a key is sent to its own provider only
    values["user"] = values.get("user") or environ.get("USER") or environ.get("LOGNAME") or "me"


def _absolute(folder: str) -> str:
    try:
        return os.path.realpath(os.path.join(os.getcwd(), folder))
    except OSError:
        raise SettingsError("settings.current_folder_gone") from None


def _describe_place(where: str) -> str:
    """`lamina.toml [telegram]` for `lamina.toml: telegram.budget`."""
    place, _, name = where.partition(": ")
    table = name.rpartition(".")[0]
    return f"{place} [{table}]" if table else place


def _file_values(folder: str, channel: str) -> list[tuple[str, Any, str]]:
    """What the file says, the channel's table last."""
    data = _read_file(folder)
    tables: dict[str, Any] = {name: data.pop(name) for name in CHANNELS if name in data}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise SettingsError("settings.not_table", where=f"{FILE}: {name}", name=name)
    for name in (name for name, value in data.items() if isinstance(value, dict) and name not in READERS):
        known = [f"[{channel}]" for channel in CHANNELS]
        raise SettingsError("settings.not_channel", hint="settings.known", where=f"{FILE}: [{name}]", known=known)
    found = [(name, value, f"{FILE}: {name}") for name, value in data.items()]
    own = [(name, value, f"{FILE}: {channel}.{name}") for name, value in tables.get(channel, {}).items()]
    for name, _, where in (*found, *((name, 0, f"{FILE}: {t}.{name}") for t in tables for name in tables[t])):
        if name not in READERS:
            raise SettingsError("settings.unknown", hint=_suggest_names(name, list(READERS)), where=where)
        if name in ENVIRONMENT_ONLY:
            raise SettingsError(
                "settings.not_in_file",
                hint="settings.use_variable",
                where=where,
                variable=f"LAMINA_{name.upper()}",
                reason=Phrase(ENVIRONMENT_ONLY[name]),
            )
    return [*found, *own]


def _environment_values(environ: Mapping[str, str], channel: str) -> list[tuple[str, str, str]]:
    """What the environment says, the channel's own last. An unknown variable is an error: it may be a typo."""
    plain = {f"LAMINA_{name.upper()}": name for name in READERS}
    every = {f"LAMINA_{one.upper()}_{name.upper()}": (one, name) for one in CHANNELS for name in READERS}
    for variable in environ:
        if variable.startswith("LAMINA_") and variable not in (*plain, *every, *NOT_SETTINGS):
            raise SettingsError("settings.unknown", hint=_suggest_names(variable, [*plain, *every]), where=variable)
    found = [(name, environ[variable], variable) for variable, name in plain.items() if variable in environ]
    own = [(n, environ[v], v) for v, (one, n) in every.items() if one == channel and v in environ]
    return [*found, *own]


def _suggest_names(name: str, names: list[str]) -> Phrase:
    close = get_close_matches(name, names, 1)
    if close:
        return Phrase("settings.did_you_mean", name=close[0])
    return Phrase("settings.known", known=names[: len(READERS)])


def _read_file(folder: str) -> dict[str, Any]:
    """The settings file: regular, small, UTF-8, TOML; nothing else is waited for, no link is followed out."""
    import tomllib  # noqa: PLC0415 -- settings that are written in Python need none

    path = os.path.join(folder, FILE)
    if os.path.islink(path) and os.path.dirname(os.path.realpath(path)) != folder:
        raise SettingsError("settings.link_out", path=FILE)
    try:
        handle = os.open(path, os.O_RDONLY | NONBLOCK | BINARY)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SettingsError("file.unreadable", hint="settings.fix_file", path=FILE, why=error.strerror) from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise SettingsError("file.not_regular", hint="settings.move_away", path=FILE)
    with os.fdopen(handle, "rb") as file:
        raw = file.read(MAX_FILE_BYTES + 1)
    if len(max(raw.split(b"\n"), key=len)) > MAX_LINE_BYTES:  # the parser's time grows with the square of a key's dots
        raise SettingsError("settings.line_too_long", path=FILE, limit=MAX_LINE_BYTES)
    if len(raw) > MAX_FILE_BYTES:
        raise SettingsError("settings.file_too_large", path=FILE, limit=MAX_FILE_BYTES)
    try:
        return tomllib.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        byte = f"{raw[error.start]:02x}"
        raise SettingsError("file.not_utf8", path=FILE, position=error.start, byte=byte) from None
    except (ValueError, RecursionError) as error:
        raise SettingsError("settings.not_toml", hint="settings.fix_file", path=FILE, why=str(error)) from None


def _resolve_inside(folder: str, name: str, where: str, *, itself: bool = False) -> str:
    """A file beside the settings: a repository's own settings must not read files elsewhere into the prompt."""
    path = "" if "\0" in name else os.path.realpath(os.path.join(folder, name))
    if not path.startswith(os.path.join(folder, "")) and not (itself and path == folder):
        setting = where.rpartition(".")[2].rpartition(" ")[2].upper()
        raise SettingsError("settings.leads_out", where=where, value=format_value(name), variable=f"LAMINA_{setting}")
    return path
