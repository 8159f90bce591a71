"""`lamina sessions` and `lamina trace`: the chats of one user, and what their turns sent, rebuilt from the store byte
for byte."""

import os
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lamina.app.app import App
from lamina.app.lookup import check_skill, find_message, find_session, hits, import_chat
from lamina.app.traces import (
    Difference,
    Prefix,
    ask_again,
    compare_layers,
    difference,
    find_turn,
    prefixes_of,
    request_of,
    requests_of,
)
from lamina.cli.call import MODES, Call, Commands, Json, Mode, Yes, argument, check_choice, flag, option, show_json
from lamina.cli.say import Say, visible
from lamina.cli.view import (
    LAYER_COLOURS,
    ROLE_COLOURS,
    FittedTable,
    details,
    format_time,
    layer_bars,
    one_line,
    page,
    proof_line,
    segment_table,
    short_id,
    styled,
    table,
)
from lamina.errors import InputError
from lamina.records import Session, StoredMessage, TurnRecord
from lamina.text.messages import Phrase
from lamina.types import Receipt, ToolCallEvent, Usage
from lamina.types import Text as Words

DEFAULT_LIMIT = 50
TITLE_CHARACTERS = 60
"""Characters of the first words that become a session's title."""
MESSAGE_CHARACTERS = 600
"""Characters of a message that are shown without --full."""
ID_PREFIXES = ("chatcmpl-", "msg_")
"""What clients of the gateway have before the id of a turn."""
SESSIONS = Commands("sessions")
TRACE = Commands("trace")
SessionName = Annotated[str, argument("session", "ID")]
Limit = Annotated[int, option("limit", "-n", "--limit", least=1)]
Title = Annotated[str | None, option("title")]
Scenario = Annotated[str | None, option("scenario")]
Host = Annotated[str | None, option("app", "--app")]
TurnName = Annotated[str, argument("turn", "TURN")]
Request = Annotated[int | None, option("request", "--request", least=1)]
Skill = Annotated[str | None, option("skill_name", "--skill")]
Full = Annotated[bool, flag("full", "--full")]
Query = Annotated[list[str], argument("words", "WORDS")]
NewTitle = Annotated[str, argument("title", "TITLE")]
Number = Annotated[int, argument("number", "NUMBER", least=1)]
MessageName = Annotated[str, argument("message", "MESSAGE")]
CollectOff = Annotated[bool, flag("collect_off", "--off")]
ChatFile = Annotated[Path, argument("chat", "FILE")]
Payload = Annotated[bool, flag("payload", "--payload")]
Out = Annotated[Path | None, option("out", "--out")]
Send = Annotated[bool, flag("send", "--send")]


async def start_session(app: App, words: str, *, mode: str | None = None, skill: str = "", phase: str = "") -> Session:
    """A new session, named after the words that begin it."""
    settings, _ = app.settings, app.provider  # a provider that cannot answer is reported before anything is stored
    title = one_line(words.replace("\0", ""), TITLE_CHARACTERS)  # which words may hold and a title may not
    return await app.new_session(settings.user, title=title, mode=mode or settings.mode, skill=skill, phase=phase)


async def resume_session(app: App, name: str, mode: str | None = None, *, resumed: bool = True) -> Session:
    """An existing session, in another mode where one is given. One more question is not a resume: the model does not
    get its instructions again for it."""
    owner = app.settings.user
    session = await find_session(app.store, owner, name)
    if resumed or session.ended:
        session = await app.resume_session(owner, session.session_id)
    if mode and mode != session.mode:
        session = await app.store.sessions.update(owner, session.session_id, mode=mode)
    return session


@asynccontextmanager
async def _open_session(call: Call, name: str) -> AsyncGenerator[tuple[App, Session], None]:
    async with call.open() as app:
        yield app, await find_session(app.store, call.user, name)


@SESSIONS.listing()
async def list_sessions(call: Call, limit: Limit = DEFAULT_LIMIT, as_json: Json = False) -> None:
    async with call.open() as app:
        found = await app.store.sessions.list(call.user, limit=limit)
    if as_json:
        show_json(list(found))
    elif not found:
        call.tell_none("cli.sessions.none")
    else:
        page(session_table(call.say, found))


def session_table(say: Say, sessions: Sequence[Session]) -> FittedTable:
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


