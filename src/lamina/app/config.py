"""What the settings and files of a user name, made ready: provider, tools, counter, instruction files, local token.

Also a context from files alone, as `lamina context` shows it. Everything here reads; what is written is the state of a
session's file and the token of this machine's own user, which opens the page here: it is in the user's state folder,
readable by that user alone, one per store and user, and only counts where the gateway listens on this machine alone.
"""

import json
import os
import re
import shlex
import stat
import time
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, cast

from lamina.assembly.budget import Budget
from lamina.assembly.fences import session_mark
from lamina.assembly.history import check_message, fields_of
from lamina.assembly.pieces import PromptStyle, mode_hint
from lamina.assembly.request import assemble, encode
from lamina.assembly.tokens import estimate_message_tokens, estimate_tokens
from lamina.errors import InputError, InstructionsError, LayerError, SettingsError, format_value
from lamina.portable import BINARY, HELD, NOFOLLOW, NONBLOCK, is_private, take_lock
from lamina.ports import Complete, Count, Embedder, Encode, Provider
from lamina.prompts.approvals import Approvals
from lamina.prompts.injection import InjectionSettings, InjectionState, SeenSource, SystemPromptManager
from lamina.prompts.instructions import InstructionFiles, LoadedInstructions
from lamina.prompts.workspace import FileText, Workspace
from lamina.providers.tokenizers import VOCABULARIES, exact_counter
from lamina.sandbox.process import CAN_END_FAMILY
from lamina.sandbox.sandbox import Limits, Sandbox
from lamina.settings import FILE, Settings, state_folder
from lamina.shell.policy import decide
from lamina.store.keys import MARK as KEY_PREFIX
from lamina.store.keys import key_proof as key_proof
from lamina.store.keys import key_text
from lamina.store.keys import proof_hash as proof_hash
from lamina.store.lock import make_private_folder
from lamina.text.messages import Phrase
from lamina.text.unicode import hidden_characters
from lamina.tools.bash import shell_tools
from lamina.tools.closed_files import OwnFiles
from lamina.tools.files import file_tools
from lamina.tools.registry import Tool, ToolRegistry
from lamina.types import AnyMessage, AnyTool, Context, Grammar, Key, Layer, Message, Receipt, Text, text_hash

IDENTITY = Path(__file__).parent.parent / "data" / "identity.md"
SHIPPED, MARK_SLOT = "lamina/identity.md", "{mark}"
"""The source of the shipped identity, and the slot in it for the session's mark."""
MAX_LAYER_BYTES = 256 * 1024
MAX_HISTORY_BYTES = 256 * 1024 * 1024
ESTIMATES: dict[str, Count] = {"seed": estimate_message_tokens, "cjk": estimate_tokens}

FILES = {
    "identity": "identity.md",
    "rules": "rules.md",
    "skill": "skill.md",
    "memory": "memory.md",
    "context": "context.md",
    "tools": "tools.json",
    "user": "user.txt",
}
"""What the files of a project folder are called."""
HISTORIES = ("history.json", "history.jsonl")


@dataclass(frozen=True, slots=True)
class Sources:
    """The files one context is assembled from; None where there is none."""

    identity: Path | None = None
    rules: Path | None = None
    skill: Path | None = None
    memory: Path | None = None
    context: Path | None = None
    tools: Path | None = None
    history: Path | None = None
    user: Path | None = None
    workspace: Path | None = None
    """A folder whose instructions and rules are in force; it excludes a rules file of one's own."""
    folder: Path | None = None
    """The working folder in it."""

    @staticmethod
    def of_project(folder: Path) -> "Sources":
        """The files that a folder has, by their usual names."""
        if not folder.is_dir():
            code = "folder.not_folder" if folder.exists() else "file.missing"
            raise InputError(code, hint="project.folder_hint", path=repr(str(folder)))
        found = {name: folder / file for name, file in FILES.items() if os.path.lexists(folder / file)}
        histories = [folder / file for file in HISTORIES if os.path.lexists(folder / file)]
        for path in (*found.values(), *histories):
            if not path.resolve().is_relative_to(folder.resolve()):
                raise InputError("project.link_out", path=repr(str(path)))
        if len(histories) > 1:
            raise InputError("project.two_histories", path=str(folder), names=list(HISTORIES))
        if not found and not histories:
            raise InputError("project.empty", path=repr(str(folder)), names=[*FILES.values(), *HISTORIES])
        return Sources(**found, history=histories[0] if histories else None)


