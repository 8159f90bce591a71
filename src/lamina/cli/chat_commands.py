"""The slash commands of a chat: each looks something up or changes the session, and says so in a few lines.

They are for people on a terminal; scripts use `lamina sessions`, `memory`, `trace` and the others.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Unpack

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from lamina.app.app import App
from lamina.app.config import with_model
from lamina.app.lookup import check_skill, read_phase, usable_skills
from lamina.app.traces import explain_unsent, last_turn, messages_of, next_context, request_of, requests_of, rules_of
from lamina.cli.call import MODES, check_choice
from lamina.cli.chat_view import TurnSummary, call_line, format_over_budget, result_lines
from lamina.cli.memory import found_table, memory_table
from lamina.cli.say import Say, visible
from lamina.cli.screen import AnswerMarkdown, Screen
from lamina.cli.sessions import resume_session, session_table, start_session
from lamina.cli.view import (
    cut_table,
    files_table,
    format_time,
    layer_bars,
    one_line,
    pairs,
    proof_line,
    segment_table,
    short_id,
    styled,
    table,
)
from lamina.engine.transcript import CallPair, stored_calls
from lamina.errors import ABSENT, CompactionError, InputError, LaminaError, NotFoundError, SettingsError
from lamina.records import Session, SessionChanges, StoredMessage, Template, TurnRecord
from lamina.text.messages import Phrase, Value
from lamina.types import Receipt, ToolCallEvent, ToolResult

MAX_LISTED = 15
RECAP_CHARACTERS = 1_200
"""Characters of the last answer that are shown when a session is resumed."""
NONE = ("none", "off", "-")


@dataclass(frozen=True, slots=True)
class LeaveRequest:
    """The person leaves."""


@dataclass(frozen=True, slots=True)
class ModelSwitch:
    """The person wants another model."""

    model: str


@dataclass(slots=True)
class ChatState:
    """A chat on a terminal: the app, the screen, the session and the last turn.

    The first message starts the session, so that a look at a chat stores nothing.
    """

    app: App
    say: Say
    screen: Screen
    session: Session | None
    wanted: str | None = None
    """A mode for the next session."""
    skill: str = ""
    phase: str = ""
    """The phase of the next session."""
    last: TurnSummary | None = None
    sessions: Sequence[Session] = ()
    skills: Sequence[Template] = field(default_factory=list[Template])

    @property
    def owner(self) -> str:
        return self.app.settings.user

    @property
    def host(self) -> str:
        """The app in which the chat runs."""
        return self.session.app if self.session else self.app.settings.host

    @property
    def mode(self) -> str:
        return (self.session.mode if self.session else self.wanted or self.app.settings.mode) or "ask"

    async def session_for(self, words: str) -> Session:
        if self.session is None:
            self.session = await start_session(self.app, words, mode=self.wanted, skill=self.skill, phase=self.phase)
        return self.session

    async def change_session(self, **changes: Unpack[SessionChanges]) -> None:
        """Change the session, if there is one; otherwise the next one will have the changes."""
        if self.session:
            sessions = self.app.store.sessions
            self.session = await sessions.update(self.owner, self.session.session_id, **changes)

    async def refresh(self) -> None:
        """What completion offers, as it is now."""
        self.sessions = await self.app.store.sessions.list(self.owner, limit=MAX_LISTED)
        if self.session:
            self.session = await self.app.store.sessions.get(self.owner, self.session.session_id)
        self.skills = await usable_skills(self.app.store, self.owner, self.host)

    def show(self, *parts: Any) -> None:
        self.screen.print(Text(""), *(Padding(part, (0, 0, 0, 2)) for part in parts), Text(""))

    def print_line(self, name: str, /, **values: Value) -> None:
        self.show(Text(self.say(name, **values)))

    def show_error(self, error: LaminaError) -> None:
        words = Text(f"✗ {self.say.render(error.phrase)}", style="red")
        if error.next_step:
            words.append(f"\n  {self.say.next(error.next_step)}", style="default")
        self.show(words)

    async def recap(self) -> None:
        """The last turn of a session that is resumed: question, calls, answer."""
        assert self.session is not None
        turn = await last_turn(self.app.store, self.owner, self.session.session_id)
        if turn:
            rows = await messages_of(self.app.store, self.owner, turn)
        else:  # messages from elsewhere
            rows = await self.app.store.messages.list(self.owner, self.session.session_id, limit=2, newest=True)
        calls = stored_calls(rows)
        self.last = TurnSummary(calls=calls, stored=True)
        title = one_line(self.session.title) or self.say("cli.untitled")
        facts = [short_id(self.session.session_id), format_time(self.session.updated)]
        facts.append(self.say("cli.chat.count", count=self.session.last_seq))
        line = Text().append("↻ ", style="cyan").append(visible(title), style="bold")
        self.screen.print(line.append(f"  {' · '.join(facts)}", style="dim"), Text(""))
        for row in rows:
            self._recap_row(row, {call.id: (call, result) for call, result in calls})
        if turn and turn.state in ("interrupted", "failed"):
            mark = Text(f"⚠ {self.say(f'cli.chat.was.{turn.state}')}", style="yellow")
            self.screen.print(Padding(mark, (0, 0, 0, 2)), Text(""))

    def _recap_row(self, row: StoredMessage, calls: Mapping[str, CallPair]) -> None:
        text = row.text if len(row.text) <= RECAP_CHARACTERS else f"…{row.text[-RECAP_CHARACTERS:]}"
        if row.role == "user":
            words = Text().append("› ", style="dim cyan").append(visible(one_line(row.text, 300)), style="dim")
            self.screen.print(words, Text(""))
        elif row.role == "assistant" and text.strip():
            self.screen.print(Padding(AnswerMarkdown(text), (0, 0, 0, 2)), Text(""))
        asked = [calls[call["id"]] for call in row.extra.get("tool_calls") or ()]
        for call, result in asked:
            self.screen.print(self.call_lines(call, result, full=False))
        if asked:
            self.screen.print(Text(""))

    def call_lines(self, call: ToolCallEvent, result: ToolResult | None, *, full: bool) -> Any:
        """A call of the last turn; without a result when the turn ended before one came."""
        width, timed = self.screen.width, not (self.last and self.last.stored)
        if result:
            return result_lines(self.say, call, result, full=full, width=width, timed=timed)
        line = Text().append("⚠ ", style="yellow").append_text(call_line(call.name, call.arguments, width - 20))
        return Padding(line.append(f" · {self.say('cli.chat.no_result')}", style="dim"), (0, 0, 0, 2))

    async def turn(self) -> TurnRecord:
        """The last turn of this session."""
        found = await last_turn(self.app.store, self.owner, self.session.session_id) if self.session else None
        if found is None:
            raise InputError("chat.no_turn")
        return found


After = LeaveRequest | ModelSwitch | None
Command = Callable[[ChatState, str], Awaitable[After]]


async def _new(chat: ChatState, words: str) -> None:
    chat.session, chat.last, chat.phase = None, None, ""
    chat.print_line("cli.chat.fresh")


async def _sessions(chat: ChatState, words: str) -> None:
    if not chat.sessions:
        return chat.print_line("cli.sessions.none", user=chat.owner)
    return chat.show(session_table(chat.say, chat.sessions))


async def _resume(chat: ChatState, words: str) -> None:
    if not words:
        raise InputError("chat.which_session")
    try:
        chat.session = await resume_session(chat.app, words)
    except NotFoundError as error:
        if error.next_step.code != ABSENT:
            raise
        hint = Phrase("cli.listed", command="/sessions")
        raise NotFoundError(error.code, hint=hint, **error.phrase.values) from None
    chat.screen.print(Text(""))
    await chat.recap()


async def _mode(chat: ChatState, words: str) -> None:
    if words:
        check_choice("/mode", words, MODES)
        chat.wanted = words
        await chat.change_session(mode=words)
    lines = [
        Text()
        .append("● " if name == chat.mode else "○ ", style="cyan" if name == chat.mode else "dim")
        .append(f"{name:<6}", style="bold" if name == chat.mode else "")
        .append(f" {chat.say(f'cli.mode.{name}')}", style="dim")
        for name in MODES
    ]
    chat.show(*lines)


async def _skill(chat: ChatState, words: str) -> None:
    names = {template.name for template in chat.skills}
    if words:
        if words not in names and words not in NONE:
            if close := get_close_matches(words, names, 1):
                raise InputError("skill.not_enabled", hint="skill.known", name=repr(words), known=close)
            await check_skill(chat.app.store, chat.owner, words, chat.host)
        chat.skill = "" if words in NONE else words
        await chat.change_session(skill=chat.skill)
    if not chat.skills:
        return chat.print_line("cli.chat.no_skills")
    chosen = chat.session.skill if chat.session else chat.skill
    rows: list[tuple[Any, str]] = []
    for template in chat.skills:
        name = styled(f"● {template.name}", "cyan") if template.name == chosen else f"○ {template.name}"
        rows.append((name, one_line(template.description, 100)))
    return chat.show(table(chat.say, ("name", "text"), rows))


async def _phase(chat: ChatState, words: str) -> None:
    """What the chat is working on now, sent before each message from here on."""
    if words:
        chat.phase = read_phase(words)
        await chat.change_session(phase=chat.phase)
    phase = chat.session.phase if chat.session else chat.phase
    chat.print_line("cli.chat.phase" if phase else "cli.chat.no_phase", phase=one_line(phase, 300))


async def _rules(chat: ChatState, words: str) -> None:
    rules = rules_of(chat.app, chat.session)
    parts: list[Any] = [files_table([dict(row) for row in rules.rows], chat.say)]
    parts += [] if rules.any else [Text(chat.say("cli.rules.none"), style="dim")]
    parts += [Text(chat.say("cli.rules.counters", **rules.counters), style="dim")] if rules.counters else []
    chat.show(*parts)


async def _memory(chat: ChatState, words: str) -> None:
    if not chat.app.settings.memory:
        raise SettingsError("memory.off")
    memory = chat.app.memory(chat.owner)
    if not words:
        memories = await memory.list(limit=MAX_LISTED)
        if not memories:
            return chat.print_line("cli.memory.none", user=chat.owner)
        return chat.show(memory_table(chat.say, memories))
    found = await memory.get_relevant_memories(words, chat.app.settings.memories)
    if not found:
        return chat.print_line("cli.found.none", query=words)
    return chat.show(found_table(chat.say, found, words))


async def _context(chat: ChatState, words: str) -> None:
    """With words: what the model would see if they were said now. Without: what it saw last."""
    turn = await last_turn(chat.app.store, chat.owner, chat.session.session_id) if chat.session else None
    if turn and not words:
        receipt = await request_of(chat.app.store, chat.owner, turn)
        return chat.show(Text(chat.say("cli.chat.context.last"), style="bold"), *budget(chat.say, receipt))
    context = await next_context(
        chat.app, chat.session, words or "…", mode=chat.mode, skill=chat.skill, phase=chat.phase
    )
    return chat.show(Text(chat.say("cli.chat.context.next"), style="bold"), *budget(chat.say, context.receipt))


def budget(say: Say, receipt: Receipt) -> list[Any]:
    """A bar for each layer, and what was cut and why."""
    parts: list[Any] = [Text(""), layer_bars(receipt, say)]
    if receipt.over_budget:
        parts += [Text(""), format_over_budget(say)]
    if left_out := cut_table(receipt, say):
        return [*parts, Text(""), Text(say("cli.chat.cut"), style="yellow"), left_out]
    return parts if receipt.over_budget else [*parts, Text(""), Text(say("cli.chat.nothing_cut"), style="dim")]


async def _why(chat: ChatState, words: str) -> None:
    turn = await chat.turn()
    receipts = await requests_of(chat.app.store, chat.owner, turn)
    if not receipts:
        raise explain_unsent(turn)
    number = int(words) if words.isascii() and words.isdigit() else len(receipts)
    if not 1 <= number <= len(receipts):
        raise InputError("chat.no_request", number=number, count=len(receipts))
    receipt = receipts[number - 1]
    head = chat.say("cli.chat.why", turn=short_id(turn.turn_id), number=number, count=len(receipts))
    chat.screen.print(
        Padding(Group(Text(head, style="bold"), Text("")), (1, 0, 0, 2)),
        Padding(segment_table(receipt, chat.say, full=False), (0, 0, 0, 1)),
        Padding(Text(proof_line(receipt, chat.say), style="dim"), (0, 0, 0, 2)),
        Text(""),
    )


async def _tools(chat: ChatState, words: str) -> None:
    calls = chat.last.calls if chat.last else ()
    if not calls:
        return chat.print_line("cli.chat.no_calls")
    chat.screen.print(Text(""))
    for call, result in calls:
        chat.screen.print(chat.call_lines(call, result, full=True), Text(""))
    return None


async def _collect(chat: ChatState, words: str) -> None:
    turn = await chat.turn()
    await chat.app.collect(chat.owner, turn.answer_message_id)
    message = await chat.app.store.messages.get(chat.owner, turn.answer_message_id)
    place = f"{short_id(turn.session_id)}#{message.seq}"
    chat.print_line("cli.sessions.collected", place=place, text=one_line(message.text, 60))


async def _compact(chat: ChatState, words: str) -> None:
    if chat.session is None:
        raise InputError("chat.no_turn")
    try:
        with chat.screen.console.status(chat.say("cli.chat.compacting"), spinner_style="cyan"):
            done = await chat.app.compact(chat.owner, chat.session.session_id)
    except CompactionError as error:  # nothing is wrong: there is little to gain yet, and the chat goes on
        return chat.show(Text(f"{chat.say.render(error.phrase)}\n{chat.say.next(Phrase('cli.chat.compact_later'))}"))
    chat.print_line("cli.chat.compacted", before=done.before, after=done.after, by=done.written_by)
    return None


async def _model(chat: ChatState, words: str) -> After:
    provider = chat.app.provider
    if words:
        with_model(chat.app.settings, words)  # one that does not exist is refused here, where there is a way back
        return ModelSwitch(words)
    window = f"{provider.window:,}" if provider.window else "—"
    chat.print_line("cli.chat.model", model=provider.model, provider=provider.name, window=window)
    return None


async def _help(chat: ChatState, words: str) -> None:
    arguments = {name: chat.say.get(f"cli.slash.{name}.arg", "") for name in COMMANDS}
    rows = [(f"/{name} {given}".rstrip(), chat.say(f"cli.slash.{name}")) for name, given in arguments.items()]
    chat.show(pairs(rows, style="cyan"), Text(""), Text(chat.say("cli.chat.help_keys"), style="dim"))


async def _quit(chat: ChatState, words: str) -> After:
    return LeaveRequest()


COMMANDS: Mapping[str, Command] = {
    "new": _new, "sessions": _sessions, "resume": _resume, "mode": _mode, "skill": _skill, "phase": _phase,
    "rules": _rules, "memory": _memory, "context": _context, "why": _why, "tools": _tools, "collect": _collect,
    "compact": _compact, "model": _model, "help": _help, "quit": _quit,
}  # fmt: skip


async def run_command(chat: ChatState, words: str) -> After:
    """Do what a slash command says."""
    name, _, rest = words.removeprefix("/").partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        close = get_close_matches(name, COMMANDS, 1) or [one for one in COMMANDS if name and one.startswith(name)]
        hint = Phrase("cli.chat.did_you_mean", name=close[0]) if close else ""
        raise InputError("chat.unknown_command", name=f"/{name}", hint=hint)
    return await command(chat, rest.strip())


def choices(chat: ChatState, name: str) -> Iterable[tuple[str, str]]:
    """What may be typed next: the commands, or what may follow one of them."""
    say = chat.say
    if not name:
        return [(f"/{one}", say(f"cli.slash.{one}")) for one in COMMANDS]
    if name == "mode":
        return [(mode, say(f"cli.mode.{mode}")) for mode in MODES]
    if name == "resume":
        return [(short_id(one.session_id), one_line(one.title, 50) or say("cli.untitled")) for one in chat.sessions]
    if name == "skill":
        return [*((one.name, one_line(one.description, 50)) for one in chat.skills), ("none", "")]
    return ()