@SESSIONS.command("new")
async def new(
    call: Call,
    title: Title = None,
    scenario: Scenario = None,
    host: Host = None,
    skill: Skill = None,
    mode: Mode = None,
    as_json: Json = False,
) -> None:
    check_choice("--mode", mode or None, MODES)
    settings = call.choose(scenario=scenario, host=host)
    async with call.open(makes=True) as app:
        await check_skill(app.store, call.user, skill or "", settings.host)
        session = await app.new_session(call.user, title=title or "", skill=skill or "", mode=mode or "")
    call.reply(as_json, session, "cli.sessions.made", id=session.session_id)


@SESSIONS.command("show")
async def show(
    call: Call, name: SessionName, limit: Limit = DEFAULT_LIMIT, full: Full = False, as_json: Json = False
) -> None:
    async with _open_session(call, name) as (app, session):
        count = None if full else limit
        messages = await app.store.messages.list(call.user, session.session_id, limit=count, newest=True)
    if as_json:
        show_json({"session": session, "messages": list(messages)})
        return
    page(session_table(call.say, [session]))
    _show_messages(call.say, messages, full)


def _show_messages(say: Say, messages: Sequence[StoredMessage], full: bool) -> None:
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


@SESSIONS.command("search")
async def search(call: Call, words: Query, limit: Limit = 20, as_json: Json = False) -> None:
    say, query = call.say, join_words(words)
    async with call.open() as app:
        found = await app.store.sessions.search(call.user, query, limit=limit)
    if found.incomplete:
        call.warn(f"cli.search.{found.incomplete}")
    if not found and not as_json:
        return call.tell("cli.found.none", query=query)
    plain: list[dict[str, Any]] = []
    rows: list[list[Any]] = []
    for one in found:
        session, message = one.session, one.message
        fact = {"session_id": session.session_id, "title": session.title, "seq": message.seq}
        plain.append(fact | {"message_id": message.message_id, "role": message.role, "snippet": one.snippet})
        title, snippet = one_line(session.title, 30) or say("cli.untitled"), mark_hits(one.snippet, query)
        name = styled(short_id(session.session_id), "cyan")
        rows.append([name, f"#{message.seq}", say(f"cli.role.{message.role}"), title, snippet])
    if as_json:
        return show_json(plain)
    return page(table(say, ("id", "number", "role", "title", "text"), rows, yields=("title", "role", "number")))


def join_words(words: list[str]) -> str:
    query = " ".join(words)
    if not query.strip():
        raise InputError("search.no_words")
    return query


def mark_hits(piece: str, query: str) -> Text:
    """A piece of text with the words that were searched for in colour."""
    text, last = Text(), 0
    for begin, end in hits(piece, query):
        text.append(visible(piece[last:begin])).append(visible(piece[begin:end]), style="bold yellow")
        last = end
    return text.append(visible(piece[last:]))


@SESSIONS.command("rename")
async def rename(call: Call, name: SessionName, title: NewTitle) -> None:
    async with _open_session(call, name) as (app, session):
        session = await app.store.sessions.update(call.user, session.session_id, title=title)
    code = "cli.sessions.renamed" if session.title.strip() else "cli.sessions.nameless"
    call.tell(code, id=short_id(session.session_id), title=session.title)


@SESSIONS.command("branch")
async def branch(call: Call, name: SessionName, number: Number, title: Title = None, as_json: Json = False) -> None:
    async with _open_session(call, name) as (app, session):
        made = await app.store.sessions.branch(call.user, session.session_id, number, title=title)
    parent = short_id(made.parent_id)
    call.reply(as_json, made, "cli.sessions.branched", id=made.session_id, parent=parent, number=number)


@SESSIONS.command("set")
async def change(
    call: Call,
    name: SessionName,
    scenario: Scenario = None,
    host: Host = None,
    skill: Skill = None,
    mode: Mode = None,
) -> None:
    check_choice("--mode", mode or None, MODES)
    async with _open_session(call, name) as (app, session):
        await check_skill(app.store, call.user, skill or "", session.app if host is None else host)
        session = await app.store.sessions.update(
            call.user, session.session_id, scenario=scenario, app=host, skill=skill, mode=mode
        )
    values = {name: getattr(session, name) or "—" for name in ("scenario", "app", "skill", "mode")}
    text = ", ".join(f"{key}={value}" for key, value in values.items())
    call.tell("cli.sessions.changed", id=short_id(session.session_id), values=text)


@SESSIONS.command("resume")
async def resume(call: Call, name: SessionName) -> None:
    async with _open_session(call, name) as (app, session):
        await app.resume_session(call.user, session.session_id)
    call.tell("cli.sessions.resumed", id=short_id(session.session_id))