def counter(name: str) -> Count:
    """A counter by name: `seed`, `cjk`, a vocabulary such as `o200k`, or the path of a tokenizer.json."""
    if name in ESTIMATES:
        return ESTIMATES[name]
    if name in VOCABULARIES or name.endswith(".json"):
        return exact_counter(name)
    raise InputError("counter.unknown", name=format_value(name), known=[*ESTIMATES, *VOCABULARIES])


def new_mark() -> str:
    """For a request that belongs to no session."""
    return os.urandom(4).hex()


def assemble_files(
    settings: Settings, sources: Sources, *, user: str | None = None, mode: str = "ask", mark: str = ""
) -> Context:
    """A context from files. A file that was named and cannot be read stops everything. Without a mark it gets one that
    follows from what the files hold: the same files give the same bytes."""
    if sources.folder and not sources.workspace:
        raise InputError("option.folder_without_workspace")
    if sources.workspace and sources.rules:
        raise InputError("option.two_rules", file=sources.rules.name, workspace=repr(str(sources.workspace)))
    if user is None:
        if sources.user is None:
            raise InputError("message.none_given", hint="message.give_one")
        user = read_text(sources.user).strip("\n")
    if not user.strip():
        raise InputError("message.empty", hint="message.give_one")
    history = read_history(sources.history) if sources.history else []
    layers = gather(settings, sources, mode)
    if sources.workspace:
        files = instruction_files(settings, sources.workspace, sources.folder)
        layers += prompt_manager(settings, files).prepare(user).layers
    mark = mark or session_mark(b"files", repr(([layer.text for layer in layers], history, user)))
    layers[0] = replace(layers[0], text=layers[0].text.replace(MARK_SLOT, mark)) if is_shipped(layers[0]) else layers[0]
    budget, style = Budget(settings.budget, counter(settings.counter)), PromptStyle(mark, lang=settings.prompt_lang)
    tools = read_tools(sources.tools) if sources.tools else ()
    return assemble(layers, history, user, budget=budget, style=style, tools=tools)


def instruction_files(settings: Settings, workspace: Path | None, folder: Path | None = None) -> InstructionFiles:
    """The instruction files of a workspace, as the settings name them; without one, the instructions alone."""
    if workspace is not None and not os.path.isdir(workspace):
        code = "folder.not_folder" if os.path.lexists(workspace) else "file.missing"
        raise InputError(code, hint="workspace.name_folder", path=repr(str(workspace)))
    return InstructionFiles(
        workspace.resolve() if workspace is not None else None,
        max_bytes=settings.max_rule_bytes,
        instructions=settings.instructions,
        rules=settings.rules,
        folder=folder or "",
        approvals=Approvals(settings.approvals),
        home=settings.home,
    )


def file_rows(loaded: LoadedInstructions, state: InjectionState | None, count: Count) -> list[dict[str, Any]]:
    """The files in force, and on which turn of a session the model saw them last."""
    seen: Mapping[str, SeenSource] = state.seen if state else {}
    now = {"instructions": loaded.instructions.hash, "rules": loaded.rules_hash}
    return [
        {
            "kind": file.kind,
            "path": file.path,
            "size": file.size,
            "tokens": count(file.text),
            "hash": file.hash,
            "includes": list(file.included),
            "last_injected": seen[file.kind].turn if file.kind in seen else None,
            "changed_since": file.kind in seen and seen[file.kind].hash != now[file.kind],
        }
        for file in (loaded.instructions, *loaded.rules)
    ]


def rules_missing(settings: Settings, workspace: Path, *, others: bool = False) -> str:
    """The rules file that a setting names and that is not there; empty when all is well. With `others`, only where
    there are rules in other files."""
    if "rules" not in settings.origin or _is_there(workspace.resolve(), settings.rules):
        return ""
    try:
        alone = others and not instruction_files(settings, workspace).load().rules_text
    except InstructionsError:  # the turn says so, and sends nothing
        alone = True
    return "" if alone else settings.rules


