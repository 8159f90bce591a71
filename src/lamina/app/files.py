"""What is built from files: a context, the instruction files of a workspace, the state of a session's injections."""

import json
import os
import re
import shlex
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from lamina.assembly.checks import check_message, fields_of
from lamina.assembly.context import assemble
from lamina.assembly.estimate import estimate_tokens
from lamina.assembly.fences import DEFAULT_MARK
from lamina.assembly.prompt import mode_hint
from lamina.assembly.tokens import estimate_message_tokens
from lamina.assembly.wire import encode
from lamina.errors import InputError, LayerError, MessageError, SettingsError, shown
from lamina.layers.approvals import Approvals
from lamina.layers.hidden import hidden_characters
from lamina.layers.injection import InjectionSettings, InjectionState, Seen, SystemPromptManager
from lamina.layers.instructions import InstructionFiles, Loaded
from lamina.layers.tools import Tool, ToolRegistry
from lamina.layers.workspace import FileText, Workspace
from lamina.ports import Count
from lamina.providers.tokenizers import VOCABULARIES, exact_counter
from lamina.settings import FILE, Settings
from lamina.types import AnyMessage, AnyTool, Context, Grammar, Layer, Receipt, text_hash

try:
    import fcntl
except ImportError:  # a system without it has no locks between processes
    fcntl = None

IDENTITY = Path(__file__).parent.parent / "data" / "identity.md"
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
TOOL_FORM = '[{"type": "function", "function": {"name": …, "description": …, "parameters": …}}, …]'


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
            what = "is not a folder" if folder.exists() else "is not there"
            raise InputError(f"{str(folder)!r} {what}", hint="give a folder with identity.md, rules.md, …")
        found = {name: folder / file for name, file in FILES.items() if os.path.lexists(folder / file)}
        histories = [folder / file for file in HISTORIES if os.path.lexists(folder / file)]
        for path in (*found.values(), *histories):
            if not path.resolve().is_relative_to(folder.resolve()):
                raise InputError(
                    f"{str(path)!r} is a link out of the project", hint="name such a file by its own option"
                )
        if len(histories) > 1:
            raise InputError(f"{folder} has both {' and '.join(HISTORIES)}", hint="keep one of them")
        if not found and not histories:
            known = ", ".join((*FILES.values(), *HISTORIES))
            raise InputError(f"nothing to assemble in {str(folder)!r}", hint=f"it may hold {known}")
        return Sources(**found, history=histories[0] if histories else None)


def counter(name: str) -> Count:
    """A counter by name: `seed`, `cjk`, a vocabulary such as `o200k`, or the path of a tokenizer.json."""
    if name in ESTIMATES:
        return ESTIMATES[name]
    if name in VOCABULARIES or name.endswith(".json"):
        return exact_counter(name)
    known = ", ".join((*ESTIMATES, *VOCABULARIES))
    raise InputError(f"no counter named {shown(name)}", hint=f"known: {known}, or the path of a tokenizer.json")


def assemble_files(
    settings: Settings, sources: Sources, *, user: str | None = None, mode: str = "ask", mark: str = DEFAULT_MARK
) -> Context:
    """A context from files. A file that was named and cannot be read stops everything."""
    if sources.folder and not sources.workspace:
        raise InputError("--folder lies in a workspace, and none is named", hint="name it: --workspace .")
    if sources.workspace and sources.rules:
        raise InputError(
            f"there are two sets of rules: {sources.rules.name} and those of {str(sources.workspace)!r}",
            hint="leave one of them out",
        )
    if user is None:
        if sources.user is None:
            raise InputError("there is no user message", hint='give one: lamina context "…"')
        user = read_text(sources.user).strip("\n")
    if not user.strip():
        raise InputError("the user message is empty", hint='give one: lamina context "…"')
    history = read_history(sources.history) if sources.history else []
    layers = gather(settings, sources, mode, mark)
    if sources.workspace:
        files = instruction_files(settings, sources.workspace, sources.folder)
        layers += prompt_manager(settings, files).prepare(user).layers
    return assemble(
        layers,
        history=history,
        user=user,
        budget=settings.budget,
        count=counter(settings.counter),
        tools=read_tools(sources.tools) if sources.tools else [],
        mark=mark,
        lang=settings.prompt_lang,
    )