@SESSIONS.command("end")
async def end(call: Call, name: SessionName) -> None:
    async with _open_session(call, name) as (app, session):
        await app.end_session(call.user, session.session_id)
    call.tell("cli.sessions.over", id=short_id(session.session_id))


@SESSIONS.command("delete")
async def delete(call: Call, name: SessionName, yes: Yes = False) -> None:
    async with _open_session(call, name) as (app, session):
        title = one_line(session.title) or short_id(session.session_id)
        call.confirm(call.say("cli.sessions.sure", title=title, count=session.last_seq), yes)
        await app.store.sessions.delete(call.user, session.session_id)
    call.tell("cli.sessions.deleted", id=short_id(session.session_id))


@SESSIONS.command("collect")
async def collect(call: Call, name: MessageName, off: CollectOff = False) -> None:
    async with call.open() as app:
        message = await find_message(app.store, call.user, name)
        await app.collect(call.user, message.message_id, not off)
    place = f"{short_id(message.session_id)}#{message.seq}"
    code = "cli.sessions.uncollected" if off else "cli.sessions.collected"
    call.tell(code, place=place, text=one_line(message.text, 60))


@SESSIONS.command("import")
async def import_session(call: Call, path: ChatFile, title: Title = None, as_json: Json = False) -> None:
    async with call.open(makes=True) as app:
        with call.progress("cli.progress.reading"):
            session = await import_chat(app, call.user, path, title=title)
    call.reply(as_json, session, "cli.sessions.imported", id=session.session_id, count=session.last_seq)


async def _find_turn(call: Call, app: App, name: str) -> TurnRecord:
    """A turn by its id, also as clients of the gateway have it in their replies."""
    for prefix in ID_PREFIXES:
        name = name.removeprefix(prefix)
    return await find_turn(app.store, call.user, name)


@TRACE.command("show", examples=True)
async def show_turn(
    call: Call, name: TurnName, request: Request = None, payload: Payload = False, as_json: Json = False
) -> None:
    if as_json and payload:
        raise InputError("option.exclusive", first="--json", second="--payload")
    async with call.open() as app:
        turn = await _find_turn(call, app, name)
        receipt = await request_of(app.store, call.user, turn, request)
        ids = (turn.user_message_id, turn.answer_message_id)
        texts = [(await app.store.messages.get(call.user, message_id)).text for message_id in ids]
        receipts = list(await requests_of(app.store, call.user, turn))
        prefixes = await prefixes_of(app.store, call.user, turn, receipts)
    if payload:
        _write_payload(receipt.payload)
    elif as_json:
        facts = {n: getattr(turn, n) for n in ("turn_id", "session_id", "state", "usage", "created")}
        facts["error"] = Phrase.load(turn.error).text()
        plain = [asdict(prefix) if prefix else None for prefix in prefixes]
        show_json({**facts, "requests": [one.to_dict() for one in receipts], "prefixes": plain})
    else:
        rows = _turn_rows(call.say, turn, receipt, texts)
        rows["requests"] = "\n".join(_request_lines(call.say, receipts, receipt, prefixes))
        segments = Padding(segment_table(receipt, call.say, full=False), (1, 0, 0, 0))
        proof = Padding(Text(proof_line(receipt, call.say), style="dim"), (0, 1))
        page(details(call.say, rows), Text(""), layer_bars(receipt, call.say), segments, proof)


def _turn_rows(say: Say, turn: TurnRecord, receipt: Receipt, texts: Sequence[str]) -> dict[str, object]:
    state = say(f"cli.state.{turn.state}")
    if turn.error:
        state = say("cli.trace.state", state=state, error=say.render(Phrase.load(turn.error)))
    colour = {"complete": "green", "failed": "red"}.get(turn.state, "yellow")
    own = turn.session_id.startswith("@")  # a name of lamina's own, such as that of single requests, is not cut
    rows: dict[str, object] = {"turn": turn.turn_id, "session": turn.session_id if own else short_id(turn.session_id)}
    rows |= {"began": format_time(turn.created), "state": styled(state, colour), "said": one_line(texts[0])}
    rows["answer"] = one_line(texts[1]) or "—"
    if turn.usage:
        counts = {name: value for name, value in turn.usage.items() if isinstance(value, int)}
        named = (say.get(f"cli.usage.{name}", f"{name} {value:,}", count=value) for name, value in counts.items())
        rows["usage"] = say.join(named)
    if receipt.triggers:
        rows["injected"] = say.join(say(f"cli.trigger.{code}") for code in receipt.triggers)
    return rows


