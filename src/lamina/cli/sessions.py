"""`lamina sessions`: the chats of one user: list, begin, read, search, rename, set, branch, resume, end,
delete, collect, import."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lamina.app.commands import check_skill, find_message, find_session, hits, import_chat
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
    progress,
    run,
    show_json,
    styled,
    table,
    tell,
    tell_none,
)
from lamina.cli.texts import visible
from lamina.errors import InputError
from lamina.records import Session, StoredMessage

LIMIT = 50
CUT = 600
"""Characters of a message that are shown without --full."""
ROLES = {"system": "cyan", "user": "bright_white", "assistant": "green", "tool": "yellow"}


def add_sessions(app: typer.Typer, say: Say) -> None:
    sessions = typer.Typer(no_args_is_help=False, invoke_without_command=True)
    sessions.callback()(_lister(say))
    sessions.command("list", hidden=True)(_lister(say))
    for name, make in (
        ("new", _newer), ("show", _shower), ("search", _searcher), ("rename", _renamer), ("branch", _brancher),
        ("set", _setter), ("resume", _resumer), ("end", _ender), ("delete", _deleter), ("collect", _collector),
        ("import", _importer),
    ):  # fmt: skip
        sessions.command(name, help=say[f"sessions.{name}"])(make(say))
    app.add_typer(sessions, name="sessions", help=say["sessions.help"])


def _lister(say: Say) -> Any:
    def sessions(
        context: typer.Context,
        limit: Annotated[int, option(say, "limit", "-n", "--limit", min=1)] = LIMIT,
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
        as_json: Annotated[bool, flag(say, "as_json", "--json")] = False,
    ) -> None:
        if not only_below(context, "sessions", limit != LIMIT or bool(user or store) or as_json):
            return
        settings = chosen(user, store)

        async def read() -> list[Session]:
            async with opened(settings) as app:
                return list(await app.store.sessions.list(settings.user, limit=limit))

        found = run(read())
        if as_json:
            show_json(found)
        elif not found:
            tell_none(say, "sessions.none", settings)
        else:
            page(session_table(say, found))

    return sessions


def session_row(say: Say, session: Session) -> list[Any]:
    title = one_line(session.title) or say["untitled"]
    mark = f" ({say['ended']})" if session.ended is not None else ""
    branch = f" ⑂ {session.parent_id[:SHORT]}#{session.parent_seq}" if session.parent_id else ""
    style = "dim" if session.ended is not None else ""
    name = styled(session.session_id[:SHORT], "cyan")
    place = session.scenario + (f"/{session.app}" if session.app else "")
    return [name, day(session.updated), f"{session.last_seq:,}", place, styled(title + mark + branch, style)]


def session_table(say: Say, sessions: Sequence[Session]) -> Any:
    columns, rows = ("id", "when", "messages", "scenario", "title"), [session_row(say, one) for one in sessions]
    return table(say, columns, rows, right=("messages",), yields=("scenario", "messages", "when"))


def _newer(say: Say) -> Any:
    def new(
        title: Annotated[str, option(say, "title")] = "",
        scenario: Annotated[str | None, option(say, "scenario")] = None,
        host: Annotated[str | None, option(say, "app", "--app")] = None,
        skill: Annotated[str, option(say, "skill_name", "--skill")] = "",
        mode: Annotated[str, option(say, "mode")] = "",
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
        as_json: Annotated[bool, flag(say, "as_json", "--json")] = False,
    ) -> None:
        if mode not in ("", "agent", "plan", "ask"):
            raise InputError(f"--mode has no choice {mode!r}", hint="choose one of agent, plan, ask")
        settings = chosen(user, store, scenario=scenario, host=host)

        async def make() -> Session:
            async with opened(settings, makes=True) as app:
                await check_skill(app.store, settings.user, skill, settings.host)
                return await app.new_session(settings.user, title=title, skill=skill, mode=mode)

        session = run(make())
        if as_json:
            show_json(session)
        else:
            tell(say, "sessions.made", id=session.session_id)

    return new


def _shower(say: Say) -> Any:
    def show(
        name: Annotated[str, argument(say, "session", "ID")],
        limit: Annotated[int, option(say, "limit", "-n", "--limit", min=1)] = LIMIT,
        full: Annotated[bool, flag(say, "full", "--full")] = False,
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
        as_json: Annotated[bool, flag(say, "as_json", "--json")] = False,
    ) -> None:
        settings = chosen(user, store)

        async def read() -> tuple[Session, list[StoredMessage]]:
            async with opened(settings) as app:
                session = await find_session(app.store, settings.user, name)
                rows = await app.store.history.messages(
                    settings.user, session.session_id, limit=None if full else limit, newest=True
                )
                return session, list(rows)

        session, messages = run(read())
        if as_json:
            show_json({"session": session, "messages": messages})
            return
        page(session_table(say, [session]))
        _show_messages(say, messages, full)

    return show


def _show_messages(say: Say, messages: list[StoredMessage], full: bool) -> None:
    from rich.padding import Padding
    from rich.text import Text

    parts: list[Any] = []
    if messages and messages[0].seq > 1:
        parts.append(styled(f"⋯ {say['earlier'].format(count=messages[0].seq - 1)}", "yellow"))
    for message in messages:
        head = Text(f"{message.seq:>4} ", style="dim")
        head.append(say[f"role.{message.role}"], style=f"bold {ROLES[message.role]}")
        head.append(f"  {message.message_id[:SHORT]}  {day(message.created)}", style="dim")
        if message.state != "complete":
            head.append(f"  ⚠ {say[f'state.{message.state}']}", style="bold red")
        if message.is_collected:
            head.append(f"  ★ {say['collected']}", style="bold yellow")
        lines = [message.text] if message.text else []
        lines += [
            f"→ {say['calls']} {call['function']['name']} {call['function']['arguments']}"
            for call in message.extra.get("tool_calls") or ()
        ]
        text = "\n".join(lines)
        cut = text if full or len(text) <= CUT else f"{text[:CUT]} {say['more'].format(chars=len(text) - CUT)}"
        parts += [Text(""), head, Padding(Text(visible(cut)), (0, 0, 0, 5))]
    page(*parts)


def _searcher(say: Say) -> Any:
    def search(
        words: Annotated[list[str], argument(say, "words", "WORDS")],
        limit: Annotated[int, option(say, "limit", "-n", "--limit", min=1)] = 20,
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
        as_json: Annotated[bool, flag(say, "as_json", "--json")] = False,
    ) -> None:
        settings, query = chosen(user, store), looked_for(words)

        async def read() -> list[Any]:
            async with opened(settings) as app:
                return list(await app.store.sessions.search(settings.user, query, limit=limit))

        found = run(read())
        if as_json:
            show_json([{"session_id": f.session.session_id, "title": f.session.title, "seq": f.message.seq,
                        "message_id": f.message.message_id, "role": f.message.role, "snippet": f.snippet}
                       for f in found])  # fmt: skip
        elif not found:
            tell(say, "found.none", query=query)
        else:
            rows = [
                [styled(f.session.session_id[:SHORT], "cyan"), f"#{f.message.seq}", say[f"role.{f.message.role}"],
                 one_line(f.session.title, 30) or say["untitled"], marked(f.snippet, query)]
                for f in found
            ]  # fmt: skip
            page(table(say, ("id", "number", "role", "title", "text"), rows, yields=("title", "role", "number")))

    return search


def looked_for(words: list[str]) -> str:
    query = " ".join(words)
    if not query.strip():
        raise InputError("there is nothing to search for", hint="give at least one word")
    return query


def marked(piece: str, query: str) -> Any:
    """A piece of text with the words that were looked for in colour."""
    from rich.text import Text

    text, last = Text(), 0
    for begin, end in hits(piece, query):
        text.append(visible(piece[last:begin])).append(visible(piece[begin:end]), style="bold yellow")
        last = end
    return text.append(visible(piece[last:]))


def _renamer(say: Say) -> Any:
    def rename(
        name: Annotated[str, argument(say, "session", "ID")],
        title: Annotated[str, argument(say, "title", "TITLE")],
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
    ) -> None:
        settings = chosen(user, store)

        async def change() -> Session:
            async with opened(settings) as app:
                session = await find_session(app.store, settings.user, name)
                return await app.store.sessions.update(settings.user, session.session_id, title=title)

        session = run(change())
        said = "sessions.renamed" if session.title.strip() else "sessions.nameless"
        tell(say, said, id=session.session_id[:SHORT], title=session.title)

    return rename


def _brancher(say: Say) -> Any:
    def branch(
        name: Annotated[str, argument(say, "session", "ID")],
        number: Annotated[int, argument(say, "number", "NUMBER", min=1)],
        title: Annotated[str | None, option(say, "title")] = None,
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
        as_json: Annotated[bool, flag(say, "as_json", "--json")] = False,
    ) -> None:
        settings = chosen(user, store)

        async def make() -> Session:
            async with opened(settings) as app:
                session = await find_session(app.store, settings.user, name)
                return await app.store.sessions.branch(settings.user, session.session_id, number, title=title)

        session = run(make())
        if as_json:
            show_json(session)
        else:
            tell(say, "sessions.branched", id=session.session_id, parent=session.parent_id[:SHORT], number=number)

    return branch


def _ender(say: Say) -> Any:
    def end(
        name: Annotated[str, argument(say, "session", "ID")],
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
    ) -> None:
        settings = chosen(user, store)

        async def change() -> Session:
            async with opened(settings) as app:
                session = await find_session(app.store, settings.user, name)
                return await app.end_session(settings.user, session.session_id)

        tell(say, "sessions.over", id=run(change()).session_id[:SHORT])

    return end


def _setter(say: Say) -> Any:
    def change(
        name: Annotated[str, argument(say, "session", "ID")],
        scenario: Annotated[str | None, option(say, "scenario")] = None,
        host: Annotated[str | None, option(say, "app", "--app")] = None,
        skill: Annotated[str | None, option(say, "skill_name", "--skill")] = None,
        mode: Annotated[str | None, option(say, "mode")] = None,
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
    ) -> None:
        if mode not in (None, "", "agent", "plan", "ask"):
            raise InputError(f"--mode has no choice {mode!r}", hint="choose one of agent, plan, ask")
        settings = chosen(user, store)

        async def update() -> Session:
            async with opened(settings) as app:
                session = await find_session(app.store, settings.user, name)
                await check_skill(app.store, settings.user, skill or "", session.app if host is None else host)
                return await app.store.sessions.update(
                    settings.user, session.session_id, scenario=scenario, app=host, skill=skill, mode=mode
                )

        session = run(update())
        values = {"scenario": session.scenario, "app": session.app, "skill": session.skill, "mode": session.mode}
        told = ", ".join(f"{key}={value or '—'}" for key, value in values.items())
        tell(say, "sessions.changed", id=session.session_id[:SHORT], values=told)

    return change


def _resumer(say: Say) -> Any:
    def resume(
        name: Annotated[str, argument(say, "session", "ID")],
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
    ) -> None:
        settings = chosen(user, store)

        async def change() -> Session:
            async with opened(settings) as app:
                session = await find_session(app.store, settings.user, name)
                return await app.resume_session(settings.user, session.session_id)

        tell(say, "sessions.resumed", id=run(change()).session_id[:SHORT])

    return resume


def _deleter(say: Say) -> Any:
    def delete(
        name: Annotated[str, argument(say, "session", "ID")],
        yes: Annotated[bool, flag(say, "yes", "--yes", "-y")] = False,
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
    ) -> None:
        settings = chosen(user, store)

        async def change() -> Session:
            async with opened(settings) as app:
                session = await find_session(app.store, settings.user, name)
                title = one_line(session.title) or session.session_id[:SHORT]
                confirm(say, say["sessions.sure"].format(title=title, count=session.last_seq), yes)
                await app.store.sessions.delete(settings.user, session.session_id)
                return session

        tell(say, "sessions.deleted", id=run(change()).session_id[:SHORT])

    return delete


def _collector(say: Say) -> Any:
    def collect(
        name: Annotated[str, argument(say, "message", "MESSAGE")],
        off: Annotated[bool, flag(say, "collect_off", "--off")] = False,
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
    ) -> None:
        settings = chosen(user, store)

        async def change() -> StoredMessage:
            async with opened(settings) as app:
                message = await find_message(app.store, settings.user, name)
                await app.collect(settings.user, message.message_id, not off)
                return message

        message = run(change())
        place = f"{message.session_id[:SHORT]}#{message.seq}"
        tell(say, "sessions.uncollected" if off else "sessions.collected", place=place, text=one_line(message.text, 60))

    return collect


def _importer(say: Say) -> Any:
    def import_(
        path: Annotated[Path, argument(say, "chat", "FILE")],
        title: Annotated[str | None, option(say, "title")] = None,
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
        as_json: Annotated[bool, flag(say, "as_json", "--json")] = False,
    ) -> None:
        settings = chosen(user, store)

        async def make() -> Session:
            async with opened(settings, makes=True) as app:
                with progress(say, "reading"):
                    return await import_chat(app, settings.user, path, title=title)

        session = run(make())
        if as_json:
            show_json(session)
        else:
            tell(say, "sessions.imported", id=session.session_id, count=f"{session.last_seq:,}")

    return import_
