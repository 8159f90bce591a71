"""`lamina memory`: what is remembered about one user: list, add, search, edit, forget, pin, origins and the profile."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from lamina.app.lookup import MemoryOrigin, find_memory, forget, origin_of
from lamina.cli.call import Call, Commands, Json, Yes, argument, flag, option, show_json, to_plain
from lamina.cli.say import Say
from lamina.cli.sessions import DEFAULT_LIMIT, Limit, Query, join_words, mark_hits
from lamina.cli.view import FittedTable, details, format_time, one_line, page, short_id, styled, table
from lamina.errors import InputError, NotFoundError, SettingsError, format_value
from lamina.records import Memory

COLOURS = {"preference": "magenta", "fact": "blue", "event": "yellow", "instruction": "green"}
MEMORY = Commands("memory")
MemoryName = Annotated[str, argument("memory", "ID")]
Fact = Annotated[str, argument("fact", "TEXT")]
Kind = Annotated[str | None, option("kind")]
Importance = Annotated[float | None, option("importance")]
Everything = Annotated[bool, flag("everything", "--all")]
Pin = Annotated[bool, flag("pin", "--pin")]
MemoryNames = Annotated[list[str], argument("memories", "ID")]


def memory_table(say: Say, memories: Sequence[Memory]) -> FittedTable:
    columns, rows = ("id", "kind", "importance", "day", "text"), [_memory_row(say, one) for one in memories]
    return table(say, columns, rows, right=("importance",), yields=("importance", "day", "kind"))


def _memory_row(say: Say, memory: Memory) -> list[Any]:
    kind = styled(_kind(say, memory.kind), COLOURS.get(memory.kind, "white"))
    text = one_line(memory.text) or f"({say(f'cli.state.{memory.state}')})"
    mark = f" ({say('cli.state.superseded')})" if memory.state == "superseded" else ""
    pin = "★ " if memory.pinned else ""
    style = "dim" if memory.state != "active" else "bold" if memory.pinned else ""
    when = memory.created if memory.happened is None else memory.happened
    name = styled(short_id(memory.memory_id), "cyan")
    return [name, kind, f"{memory.importance:.2f}", format_time(when)[:10], styled(f"{pin}{text}{mark}", style)]


def _kind(say: Say, kind: str) -> str:
    return say.get(f"cli.kind.{kind}", kind)


@MEMORY.listing()
async def list_memories(
    call: Call, kind: Kind = None, everything: Everything = False, limit: Limit = DEFAULT_LIMIT, as_json: Json = False
) -> None:
    async with call.open() as app:
        found = await app.memory(call.user).list(kind=kind, limit=limit, everything=everything)
    if as_json:
        show_json(list(found))
    elif found:
        page(memory_table(call.say, found))
    elif kind is None:
        call.tell_none("cli.memory.none")
    else:
        call.tell_none("cli.memory.none_of_kind", kind=_kind(call.say, kind))


def _check_importance(importance: float | None) -> None:
    if importance is not None and not 0 <= importance <= 1:
        raise InputError("option.not_a_share", option="--importance", value=importance)


@MEMORY.command("add")
async def add(
    call: Call, text: Fact, kind: Kind = None, importance: Importance = None, pinned: Pin = False, as_json: Json = False
) -> None:
    _check_importance(importance)
    async with call.open(makes=True) as app:
        made = await app.memory(call.user).remember(text, kind=kind, importance=importance, pinned=pinned)
    memory = made.memory
    if as_json:
        show_json(to_plain(memory) | {"known": made.known, "replaced": [old.memory_id for old in made.replaced]})
        return
    _tell(call, "cli.memory.known" if made.known else "cli.memory.added", memory)
    for old in made.replaced:
        _tell(call, "cli.memory.replaced", old)


def _tell(call: Call, code: str, memory: Memory) -> None:
    call.tell(code, id=short_id(memory.memory_id), text=one_line(memory.text, 80))


@MEMORY.command("search")
async def search(call: Call, words: Query, limit: Limit = 5, as_json: Json = False) -> None:
    query = join_words(words)
    if not call.settings.memory:
        raise SettingsError("memory.off")
    async with call.open(index=True) as app:
        with call.progress("cli.progress.searching"):
            found = await app.memory(call.user).get_relevant_memories(query, limit)
    if as_json:
        show_json([{"score": one.score, "why": one.why.text(), "memory": one.memory} for one in found])
    elif not found:
        call.tell("cli.found.none", query=query)
    else:
        page(found_table(call.say, found, query))


def found_table(say: Say, found: Sequence[Any], query: str) -> FittedTable:
    """The reason is below the text: a column of its own would take the width that the text needs."""
    rows: list[list[Any]] = []
    for one in found:
        day, text = format_time(one.memory.created)[:10], mark_hits(one_line(one.memory.text), query)
        text.append("\n").append(say.render(one.why), style="dim")
        rows.append([styled(short_id(one.memory.memory_id), "cyan"), f"{one.score:.2f}", day, text])
    return table(say, ("id", "score", "day", "text"), rows, right=("score",), yields=("score", "day"))


@MEMORY.command("show")
async def show(call: Call, name: MemoryName, as_json: Json = False) -> None:
    async with call.open() as app:
        memory = await find_memory(app.store, call.user, name)
        origin = await origin_of(app.store, call.user, memory)
    if as_json:
        turn = {"turn_id": memory.turn_id, "seq": memory.seq} if memory.turn_id else None
        names = ("session", "message", "superseded_by", "supersedes")
        show_json({"memory": memory, "turn": turn, **{name: getattr(origin, name) for name in names}})
    else:
        page(details(call.say, _details(call.say, memory, origin)))


def _details(say: Say, memory: Memory, origin: MemoryOrigin) -> Mapping[str, object]:
    rows: dict[str, object] = {"id": memory.memory_id, "text": memory.text or f"({say('cli.state.forgotten')})"}
    rows["kind"] = _kind(say, memory.kind)
    rows["importance"] = f"{memory.importance:.2f}" + (f" ★ {say('cli.memory.is_pinned')}" if memory.pinned else "")
    rows["state"] = say(f"cli.state.{memory.state}")
    rows["created"] = format_time(memory.created)
    if memory.happened is not None:
        rows["happened"] = format_time(memory.happened)[:10]
    if memory.session_id:
        title = one_line(origin.session.title) if origin.session else say("cli.deleted")
        rows["session"] = f"{short_id(memory.session_id)}  {title}".rstrip()
        rows["turn"] = memory.turn_id
        rows["number"] = f"#{memory.seq}"
        if origin.message:
            rows["said"] = f"{format_time(origin.message.created)}  {one_line(origin.message.text)}"
    else:
        rows["session"] = say("cli.memory.by_hand")
    if memory.superseded_by:
        rows["superseded_by"] = _other(say, memory.superseded_by, origin.superseded_by)
    if origin.supersedes:
        rows["supersedes"] = "\n".join(_other(say, old.memory_id, old) for old in origin.supersedes)
    return rows


def _other(say: Say, name: str, memory: Memory | None) -> str:
    text = one_line(memory.text) if memory and memory.text else f"({say('cli.deleted')})"
    return f"{short_id(name)}  {text}"


@MEMORY.command("edit")
async def edit(call: Call, name: MemoryName, text: Fact, kind: Kind = None, importance: Importance = None) -> None:
    _check_importance(importance)
    async with call.open() as app:
        memory = await find_memory(app.store, call.user, name)
        memory = await app.memory(call.user).edit(memory.memory_id, text, kind=kind, importance=importance)
    _tell(call, "cli.memory.edited", memory)


@MEMORY.command("forget")
async def forget_memories(call: Call, names: MemoryNames, yes: Yes = False, as_json: Json = False) -> None:
    async with call.open() as app:
        found = [await find_memory(app.store, call.user, name) for name in names]
        ids = list(dict.fromkeys(memory.memory_id for memory in found))
        texts = "".join(f"  {one_line(memory.text)}\n" for memory in found)
        call.confirm(f"{texts}{call.say('cli.memory.sure', count=len(ids))}", yes)
        sessions = await forget(app, call.user, ids)
    if as_json:
        show_json({"forgotten": ids, "summaries": [session.session_id for session in sessions]})
        return
    call.tell("cli.memory.forgotten", count=len(ids))
    for session in sessions:
        call.tell("cli.memory.summary", id=short_id(session.session_id), title=one_line(session.title, 60))


@MEMORY.command("pin")
async def pin(call: Call, name: MemoryName, off: Annotated[bool, flag("pin_off", "--off")] = False) -> None:
    async with call.open() as app:
        memory = await find_memory(app.store, call.user, name)
        memory = await app.memory(call.user).pin(memory.memory_id, not off)
    _tell(call, "cli.memory.unpinned" if off else "cli.memory.pinned", memory)


@MEMORY.command("profile")
async def profile(
    call: Call,
    name: Annotated[str | None, argument("profile_name", "NAME")] = None,
    value: Annotated[str | None, argument("profile_value", "VALUE")] = None,
    unset: Annotated[bool, flag("unset", "--unset")] = False,
    as_json: Json = False,
) -> None:
    if unset and (name is None or value is not None):
        raise InputError("option.bad_unset")
    if name is not None and not name.strip():
        raise InputError("profile.empty_name")
    async with call.open(makes=value is not None) as app:
        if name is not None and unset:
            await app.store.profile.delete(call.user, name)
        elif name is not None and value is not None:
            await app.store.profile.set(call.user, {name: value})
        values = await app.memory(call.user).profile()
    if name is not None and not unset and name not in values:
        raise NotFoundError("profile.unknown", name=format_value(name), names=list(values) or ["—"])
    if name is not None and unset:
        call.tell("cli.profile.unset", name=name)
    elif as_json:
        show_json(values if name is None else {name: values[name]})
    elif name is not None:
        call.tell("cli.profile.value" if value is None else "cli.profile.set", name=name, value=str(values[name]))
    elif not values:
        call.tell_none("cli.profile.none")
    else:
        page(table(call.say, ("name", "value"), [[styled(n, "cyan"), str(v)] for n, v in values.items()]))