def instruction_files(settings: Settings, workspace: Path, folder: Path | None = None) -> InstructionFiles:
    """The instruction files of a workspace, as the settings name them."""
    if not os.path.isdir(workspace):
        what = "is not a folder" if os.path.lexists(workspace) else "is not there"
        raise InputError(f"{str(workspace)!r} {what}", hint="name the workspace's folder")
    return InstructionFiles(
        Workspace(workspace.resolve(), max_bytes=settings.max_rule_bytes),
        instructions=settings.instructions,
        rules=settings.rules,
        folder=folder or "",
        approvals=Approvals(settings.approvals),
        home=settings.home,
    )


def file_rows(loaded: Loaded, state: InjectionState | None, count: Count) -> list[dict[str, Any]]:
    """The files in force, and on which turn of a session the model saw them last."""
    seen: Mapping[str, Seen] = state.seen if state else {}
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


def rules_missing(settings: Settings, workspace: Path) -> str:
    """The rules file that a setting names and that is not there; empty when all is well."""
    named = "rules" in settings.origin and not os.path.lexists(workspace.resolve() / settings.rules)
    return settings.rules if named else ""


def missing_files(settings: Settings) -> Iterator[SettingsError]:
    """Files that settings name and every turn needs, and that are not there; each error names its setting."""
    places = {"identity": "", "context": ""}
    places |= {"instructions": settings.workspace} if settings.workspace else {}
    places |= {"mcp": ""} if settings.tools else {}
    for name, folder in places.items():
        value: str = getattr(settings, name)
        path = os.path.join(folder, value)
        if value and not os.path.isfile(path):
            where = settings.origin.get(name, "")
            where = f"{where}: {name}" if where.startswith(FILE) else where or name
            what = "is not a regular file" if os.path.exists(path) else "is not there"
            yield SettingsError(f"{where} names {shown(value)}, which {what}", hint="check the path")


def check_files(settings: Settings) -> None:
    """The first of them is raised: better now than as a turn that failed."""
    for error in missing_files(settings):
        raise error


def approve_file(files: InstructionFiles, path: str) -> FileText:
    """A person vouches for a text with hidden characters, as it is now. One without any needs no approval."""
    file = files.find(path)
    approvals = files.approvals
    if approvals and approvals.lie_in(files.workspace.root):
        raise InputError(
            f"approvals do not count here: {approvals.path!r} lies in the workspace",
            hint="set LAMINA_APPROVALS to a file elsewhere",
        )
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
    found = parse_json(read_text(path), path.name, hint="remove it to begin the session anew")
    try:
        return InjectionState.from_dict(fields_of(found) or {})
    except LayerError:
        raise InputError(
            f"{path.name} holds {shown(found)}, not what a session's injections are",
            hint="remove it to begin the session anew",
        ) from None


@contextmanager
def held_session(path: Path | None) -> Generator[InjectionState | None, None, None]:
    """The state of a session's file, which nobody else moves meanwhile; None where there is no file."""
    if path is None:
        yield None
        return
    try:
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{str(path)!r} cannot be written: {why}", hint="check its folder") from None
    try:
        if fcntl:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise InputError(f"{str(path)!r} is in use by another process", hint="end it, or name another file") from None
    try:
        yield read_state(path) or InjectionState()
    finally:
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
        raise InputError(f"{str(path)!r} cannot be written: {error.strerror}", hint="check its folder") from None


def render_request(context: Context, grammar: Grammar) -> tuple[dict[str, Any], Receipt]:
    """The request of one grammar, and its receipt."""
    receipt = encode(context, grammar)
    return json.loads(receipt.payload), receipt


def gather(settings: Settings, sources: Sources, mode: str, mark: str = DEFAULT_MARK) -> list[Layer]:
    """The layers, each from its file."""
    identity = sources.identity or (Path(settings.identity) if settings.identity else IDENTITY)
    layers = [file_layer("identity", identity, mark)]
    for name, path in (("rules", sources.rules), ("skill", sources.skill), ("context", sources.context)):
        layers += [file_layer(name, path)] if path else []
    for path in (identity, sources.rules, sources.skill, sources.context):
        if path:
            check_hidden(path, settings)
    hint = mode_hint(mode)
    layers += [Layer("mode", hint, f"mode:{mode}")] if hint else []
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