def _is_there(folder: Path, path: str) -> bool:
    """Whether a file is there, under this name or one that differs in case only."""
    return os.path.lexists(folder / (path if os.path.isabs(path) else Workspace(folder).spelled(path)[0]))


def missing_files(settings: Settings) -> Iterator[SettingsError]:
    """Files that settings name and every turn needs, and that are not there; each error names its setting."""
    places = {"identity": "", "context": "", "instructions": settings.workspace}
    places |= {"mcp": ""} if settings.tools else {}
    for name, folder in places.items():
        value: str = getattr(settings, name)
        path = os.path.join(folder, value)
        if name == "instructions" and value and _is_there(Path(folder or "."), value) and not os.path.exists(path):
            continue  # in another case
        if value and not os.path.isfile(path):
            where = settings.origin.get(name, "")
            where = f"{where}: {name}" if where.startswith(FILE) else where or name
            code = "settings.file_not_regular" if os.path.exists(path) else "settings.file_missing"
            hint = "settings.restore_instructions" if name == "instructions" else ""
            yield SettingsError(code, hint=hint, where=where, value=format_value(value))


def check_files(settings: Settings) -> None:
    """The first of them is raised: better now than as a turn that failed."""
    for error in missing_files(settings):
        raise error


def approve_file(files: InstructionFiles, path: str) -> FileText:
    """A person vouches for a text with hidden characters, as it is now. One without any needs no approval."""
    file = files.find(path)
    approvals = files.approvals
    if approvals and approvals.is_inside(files.workspace.root):
        raise InputError("approvals.in_workspace", path=repr(approvals.path))
    if approvals and file.hidden:
        approvals.approve(file.hash)
    return file


def prompt_manager(
    settings: Settings, files: InstructionFiles, state: InjectionState | None = None
) -> SystemPromptManager:
    """The one place of a channel that decides about injections."""
    cadence = {"instructions": settings.instructions_turns, "rules": settings.rules_turns}
    injection = InjectionSettings(
        settings.reinjection_enabled,
        settings.reinjection_turns,
        {source: turns for source, turns in cadence.items() if turns},
        settings.prompt_lang,
    )
    return SystemPromptManager(files, settings=injection, model=settings.model, state=state)


def read_state(path: Path) -> InjectionState | None:
    """What a session's file says of its injections; None where there is none yet."""
    if not os.path.lexists(path):
        return None
    found = parse_json(read_text(path), path.name, hint="session_file.remove")
    try:
        return InjectionState.from_dict(fields_of(found) or {})
    except LayerError:
        raise InputError(
            "session_file.bad_state", hint="session_file.remove", path=path.name, value=format_value(found)
        ) from None


@contextmanager
def hold_session(path: Path | None) -> Generator[InjectionState | None, None, None]:
    """The state of a session's file, which no other process changes inside the block; None where there is no file."""
    if path is None:
        yield None
        return
    try:
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | BINARY, 0o600)
    except (OSError, ValueError) as error:
        why = str(getattr(error, "strerror", None) or error)
        raise InputError("file.unwritable", path=repr(str(path)), why=why) from None
    try:
        unlock = take_lock(lock, f"{path}.lock")
    except OSError:
        os.close(lock)
        raise InputError("file.in_use", path=repr(str(path))) from None
    try:
        yield read_state(path) or InjectionState()
    finally:
        unlock()
        os.close(lock)


