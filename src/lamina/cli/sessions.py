"""`lamina sessions`: the chats of one user: list, start, read, search, rename, set, branch, resume, end, delete,
collect, import."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from lamina.app.lookup import check_skill, find_message, find_session, hits, import_chat
from lamina.cli.call import Call, Commands, Json, Yes, argument, check_choice, flag, option, show_json
from lamina.cli.common import ROLE_COLOURS, format_time, one_line, page, short_id, styled, table
from lamina.cli.say import Say, visible
from lamina.errors import InputError
from lamina.records import Session, StoredMessage

DEFAULT_LIMIT = 50
MESSAGE_CHARACTERS = 600
"""Characters of a message that are shown without --full."""
MODES = ("agent", "plan", "ask")
COMMANDS = Commands("sessions")
SessionName = Annotated[str, argument("session", "ID")]
Limit = Annotated[int, option("limit", "-n", "--limit", least=1)]
Title = Annotated[str | None, option("title")]
Scenario = Annotated[str | None, option("scenario")]
Host = Annotated[str | None, option("app", "--app")]
Mode = Annotated[str | None, option("mode")]


@COMMANDS.listing()
async def list_sessions(call: Call, limit: Limit = DEFAULT_LIMIT, as_json: Json = False) -> None:
    async with call.open() as app:
        found = await app.store.sessions.list(call.user, limit=limit)
    if as_json:
        show_json(list(found))
    elif not found:
        call.tell_none("cli.sessions.none")
    else:
        page(session_table(call.say, found))


def session_table(say: Say, sessions: Sequence[Session]) -> Any:
    columns, rows = ("id", "when", "messages", "scenario", "title"), [_session_row(say, one) for one in sessions]
    return table(say, columns, rows, right=("messages",), yields=("scenario", "messages", "when"))


def _session_row(say: Say, session: Session) -> list[Any]:
    title = one_line(session.title) or say("cli.untitled")
    mark = f" ({say('cli.session.ended')})" if session.ended is not None else ""
    branch = f" ⑂ {short_id(session.parent_id)}#{session.parent_seq}" if session.parent_id else ""
    style = "dim" if session.ended is not None else ""
    name = styled(short_id(session.session_id), "cyan")
    place = session.scenario + (f"/{session.app}" if session.app else "")
    return [name, format_time(session.updated), f"{session.last_seq:,}", place, styled(title + mark + branch, style)]


@COMMANDS.command("new")
async def new(
    call: Call, title: Title = None, scenario: Scenario = None, host: Host = None,
    skill: Annotated[str, option("skill_name", "--skill")] = "", mode: Mode = None, as_json: Json = False,
) -> None:  # fmt: skip
    check_choice("--mode", mode or None, MODES)
    settings = call.choose(scenario=scenario, host=host)
    async with call.open(makes=True) as app:
        await check_skill(app.store, call.user, skill, settings.host)
        session = await app.new_session(call.user, title=title or "", skill=skill, mode=mode or "")
    if as_json:
        show_json(session)
    else:
        call.tell("cli.sessions.made", id=session.session_id)


@COMMANDS.command("show")
async def show(
    call: Call, name: SessionName, limit: Limit = DEFAULT_LIMIT,
    full: Annotated[bool, flag("full", "--full")] = False, as_json: Json = False,
) -> None:  # fmt: skip
    async with call.open() as app:
        session = await find_session(app.store, call.user, name)
        count = None if full else limit
        messages = await app.store.messages.list(call.user, session.session_id, limit=count, newest=True)
    if as_json:
        show_json({"session": session, "messages": list(messages)})
        return
    page(session_table(call.say, [session]))
    _show_messages(call.say, messages, full)


def _show_messages(say: Say, messages: Sequence[StoredMessage], full: bool) -> None:
    from rich.padding import Padding
    from rich.text import Text

    parts: list[Any] = []
    if messages and messages[0].seq > 1:
        parts.append(styled(f"⋯ {say('cli.sessions.earlier', count=messages[0].seq - 1)}", "yellow"))
    for message in messages:
        head = Text(f"{message.seq:>4} ", style="dim")
        head.append(say(f"cli.role.{message.role}"), style=f"bold {ROLE_COLOURS[message.role]}")
        head.append(f"  {short_id(message.message_id)}  {format_time(message.created)}", style="dim")
        if message.state != "complete":
            head.append(f"  ⚠ {say(f'cli.state.{message.state}')}", style="bold red")
        if message.is_collected:
            head.append(f"  ★ {say('cli.message.collected')}", style="bold yellow")
        calls = [call["function"] for call in message.extra.get("tool_calls") or ()]
        lines = [message.text] if message.text else []
        lines += [say("cli.calls", name=call["name"], arguments=call["arguments"]) for call in calls]
        text = "\n".join(lines)
        if not full and len(text) > MESSAGE_CHARACTERS:
            text = f"{text[:MESSAGE_CHARACTERS]} {say('cli.more', chars=len(text) - MESSAGE_CHARACTERS)}"
        parts += [Text(""), head, Padding(Text(visible(text)), (0, 0, 0, 5))]
    page(*parts)


@COMMANDS.command("search")
async def search(
    call: Call, words: Annotated[list[str], argument("words", "WORDS")], limit: Limit = 20, as_json: Json = False
) -> None:
    query = join_words(words)
    async with call.open() as app:
        found = await app.store.sessions.search(call.user, query, limit=limit)
    if found.incomplete:
        call.warn(f"cli.search.{found.incomplete}")
    if as_json:
        show_json([{"session_id": f.session.session_id, "title": f.session.title, "seq": f.message.seq,
                    "message_id": f.message.message_id, "role": f.message.role, "snippet": f.snippet}
                   for f in found])  # fmt: skip
    elif not found:
        call.tell("cli.found.none", query=query)
    else:
        say = call.say
        rows = [
            [styled(short_id(f.session.session_id), "cyan"), f"#{f.message.seq}", say(f"cli.role.{f.message.role}"),
             one_line(f.session.title, 30) or say("cli.untitled"), mark_hits(f.snippet, query)]
            for f in found
        ]  # fmt: skip
        page(table(say, ("id", "number", "role", "title", "text"), rows, yields=("title", "role", "number")))


def join_words(words: list[str]) -> str:
    query = " ".join(words)
    if not query.strip():
        raise InputError("search.no_words")
    return query


def mark_hits(piece: str, query: str) -> Any:
    """A piece of text with the words that were looked for in colour."""
    from rich.text import Text

    text, last = Text(), 0
    for begin, end in hits(piece, query):
        text.append(visible(piece[last:begin])).append(visible(piece[begin:end]), style="bold yellow")
        last = end
    return text.append(visible(piece[last:]))


@COMMANDS.command("rename")
async def rename(call: Call, name: SessionName, title: Annotated[str, argument("title", "TITLE")]) -> None:
    async with call.open() as app:
        session = await find_session(app.store, call.user, name)
        session = await app.store.sessions.update(call.user, session.session_id, title=title)
    code = "cli.sessions.renamed" if session.title.strip() else "cli.sessions.nameless"
    call.tell(code, id=short_id(session.session_id), title=session.title)


@COMMANDS.command("branch")
async def branch(
    call: Call, name: SessionName, number: Annotated[int, argument("number", "NUMBER", least=1)],
    title: Title = None, as_json: Json = False,
) -> None:  # fmt: skip
    async with call.open() as app:
        session = await find_session(app.store, call.user, name)
        session = await app.store.sessions.branch(call.user, session.session_id, number, title=title)
    if as_json:
        show_json(session)
    else:
        call.tell("cli.sessions.branched", id=session.session_id, parent=short_id(session.parent_id), number=number)


@COMMANDS.command("set")
async def change(
    call: Call, name: SessionName, scenario: Scenario = None, host: Host = None,
    skill: Annotated[str | None, option("skill_name", "--skill")] = None, mode: Mode = None,
) -> None:  # fmt: skip
    check_choice("--mode", mode or None, MODES)
    async with call.open() as app:
        session = await find_session(app.store, call.user, name)
        await check_skill(app.store, call.user, skill or "", session.app if host is None else host)
        session = await app.store.sessions.update(
            call.user, session.session_id, scenario=scenario, app=host, skill=skill, mode=mode
        )
    values = {"scenario": session.scenario, "app": session.app, "skill": session.skill, "mode": session.mode}
    text = ", ".join(f"{key}={value or '—'}" for key, value in values.items())
    call.tell("cli.sessions.changed", id=short_id(session.session_id), values=text)


@COMMANDS.command("resume")
async def resume(call: Call, name: SessionName) -> None:
    async with call.open() as app:
        session = await find_session(app.store, call.user, name)
        await app.resume_session(call.user, session.session_id)
    call.tell("cli.sessions.resumed", id=short_id(session.session_id))


@COMMANDS.command("end")
async def end(call: Call, name: SessionName) -> None:
    async with call.open() as app:
        session = await find_session(app.store, call.user, name)
        await app.end_session(call.user, session.session_id)
    call.tell("cli.sessions.over", id=short_id(session.session_id))


@COMMANDS.command("delete")
async def delete(call: Call, name: SessionName, yes: Yes = False) -> None:
    async with call.open() as app:
        session = await find_session(app.store, call.user, name)
        title = one_line(session.title) or short_id(session.session_id)
        call.confirm(call.say("cli.sessions.sure", title=title, count=session.last_seq), yes)
        await app.store.sessions.delete(call.user, session.session_id)
    call.tell("cli.sessions.deleted", id=short_id(session.session_id))


@COMMANDS.command("collect")
async def collect(
    call: Call, name: Annotated[str, argument("message", "MESSAGE")],
    off: Annotated[bool, flag("collect_off", "--off")] = False,
) -> None:  # fmt: skip
    async with call.open() as app:
        message = await find_message(app.store, call.user, name)
        await app.collect(call.user, message.message_id, not off)
    place = f"{short_id(message.session_id)}#{message.seq}"
    code = "cli.sessions.uncollected" if off else "cli.sessions.collected"
    call.tell(code, place=place, text=one_line(message.text, 60))


@COMMANDS.command("import")
async def import_session(
    call: Call, path: Annotated[Path, argument("chat", "FILE")], title: Title = None, as_json: Json = False
) -> None:
    async with call.open(makes=True) as app:
        with call.progress("cli.progress.reading"):
            session = await import_chat(app, call.user, path, title=title)
    if as_json:
        show_json(session)
    else:
        call.tell("cli.sessions.imported", id=session.session_id, count=session.last_seq)