def file_layer(name: str, path: Path, mark: str = DEFAULT_MARK) -> Layer:
    text = read_text(path).strip("\n")
    if path == IDENTITY:  # the shipped one tells the model by which tags to know lamina's own words
        return Layer(name, text.replace("{mark}", mark), "lamina/identity.md")
    return Layer(name, text, path.name, volatile=name == "context")


def check_hidden(path: Path, settings: Settings) -> None:
    """Text that is not fenced must be what people see; what is not can be approved as it is."""
    text = read_text(path)
    places = hidden_characters(text)
    if places and text_hash(text) not in Approvals(settings.approvals):
        shown_places = ", ".join(map(str, places[:5]))
        folder, name = shlex.quote(str(path.parent)), shlex.quote(path.name)
        raise InputError(
            f"{str(path)!r} holds characters that nobody sees: {shown_places}",
            hint=f"remove them, or approve them as they are: lamina rules approve --workspace {folder} -- {name}",
        )


def read_text(path: Path, limit: int = MAX_LAYER_BYTES) -> str:
    """A whole file as text: a regular file of bounded size, strict UTF-8, a BOM dropped."""
    try:
        if not path.is_file():
            what = "not a regular file" if path.exists() else "not there"
            raise InputError(f"{str(path)!r} is {what}", hint="check the path")
        with path.open("rb") as file:
            raw = file.read(limit + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{str(path)!r} cannot be read: {why}", hint="check the path and its permissions") from None
    if len(raw) > limit:
        raise InputError(f"{str(path)!r} is too large: at most {limit:,} bytes are read", hint="shorten or split it")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = f"byte {error.start} is 0x{raw[error.start]:02x}"
        raise InputError(f"{str(path)!r} is not UTF-8: {place}", hint="save it as UTF-8") from None


def read_history(path: Path) -> list[AnyMessage]:
    """A history from JSON (a list of messages, or an object with `messages`) or JSONL (a message a line)."""
    text = read_text(path, MAX_HISTORY_BYTES)
    if path.suffix == ".jsonl":
        rows = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        messages = [parse_json(line, f"{path.name} line {number}") for number, line in rows]
        places = [f"{path.name} line {number}" for number, _ in rows]
    else:
        found = parse_json(text, path.name)
        value: Any = (fields_of(found) or {}).get("messages", found)
        if not isinstance(value, list):
            raise InputError(
                f"{path.name} holds {shown(cast(object, value))}, not a list of messages",
                hint='[{"role": "user", "content": "…"}, …]',
            )
        messages = cast("list[Any]", value)
        places = [f"{path.name}: history[{number}]" for number in range(len(messages))]
    for message, place in zip(messages, places, strict=True):
        check_message(message, place)
    return messages


def read_tools(path: Path) -> Sequence[AnyTool]:
    value = parse_json(read_text(path), path.name)
    if not isinstance(value, list):
        raise InputError(f"{path.name} holds {shown(value)}, not a list of tools", hint=TOOL_FORM)
    for number, tool in enumerate(cast("list[object]", value)):
        function = fields_of((fields_of(tool) or {}).get("function")) or {}
        if not all(isinstance(function.get(key), str) for key in ("name", "description")):
            raise InputError(
                f"{path.name}: tools[{number}] has no function with name and description: {shown(tool)}", hint=TOOL_FORM
            )
    return cast("list[AnyTool]", value)


def parse_json(text: str, where: str, hint: str = "a history is a JSON list of messages") -> Any:
    """JSON, with the place of an error named."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise InputError(f"{where} is nested too deeply") from None
    except json.JSONDecodeError as error:
        near = text[max(0, error.pos - 20) : error.pos + 20]
        raise InputError(
            f"{where} is not JSON: {error.msg} at line {error.lineno} column {error.colno}, near {shown(near)}",
            hint="each line of a .jsonl is one JSON object" if " line " in where else hint,
        ) from None
    except MessageError as error:
        raise InputError(f"{where} is not JSON: {error.message}") from None
    except ValueError as error:  # a number with thousands of digits
        raise InputError(f"{where} cannot be read: {error}", hint="write a shorter number") from None


def _no_constant(name: str) -> Any:
    raise MessageError(f"{name} is not a JSON value")