def write_state(path: Path, state: InjectionState) -> None:
    """Whole or not at all."""
    draft = f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump(state.to_dict(), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(draft)
        raise InputError("file.unwritable", path=repr(str(path)), why=error.strerror) from None


def render_request(context: Context, grammar: Grammar) -> tuple[dict[str, Any], Receipt]:
    """The request of one grammar, and its receipt."""
    receipt = encode(context, grammar)
    return json.loads(receipt.payload), receipt


def gather(settings: Settings, sources: Sources, mode: str) -> list[Layer]:
    """The layers, each from its file."""
    identity = sources.identity or (Path(settings.identity) if settings.identity else IDENTITY)
    layers = [file_layer("identity", identity)]
    for name, path in (("rules", sources.rules), ("skill", sources.skill), ("context", sources.context)):
        layers += [file_layer(name, path)] if path else []
    for path in (identity, sources.rules, sources.skill, sources.context):
        if path:
            check_hidden(path, settings)
    layers.append(Layer("mode", mode_hint(mode), f"mode:{mode}"))
    if sources.tools:
        functions = [tool["function"] for tool in read_tools(sources.tools)]
        registry = ToolRegistry(*(Tool(function["name"], function["description"]) for function in functions))
        layers.append(registry.layer())
    if sources.memory:
        paragraphs = re.split(r"\r?\n[ \t]*\r?\n", read_text(sources.memory))
        facts = [fact.strip("\r\n") for fact in paragraphs if fact.strip()]
        layers += [
            Layer("memory", fact, f"{sources.memory.name}#{number}", trust="outside", volatile=True)
            for number, fact in enumerate(facts, 1)
        ]
    return layers


def is_shipped(layer: Layer) -> bool:
    """The shipped identity tells the model by which tags to know lamina's own words."""
    return layer.source == SHIPPED


def file_layer(name: str, path: Path) -> Layer:
    text = read_text(path).strip("\n")
    if path == IDENTITY:
        return Layer(name, text, SHIPPED)
    return Layer(name, text, path.name, volatile=name == "context")


def check_hidden(path: Path, settings: Settings) -> None:
    """Text that is not fenced must be what people see; what is not can be approved as it is."""
    text = read_text(path)
    places = hidden_characters(text)
    if places and text_hash(text) not in Approvals(settings.approvals):
        raise InputError(
            "file.hidden_characters",
            path=repr(str(path)),
            places=[str(place) for place in places[:5]],
            folder=shlex.quote(str(path.parent)),
            name=shlex.quote(path.name),
        )


def read_text(path: Path, limit: int = MAX_LAYER_BYTES) -> str:
    """A whole file as text: a regular file of bounded size, strict UTF-8, a BOM dropped."""
    try:
        if not path.is_file():
            raise InputError("file.not_regular" if path.exists() else "file.missing", path=repr(str(path)))
        with path.open("rb") as file:
            raw = file.read(limit + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        why = str(getattr(error, "strerror", None) or error)
        raise InputError("file.unreadable", path=repr(str(path)), why=why) from None
    if len(raw) > limit:
        raise InputError("file.too_large", path=repr(str(path)), limit=limit)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = f"{raw[error.start]:02x}"
        raise InputError("file.not_utf8", path=repr(str(path)), position=error.start, byte=byte) from None


def read_history(path: Path) -> list[AnyMessage]:
    """A history from JSON (a list of messages, or an object with `messages`) or JSONL (a message a line)."""
    text = read_text(path, MAX_HISTORY_BYTES)
    if path.suffix == ".jsonl":
        rows = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        messages = [
            parse_json(line, Phrase("file.line", path=path.name, number=number), hint="json.one_object_per_line")
            for number, line in rows
        ]
        places = [f"{path.name} line {number}" for number, _ in rows]
    else:
        found = parse_json(text, path.name)
        value: Any = (fields_of(found) or {}).get("messages", found)
        if not isinstance(value, list):
            raise InputError(
                "file.not_messages", hint="file.messages_form", path=path.name, value=format_value(cast(object, value))
            )
        messages = cast("list[Any]", value)
        places = [f"{path.name}: history[{number}]" for number in range(len(messages))]
    for message, place in zip(messages, places, strict=True):
        check_message(message, place)
    return messages


def read_tools(path: Path) -> Sequence[AnyTool]:
    value = parse_json(read_text(path), path.name)
    if not isinstance(value, list):
        raise InputError("file.not_tools", hint="file.tools_form", path=path.name, value=format_value(value))
    for number, tool in enumerate(cast("list[object]", value)):
        function = fields_of((fields_of(tool) or {}).get("function")) or {}
        if not all(isinstance(function.get(key), str) for key in ("name", "description")):
            raise InputError(
                "file.bad_tool", hint="file.tools_form", path=path.name, number=number, value=format_value(tool)
            )
    return cast("list[AnyTool]", value)


def parse_json(text: str, where: str | Phrase, hint: str = "file.messages_form") -> Any:
    """JSON, with the place of an error named; `hint` is the code of what the text should be."""

    def refuse_constant(name: str) -> NoReturn:
        raise InputError("json.not_value", where=where, name=name)

    try:
        return json.loads(text, parse_constant=refuse_constant)
    except RecursionError:
        raise InputError("json.too_deep", where=where) from None
    except json.JSONDecodeError as error:
        near = format_value(text[max(0, error.pos - 20) : error.pos + 20])
        raise InputError(
            "json.not_json", hint=hint, where=where, why=error.msg, line=error.lineno, column=error.colno, near=near
        ) from None
    except InputError:
        raise
    except ValueError:  # a number with thousands of digits
        raise InputError("json.number_too_long", where=where) from None


LOCAL_WINDOW_TOKENS, LOCAL_ANSWER_TOKENS = 8_192, 512
"""Of the embedded model: what it takes, and how much of that its answer may have."""
ANSWER_TOKENS = 1_024
"""Left free in the window for an answer without a limit."""
BACKGROUND_ANSWER_TOKENS = 1_024


def provider_of(settings: Settings, *, encode: Encode = encode) -> Provider:
    """The provider that the settings name; the embedded model where they name none."""
    name = settings.provider or "local"
    window = settings.window or None
    try:
        if name == "local":
            from lamina.providers.local import LocalProvider  # noqa: PLC0415 -- aiohttp is an extra

            _check_embedded_model(settings.model)
            path = settings.model if settings.model.endswith(".gguf") else ""
            return LocalProvider(path, n_ctx=settings.window or LOCAL_WINDOW_TOKENS)
        if name == "scripted":
            from lamina.providers.scripted import ScriptedProvider  # noqa: PLC0415 -- only when it is named

            if not settings.script:
                raise SettingsError("provider.no_script")
            return ScriptedProvider.load(settings.script, window=window, repeat=True)
        if not settings.model:
            raise SettingsError("provider.no_model", name=name)
        key = _read_key(settings.api_key)
        if not settings.base_url and not settings.api_key:  # a server at another address may need no key
            raise SettingsError("provider.no_key", name=name, variable=f"{name.upper()}_API_KEY")
        address: dict[str, Any] = {"base_url": settings.base_url} if settings.base_url else {}
        module = import_module(f"lamina.providers.{name}")  # only now: aiohttp is an extra
        hosted: Provider = module.provider(settings.model, encode=encode, key=key, window=window, **address)
        return hosted
    except ModuleNotFoundError as error:
        feature = Phrase("feature.provider")
        raise SettingsError("package.missing", feature=feature, package=error.name, extra="app") from None


def embedder_of(settings: Settings) -> Embedder | None:
    """The embedder that the settings name; None where they name none."""
    if settings.embedder == "none":
        return None
    from lamina.providers.embeddings import EndpointEmbedder, default_embedder  # noqa: PLC0415 -- numpy is an extra

    if settings.embedder == "embedded":
        return default_embedder()
    model, dimension, key = settings.embedder_model, settings.embedder_dimension, settings.embedder_key or None
    return EndpointEmbedder(settings.embedder, model=model, dimension=dimension, key=key)


def with_model(settings: Settings, model: str | None) -> Settings:
    """The settings with the model that a user asks for, or with their own; an unknown one is refused."""
    named = settings.model if model is None else model
    if settings.provider in ("", "local"):
        _check_embedded_model(named)
    return replace(settings, model=named)


def _check_embedded_model(model: str) -> None:
    """The embedded provider has its own model and files beside it: it would answer as if it were any other."""
    if not model or model.endswith(".gguf"):
        return
    from lamina.providers.local import FILE  # noqa: PLC0415 -- aiohttp is an extra

    if f"{model}.gguf" != FILE:
        raise SettingsError("provider.no_such_model", name=format_value(model))


def window_of(settings: Settings, provider: Provider | None) -> int | None:
    """How much the model takes, as far as it is known; no provider is made for this."""
    known = LOCAL_WINDOW_TOKENS if settings.provider == "local" else None
    return settings.window or (provider.window if provider else known)


def request_budget(settings: Settings, window: int | None) -> float:
    """The budget of a request: what the settings allow, and what the window leaves beside the answer."""
    if not window:
        return settings.budget
    answer = settings.max_tokens or (LOCAL_ANSWER_TOKENS if settings.provider in ("", "local") else ANSWER_TOKENS)
    return max(0, min(settings.budget, window - answer))


def complete_with(provider: Provider, count: Count) -> Complete:
    """The provider for work in the background: messages in, text out."""

    async def complete(messages: Sequence[Message], schema: Mapping[str, Any] | None) -> str:
        *before, last = messages
        layers = [Layer("identity", str(before[0]["content"]), "lamina")] if before else []
        budget, style = Budget(1e12, count), PromptStyle(new_mark())
        context = assemble(layers, before[1:], last["content"] or "", budget=budget, style=style)
        pieces: list[str] = []
        async with aclosing(provider.stream(context, max_tokens=BACKGROUND_ANSWER_TOKENS)) as stream:
            async for event in stream:
                if isinstance(event, Text):
                    pieces.append(event.text)
        return "".join(pieces)

    return complete


def _read_key(secret: str) -> Key | None:
    try:
        return Key(secret) if secret else None
    except ValueError:
        raise SettingsError("provider.bad_key") from None


MODES = ("agent", "plan")
STORE_FILES = ("", "-wal", "-shm", "-journal", ".lock", f".lock{HELD}")


@asynccontextmanager
async def open_tools(settings: Settings) -> AsyncGenerator[dict[str, ToolRegistry] | None, None]:
    """The tools of each mode as long as the block lasts; None where they are switched off."""
    if not settings.tools:
        yield None
    elif settings.mcp:
        async with _open_servers(settings) as more:
            yield built_in_tools(settings, more)
    else:
        yield built_in_tools(settings)


def built_in_tools(settings: Settings, more: Sequence[Tool] = ()) -> dict[str, ToolRegistry]:
    """The tools of each mode, for `App.open(tools=…)`: files and bash in the workspace of the settings, the web, and
    what is given; in plan mode nothing that has an effect. Those of MCP servers come with `App.open` alone."""
    tools: list[Tool] = []
    if settings.workspace:
        root = Path(settings.workspace)
        if not root.is_dir():
            raise SettingsError("workspace.setting_not_folder", path=format_value(str(root)))
        own = OwnFiles(own_files(settings))
        gate = partial(decide, root=root, closed=own)
        tools += file_tools(root, closed=own, asks=instruction_paths(settings, root))
        sandbox = sandbox_of(settings)
        for effects in (True, False) if CAN_END_FAMILY else ():
            tools += shell_tools(root, gate, environ=settings.environ, sandbox=sandbox, effects=effects)
    tools += [*_web_tools(settings), *more]
    return {mode: ToolRegistry(*(tool for tool in tools if mode in tool.modes)) for mode in MODES}


def own_files(settings: Settings) -> list[Path]:
    """lamina's own files, which are closed to every tool, wherever they are."""
    own = [settings.mcp, state_folder(settings.environ or None)]
    if settings.approvals:
        own += [f"{settings.approvals}{end}" for end in ("", ".lock", f".lock{HELD}")]
    if settings.store and "://" not in settings.store:
        own += [f"{settings.store}{end}" for end in STORE_FILES]
    return [Path(path) for path in own if path]


def sandbox_of(settings: Settings) -> Sandbox:
    """How commands are held, with lamina's own files closed to them."""
    return Sandbox(
        settings.bash_sandbox,
        settings.bash_network,
        tuple(map(str, own_files(settings))),
        tuple(filter(None, settings.bash_readable.split(":"))),
        Limits(memory_mb=settings.bash_memory, processes=settings.bash_processes),
    )


def instruction_paths(settings: Settings, root: Path) -> set[str]:
    """The files of the workspace whose words reach the model as instructions: who changes them is asked for."""
    named = {settings.rules, settings.identity, settings.instructions, settings.context}
    try:
        loaded = instruction_files(settings, root).load()
    except InstructionsError:  # the turn says so, and sends nothing
        loaded = None
    for file in (loaded.instructions, *loaded.rules) if loaded else ():
        named |= {file.path, *file.included}
    home = os.path.realpath(root)
    inside = (os.path.relpath(os.path.realpath(os.path.join(home, name)), home) for name in named if name)
    return {name for name in inside if not name.startswith("..")}


def _web_tools(settings: Settings) -> Sequence[Tool]:
    try:
        from lamina.tools.web import web_tools  # noqa: PLC0415 -- aiohttp is an extra
    except ModuleNotFoundError as error:
        feature = Phrase("feature.web")
        raise SettingsError("package.missing", feature=feature, package=error.name, extra="app") from None
    token = settings.telegram_token.reveal() if settings.telegram_token else ""
    secrets = [key for key in (settings.api_key, settings.embedder_key, token) if key]
    return web_tools(secrets=secrets)


@asynccontextmanager
async def _open_servers(settings: Settings) -> AsyncGenerator[Sequence[Tool], None]:
    try:
        from lamina.tools.mcp import mcp_tools  # noqa: PLC0415 -- mcp is an extra
    except ModuleNotFoundError as error:
        feature = Phrase("feature.mcp")
        raise SettingsError("package.missing", feature=feature, package=error.name, extra="mcp") from None
    config: Any = parse_json(read_text(Path(settings.mcp)), settings.mcp, hint="file.mcp_form")
    if fields_of(config) is None:
        raise InputError(
            "file.not_mcp", hint="file.mcp_form", path=settings.mcp, value=format_value(json.dumps(config))
        )
    async with mcp_tools(config, root=settings.workspace or ".", environ=settings.environ) as tools:
        yield tools


LOOPBACK = "loopback"
"""The id of the token: no key of the store has it, those are hexadecimal."""
WRITE_TIMEOUT_S = 2.0


def key_id_in(text: str) -> str:
    """The id in a key's text; empty when it is not one of our keys."""
    mark, _, rest = text.partition("_")
    key_id, sign, secret = rest.partition("_")
    return key_id if mark == KEY_PREFIX and sign and secret and key_id.isalnum() and len(key_id) <= 32 else ""


def token_file(settings: Settings) -> Path:
    place = settings.store if "://" in settings.store else os.path.realpath(settings.store)
    name = sha256(f"{place}\0{settings.user}".encode("utf-8", "replace")).hexdigest()[:16]
    return Path(state_folder(settings.environ or None), f"gateway-{name}.token")


def loopback_token(settings: Settings) -> str:
    """The token for this store and user, made when there is none yet."""
    path = token_file(settings)
    try:
        make_private_folder(path.parent)
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW | BINARY, 0o600)
        except FileExistsError:
            _wait_until_written(path)
            return _read_token(path)
        token = key_text(LOOPBACK)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(f"{token}\n")
        return token
    except OSError as error:
        raise SettingsError("key.file_unusable", hint="key.check_folder", path=str(path), why=error.strerror) from None


def opening_file(settings: Settings, url: str) -> Path:
    """A page that leads to this address: the token must not be an argument of a browser, which all users can see."""
    path = token_file(settings).with_suffix(".html")
    try:
        path.unlink(missing_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW | BINARY, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(
                f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={escape(url)}">'
            )
    except OSError as error:
        raise SettingsError("file.unwritable", path=str(path), why=error.strerror) from None
    return path


def _wait_until_written(path: Path) -> None:
    """Another gateway of this store that starts at the same moment has made the file, and is about to write it."""
    until = time.monotonic() + WRITE_TIMEOUT_S
    while path.lstat().st_size == 0 and time.monotonic() < until:
        time.sleep(0.01)


def _read_token(path: Path) -> str:
    handle = os.open(path, os.O_RDONLY | NOFOLLOW | NONBLOCK | BINARY)
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        token = file.read(200).decode("ascii", "replace").strip()
    if not stat.S_ISREG(found.st_mode) or not is_private(found):
        raise SettingsError("key.file_readable_by_others", hint="key.remove_file", path=str(path))
    if key_id_in(token) != LOOPBACK or len(token) < 40:
        raise SettingsError("key.file_without_token", hint="key.remove_file", path=str(path))
    return token