def _request_lines(
    say: Say, receipts: Sequence[Receipt], chosen: Receipt, prefixes: Sequence[Prefix | None]
) -> list[str]:
    lines: list[str] = []
    for number, (receipt, prefix) in enumerate(zip(receipts, prefixes, strict=True), 1):
        values = {"tokens": receipt.tokens, "bytes": receipt.size, "hash": receipt.hash[:16]}
        line = say("cli.trace.request", number=number, **values)
        if prefix:
            line += f"\n    {say('cli.trace.prefix', predicted=prefix.predicted, cached=prefix.cached)}"
        lines.append(f"{line} ◀" if receipt.hash == chosen.hash else line)
    return lines


@TRACE.command("diff", examples=True)
async def diff(call: Call, before: TurnName, after: TurnName, as_json: Json = False) -> None:
    async with call.open() as app:
        first, second = [await _find_turn(call, app, name) for name in (before, after)]
        same = first.turn_id == second.turn_id
        a = await request_of(app.store, call.user, first, 1 if same else None)
        b = await request_of(app.store, call.user, second, None if same else 1)
    found, layers = difference(a, b), compare_layers(a, b)
    if as_json:
        show_json({**found.to_dict(), "layers": layers})
    elif found.byte is None:
        call.tell("cli.diff.same")
    else:
        _show_difference(call.say, found, layers)


def _show_difference(say: Say, found: Difference, layers: dict[str, tuple[int, int]]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(say("cli.col.layer"))
    for head in ("cli.diff.before", "cli.diff.after", "cli.diff.change"):
        table.add_column(say(head), justify="right")
    for layer, (old, new) in layers.items():
        change = Text(f"{new - old:+,}" if new != old else "·", style="yellow" if new != old else "dim")
        table.add_row(Text(layer, style=LAYER_COLOURS.get(layer, "white")), f"{old:,}", f"{new:,}", change)
    code, colour = ("cli.diff.grows", "bold green") if found.extends else ("cli.diff.differs", "bold yellow")
    where = say(code, byte=str(found.byte), layer=found.layer, source=found.source)
    shared = say("cli.diff.shared", shared=found.shared_tokens, after=found.tokens_after)
    reason = Text(say.render(found.reason))
    page(Text(where, style=colour), reason, Text(shared, style="dim"), Text(""), table)


@TRACE.command("replay", examples=True)
async def replay(call: Call, name: TurnName, request: Request = None, out: Out = None, send: Send = False) -> None:
    async with call.open() as app:
        turn = await _find_turn(call, app, name)
        receipt = await request_of(app.store, call.user, turn, request)
        if out:
            _write_new_file(out, receipt.payload)
            call.tell("cli.trace.written", path=str(out), size=receipt.size, hash=receipt.hash)
        elif not send:
            _write_payload(receipt.payload)
        if send:
            answer = await app.store.messages.get(call.user, turn.answer_message_id)
            await _send_again(call, app, receipt, answer.text)


async def _send_again(call: Call, app: App, receipt: Receipt, stored: str) -> None:
    """The stored answer and the new one, one below the other, with what the provider counted."""
    say = call.say
    call.tell("cli.trace.sends", size=receipt.size, hash=receipt.hash[:16], model=app.provider.model)
    print(f"\n── {say('cli.trace.stored')} ──\n{visible(stored) or '—'}\n\n── {say('cli.trace.again')} ──")
    answer = ""
    async for event in ask_again(app.settings, receipt):
        match event:
            case Words():
                answer += event.text
                print(visible(event.text), end="", flush=True)
            case ToolCallEvent():
                call.tell("cli.calls", name=event.name, arguments=event.arguments)
            case Usage():
                counts = {"prompt": event.prompt, "completion": event.completion, "cached": event.cached}
                print(f"\n{say('cli.trace.usage', **counts)}", end="")
            case _:
                pass
    print(f"\n\n{say('cli.trace.same' if answer == stored else 'cli.trace.other')}")


def _write_new_file(path: Path, payload: bytes) -> None:
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(payload)
    except FileExistsError:
        raise InputError("file.exists", path=repr(str(path))) from None
    except OSError as error:
        raise InputError("file.not_writable", path=repr(str(path)), why=error.strerror) from None


def _write_payload(payload: bytes) -> None:
    """The bytes and nothing else; on a terminal as text that cannot drive it."""
    sys.stdout.flush()
    if sys.stdout.isatty():
        print(visible(payload.decode("utf-8", "replace")))
    else:
        sys.stdout.buffer.write(payload)
