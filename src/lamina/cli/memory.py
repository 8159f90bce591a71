"""`lamina memory`: what is remembered of one user: list, add, search, edit, forget, pin, origins and the profile."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from lamina.app.commands import Origin, find_memory, forget, origin_of
from lamina.cli.common import (
    SHORT,
    Say,
    argument,
    chosen,
    confirm,
    day,
    flag,
    one_line,
    only_below,
    opened,
    option,
    page,
    pairs,
    plain,
    progress,
    run,
    show_json,
    styled,
    table,
    tell,
    tell_none,
)
from lamina.cli.sessions import looked_for, marked
from lamina.cli.texts import reason_in, visible
from lamina.errors import InputError, NotFoundError, SettingsError, shown
from lamina.records import Memory, Remembered, Session

LIMIT = 50
COLOURS = {"preference": "magenta", "fact": "blue", "event": "yellow", "instruction": "green"}


def add_memory(app: typer.Typer, say: Say) -> None:
    memory = typer.Typer(no_args_is_help=False, invoke_without_command=True)
    memory.callback()(_lister(say))
    memory.command("list", hidden=True)(_lister(say))
    for name, make in (
        ("add", _adder), ("search", _searcher), ("show", _shower), ("edit", _editor), ("forget", _forgetter),
        ("pin", _pinner), ("profile", _profiler),
    ):  # fmt: skip
        memory.command(name, help=say[f"memory.{name}"])(make(say))
    app.add_typer(memory, name="memory", help=say["memory.help"])


def memory_row(say: Say, memory: Memory) -> list[Any]:
    kind = styled(say.get(f"kind.{memory.kind}", memory.kind), COLOURS.get(memory.kind, "white"))
    text = one_line(memory.text) or f"({say[f'state.{memory.state}']})"
    mark = f" ({say['state.superseded']})" if memory.state == "superseded" else ""
    pin = "★ " if memory.pinned else ""
    style = "dim" if memory.state != "active" else "bold" if memory.pinned else ""
    when = memory.created if memory.happened is None else memory.happened
    name = styled(memory.memory_id[:SHORT], "cyan")
    return [name, kind, f"{memory.importance:.2f}", day(when)[:10], styled(f"{pin}{text}{mark}", style)]


def memory_table(say: Say, memories: Sequence[Memory]) -> Any:
    columns, rows = ("id", "kind", "importance", "day", "text"), [memory_row(say, one) for one in memories]
    return table(say, columns, rows, right=("importance",), yields=("importance", "day", "kind"))


def _lister(say: Say) -> Any:
    def memory(
        context: typer.Context,
        kind: Annotated[str | None, option(say, "kind")] = None,
        everything: Annotated[bool, flag(say, "everything", "--all")] = False,
        limit: Annotated[int, option(say, "limit", "-n", "--limit", min=1)] = LIMIT,
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
        as_json: Annotated[bool, flag(say, "as_json", "--json")] = False,
    ) -> None:
        given = bool(kind or user or store) or everything or as_json or limit != LIMIT
        if not only_below(context, "memory", given):
            return
        settings = chosen(user, store)

        async def read() -> list[Memory]:
            async with opened(settings) as app:
                return list(await app.memory(settings.user).list(kind=kind, limit=limit, everything=everything))

        found = run(read())
        if as_json:
            show_json(found)
        elif not found:
            none = "memory.none" if kind is None else "memory.none_of_kind"
            tell_none(say, none, settings, kind=say.get(f"kind.{kind}", kind))
        else:
            page(memory_table(say, found))

    return memory


def _check_importance(importance: float | None) -> None:
    if importance is not None and not 0 <= importance <= 1:
        raise InputError(f"--importance is {importance}", hint="a number from 0 to 1")


def _adder(say: Say) -> Any:
    def add(
        text: Annotated[str, argument(say, "fact", "TEXT")],
        kind: Annotated[str | None, option(say, "kind")] = None,
        importance: Annotated[float | None, option(say, "importance")] = None,
        pinned: Annotated[bool, flag(say, "pin", "--pin")] = False,
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
        as_json: Annotated[bool, flag(say, "as_json", "--json")] = False,
    ) -> None:
        _check_importance(importance)
        settings = chosen(user, store)

        async def make() -> Remembered:
            async with opened(settings, makes=True) as app:
                return await app.memory(settings.user).remember(text, kind=kind, importance=importance, pinned=pinned)

        made = run(make())
        memory = made.memory
        if as_json:
            show_json(plain(memory) | {"known": made.known, "replaced": [old.memory_id for old in made.replaced]})
            return
        said = "memory.known" if made.known else "memory.added"
        tell(say, said, id=memory.memory_id[:SHORT], text=one_line(memory.text, 80))
        for old in made.replaced:
            tell(say, "memory.replaced", id=old.memory_id[:SHORT], text=one_line(old.text, 80))

    return add


def _searcher(say: Say) -> Any:
    def search(
        words: Annotated[list[str], argument(say, "words", "WORDS")],
        limit: Annotated[int, option(say, "limit", "-n", "--limit", min=1)] = 5,
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
        as_json: Annotated[bool, flag(say, "as_json", "--json")] = False,
    ) -> None:
        settings, query = chosen(user, store), looked_for(words)
        if not settings.memory:
            raise SettingsError("memory is switched off", hint="the setting memory, LAMINA_MEMORY=on")

        async def read() -> list[Any]:
            async with opened(settings, index=True) as app:
                with progress(say, "searching"):
                    return await app.memory(settings.user).get_relevant_memories(query, limit)

        found = run(read())
        if as_json:
            show_json([{"score": one.score, "why": one.why, "memory": one.memory} for one in found])
        elif not found:
            tell(say, "found.none", query=query)
        else:
            rows = [
                [styled(one.memory.memory_id[:SHORT], "cyan"), f"{one.score:.2f}", day(one.memory.created)[:10],
                 _with_reason(say, marked(one_line(one.memory.text), query), one.why)]
                for one in found
            ]  # fmt: skip
            page(table(say, ("id", "score", "day", "text"), rows, right=("score",), yields=("score", "day")))

    return search


def _with_reason(say: Say, text: Any, why: str) -> Any:
    """A text with the reason below it: a column of its own would take the width that the text needs."""
    return text.append("\n").append(visible(reason_in(say["lang"], why)), style="dim")


def _shower(say: Say) -> Any:
    def show(
        name: Annotated[str, argument(say, "memory", "ID")],
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
        as_json: Annotated[bool, flag(say, "as_json", "--json")] = False,
    ) -> None:
        settings = chosen(user, store)

        async def read() -> tuple[Memory, Origin]:
            async with opened(settings) as app:
                memory = await find_memory(app.store, settings.user, name)
                return memory, await origin_of(app.store, settings.user, memory)

        memory, origin = run(read())
        if as_json:
            later = origin.superseded_by
            show_json({"memory": memory, "session": origin.session,
                       "turn": {"turn_id": memory.turn_id, "seq": memory.seq} if memory.turn_id else None,
                       "message": origin.message, "superseded_by": later, "supersedes": origin.supersedes})  # fmt: skip
        else:
            page(pairs(say, _details(say, memory, origin)))

    return show


def _details(say: Say, memory: Memory, origin: Origin) -> Mapping[str, object]:
    rows: dict[str, object] = {"id": memory.memory_id, "text": memory.text or f"({say['state.forgotten']})"}
    rows["kind"] = say.get(f"kind.{memory.kind}", memory.kind)
    rows["importance"] = f"{memory.importance:.2f}" + (f" ★ {say['pinned']}" if memory.pinned else "")
    rows["state"] = say[f"state.{memory.state}"]
    rows["created"] = day(memory.created)
    if memory.happened is not None:
        rows["happened"] = day(memory.happened)[:10]
    if memory.session_id:
        title = one_line(origin.session.title) if origin.session else say["gone"]
        rows["session"] = f"{memory.session_id[:SHORT]}  {title}".rstrip()
        rows["turn"] = memory.turn_id
        rows["number"] = f"#{memory.seq}"
        if origin.message:
            rows["said"] = f"{day(origin.message.created)}  {one_line(origin.message.text)}"
    else:
        rows["session"] = say["by_hand"]
    if memory.superseded_by:
        rows["superseded_by"] = _other(say, memory.superseded_by, origin.superseded_by)
    if origin.supersedes:
        rows["supersedes"] = "\n".join(_other(say, old.memory_id, old) for old in origin.supersedes)
    return rows


def _other(say: Say, name: str, memory: Memory | None) -> str:
    text = one_line(memory.text) if memory and memory.text else f"({say['gone']})"
    return f"{name[:SHORT]}  {text}"


def _editor(say: Say) -> Any:
    def edit(
        name: Annotated[str, argument(say, "memory", "ID")],
        text: Annotated[str, argument(say, "fact", "TEXT")],
        kind: Annotated[str | None, option(say, "kind")] = None,
        importance: Annotated[float | None, option(say, "importance")] = None,
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
    ) -> None:
        _check_importance(importance)
        settings = chosen(user, store)

        async def change() -> Memory:
            async with opened(settings) as app:
                memory = await find_memory(app.store, settings.user, name)
                service = app.memory(settings.user)
                return await service.edit(memory.memory_id, text, kind=kind, importance=importance)

        memory = run(change())
        tell(say, "memory.edited", id=memory.memory_id[:SHORT], text=one_line(memory.text, 80))

    return edit


def _forgetter(say: Say) -> Any:
    def forget_(
        names: Annotated[list[str], argument(say, "memories", "ID")],
        yes: Annotated[bool, flag(say, "yes", "--yes", "-y")] = False,
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
        as_json: Annotated[bool, flag(say, "as_json", "--json")] = False,
    ) -> None:
        settings = chosen(user, store)

        async def change() -> tuple[list[str], list[Session]]:
            async with opened(settings) as app:
                found = [await find_memory(app.store, settings.user, name) for name in names]
                ids = list(dict.fromkeys(memory.memory_id for memory in found))
                texts = "".join(f"  {one_line(memory.text)}\n" for memory in found)
                confirm(say, f"{texts}{say['memory.sure'].format(count=len(ids))}", yes)
                return ids, await forget(app, settings.user, ids)

        ids, sessions = run(change())
        if as_json:
            show_json({"forgotten": ids, "summaries": [session.session_id for session in sessions]})
            return
        tell(say, "memory.forgotten", count=len(ids))
        for session in sessions:
            tell(say, "memory.summary", id=session.session_id[:SHORT], title=one_line(session.title, 60))

    return forget_


def _pinner(say: Say) -> Any:
    def pin(
        name: Annotated[str, argument(say, "memory", "ID")],
        off: Annotated[bool, flag(say, "pin_off", "--off")] = False,
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
    ) -> None:
        settings = chosen(user, store)

        async def change() -> Memory:
            async with opened(settings) as app:
                memory = await find_memory(app.store, settings.user, name)
                return await app.memory(settings.user).pin(memory.memory_id, not off)

        memory = run(change())
        said = "memory.unpinned" if off else "memory.pinned"
        tell(say, said, id=memory.memory_id[:SHORT], text=one_line(memory.text, 80))

    return pin


def _profiler(say: Say) -> Any:
    def profile(
        name: Annotated[str | None, argument(say, "profile_name", "NAME")] = None,
        value: Annotated[str | None, argument(say, "profile_value", "VALUE")] = None,
        unset: Annotated[bool, flag(say, "unset", "--unset")] = False,
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
        as_json: Annotated[bool, flag(say, "as_json", "--json")] = False,
    ) -> None:
        if unset and (name is None or value is not None):
            raise InputError("--unset takes a name and no value", hint="lamina memory profile NAME --unset")
        if name is not None and not name.strip():
            raise InputError("the name of a profile value is empty", hint="name it, for example city")
        settings = chosen(user, store)

        async def work() -> Mapping[str, Any]:
            async with opened(settings, makes=value is not None) as app:
                rows = app.store.profile
                if name is not None and unset:
                    await rows.delete(settings.user, name)
                elif name is not None and value is not None:
                    await rows.set(settings.user, {name: value})
                return await app.memory(settings.user).profile()

        values = run(work())
        if name is not None and not unset and name not in values:
            raise NotFoundError(f"no profile value {shown(name)}", hint=f"known: {', '.join(values) or 'none'}")
        if name is not None and unset:
            tell(say, "profile.unset", name=name)
        elif as_json:
            show_json(values if name is None else {name: values[name]})
        elif name is not None and value is None:
            tell(say, "profile.value", name=name, value=values[name])
        elif name is not None:
            tell(say, "profile.set", name=name, value=value)
        elif not values:
            tell_none(say, "profile.none", settings)
        else:
            page(table(say, ("name", "value"), [[styled(n, "cyan"), str(v)] for n, v in values.items()]))

    return profile
