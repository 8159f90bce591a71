"""The slash commands of a chat: each looks something up or changes the session, and says so in a few lines.

They are for people on a terminal; scripts have `lamina sessions`, `memory`, `trace` and the others.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from lamina.app.app import App
from lamina.app.commands import check_skill, usable_skills
from lamina.app.providers import with_model
from lamina.app.traces import (
    Call,
    called,
    last_turn,
    messages_of,
    next_context,
    request_of,
    requests_of,
    rules_of,
    unsent,
)
from lamina.cli.chat_view import Seen, call_line, result_lines
from lamina.cli.common import SHORT, Say, day, one_line, styled, table
from lamina.cli.markdown import Answer
from lamina.cli.memory import memory_table
from lamina.cli.screen import Screen
from lamina.cli.sessions import marked, session_table
from lamina.cli.talk import MODES, begin, check_mode, take_up
from lamina.cli.texts import visible
from lamina.cli.texts_errors import error_in
from lamina.cli.view import bars, cuts, files_table, proof, segments
from lamina.errors import CompactionError, InputError, LaminaError, SettingsError
from lamina.records import Session, StoredMessage, Template, TurnRecord
from lamina.types import Receipt, ToolCallEvent, ToolResult

LISTED = 15
RECAP = 1_200
"""Characters of the last answer that are shown when a session is taken up again."""
NONE = ("none", "off", "-")


@dataclass(frozen=True, slots=True)
class Leave:
    """Somebody is done."""


@dataclass(frozen=True, slots=True)
class Switch:
    """Somebody wants another model."""

    model: str


@dataclass(slots=True)
class Desk:
    """What lies on the table during a chat: the app, the screen, the session and the last turn.

    A session is begun by its first words, so that looking in leaves nothing behind.
    """

    app: App
    say: Say
    screen: Screen
    session: Session | None
    wanted: str | None = None
    """A mode for the next session."""
    skill: str = ""
    last: Seen | None = None
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
            self.session = await begin(self.app, words, mode=self.wanted, skill=self.skill)
        return self.session

    async def refresh(self) -> None:
        """What completion offers, as it is now."""
        self.sessions = await self.app.store.sessions.list(self.owner, limit=LISTED)
        if self.session:
            self.session = await self.app.store.sessions.get(self.owner, self.session.session_id)
        self.skills = await usable_skills(self.app.store, self.owner, self.host)

    def show(self, *parts: Any) -> None:
        self.screen.print(Text(""), *(Padding(part, (0, 0, 0, 2)) for part in parts), Text(""))

    def say_line(self, name: str, /, **values: object) -> None:
        self.show(Text(self.say[name].format(**{n: visible(str(v)) for n, v in values.items()})))

    def complain(self, error: LaminaError) -> None:
        message, hint = (visible(error_in(self.say["lang"], said)) for said in (error.message, error.hint))
        words = Text(f"✗ {message}", style="red")
        if hint:
            words.append(f"\n  {self.say['next']}{self.say['colon']}{hint}", style="default")
        self.show(words)

    async def recap(self) -> None:
        """The last turn of a session that is taken up again: question, calls, answer."""
        assert self.session is not None
        turn = await last_turn(self.app.store, self.owner, self.session.session_id)
        if turn:
            rows = await messages_of(self.app.store, self.owner, turn)
        else:  # messages from elsewhere
            rows = await self.app.store.history.messages(self.owner, self.session.session_id, limit=2, newest=True)
        calls = called(rows)
        self.last = Seen(calls=calls, stored=True)
        title = one_line(self.session.title) or self.say["untitled"]
        self.screen.print(
            Text().append("↻ ", style="cyan").append(visible(title), style="bold").append(
                f"  {self.session.session_id[:SHORT]} · {day(self.session.updated)} · "
                + self.say["chat.count"].format(count=self.session.last_seq), style="dim"),
            Text(""),
        )  # fmt: skip
        for row in rows:
            self._recap_row(row, {call.id: (call, result) for call, result in calls})
        if turn and turn.state in ("interrupted", "failed"):
            mark = Text(f"⚠ {self.say[f'chat.was.{turn.state}']}", style="yellow")
            self.screen.print(Padding(mark, (0, 0, 0, 2)), Text(""))

    def _recap_row(self, row: StoredMessage, calls: Mapping[str, Call]) -> None:
        text = row.text if len(row.text) <= RECAP else f"…{row.text[-RECAP:]}"
        if row.role == "user":
            words = Text().append("› ", style="dim cyan").append(visible(one_line(row.text, 300)), style="dim")
            self.screen.print(words, Text(""))
        elif row.role == "assistant" and text.strip():
            self.screen.print(Padding(Answer(text), (0, 0, 0, 2)), Text(""))
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
        return Padding(line.append(f" · {self.say['chat.no_result']}", style="dim"), (0, 0, 0, 2))

    async def turn(self) -> TurnRecord:
        """The last turn of this session."""
        found = await last_turn(self.app.store, self.owner, self.session.session_id) if self.session else None
        if found is None:
            raise InputError(self.say["chat.no_turn"], hint=self.say["chat.no_turn.next"])
        return found

    def need(self) -> Session:
        if self.session is None:
            raise InputError(self.say["chat.no_turn"], hint=self.say["chat.no_turn.next"])
        return self.session


After = Leave | Switch | None
Command = Callable[[Desk, str], Awaitable[After]]


async def _new(desk: Desk, words: str) -> None:
    desk.session, desk.last = None, None
    desk.say_line("chat.fresh")


async def _sessions(desk: Desk, words: str) -> None:
    found = desk.sessions
    if not found:
        return desk.say_line("sessions.none", user=desk.owner)
    desk.show(session_table(desk.say, found))
    return None


async def _resume(desk: Desk, words: str) -> None:
    if not words:
        raise InputError(desk.say["chat.which"], hint=desk.say["chat.which.next"])
    desk.session = await take_up(desk.app, words)
    desk.screen.print(Text(""))
    await desk.recap()


async def _mode(desk: Desk, words: str) -> None:
    if words:
        check_mode(words, "no mode named")
        desk.wanted = words
        if desk.session:
            desk.session = await desk.app.store.sessions.update(desk.owner, desk.session.session_id, mode=words)
    lines = [
        Text()
        .append("● " if name == desk.mode else "○ ", style="cyan" if name == desk.mode else "dim")
        .append(f"{name:<6}", style="bold" if name == desk.mode else "")
        .append(f" {desk.say[f'mode.{name}']}", style="dim")
        for name in MODES
    ]
    desk.show(*lines)


async def _skill(desk: Desk, words: str) -> None:
    names = {template.name for template in desk.skills}
    if words:
        if words not in names and words not in NONE:
            if close := get_close_matches(words, names, 1):
                raise InputError(f"no skill named {words!r} is enabled here", hint=f"known: {close[0]}")
            await check_skill(desk.app.store, desk.owner, words, desk.host)
        desk.skill = "" if words in NONE else words
        if desk.session:
            session_id = desk.session.session_id
            desk.session = await desk.app.store.sessions.update(desk.owner, session_id, skill=desk.skill)
    if not desk.skills:
        return desk.say_line("chat.no_skills")
    chosen = desk.session.skill if desk.session else desk.skill
    rows = [
        [styled("● " + t.name if t.name == chosen else "○ " + t.name, "cyan" if t.name == chosen else ""),
         one_line(t.description, 100)]
        for t in desk.skills
    ]  # fmt: skip
    desk.show(table(desk.say, ("name", "text"), rows))
    return None


async def _rules(desk: Desk, words: str) -> None:
    rules = rules_of(desk.app, desk.session)
    parts: list[Any] = [files_table([dict(row) for row in rules.rows], desk.say)]
    parts += [] if rules.any else [Text(desk.say["no_rules"], style="dim")]
    parts += [Text(desk.say["counters"].format(**rules.counters), style="dim")] if rules.counters else []
    desk.show(*parts)


async def _memory(desk: Desk, words: str) -> None:
    if not desk.app.settings.memory:
        raise SettingsError("memory is switched off", hint="the setting memory, LAMINA_MEMORY=on")
    memory = desk.app.memory(desk.owner)
    if not words:
        listed_ones = await memory.list(limit=LISTED)
        if not listed_ones:
            return desk.say_line("memory.none", user=desk.owner)
        return desk.show(memory_table(desk.say, listed_ones))
    found = await memory.get_relevant_memories(words, desk.app.settings.memories)
    if not found:
        return desk.say_line("found.none", query=words)
    rows = [
        [styled(one.memory.memory_id[:SHORT], "cyan"), f"{one.score:.2f}", one.why,
         marked(one_line(one.memory.text), words)]
        for one in found
    ]  # fmt: skip
    return desk.show(table(desk.say, ("id", "score", "why", "text"), rows, right=("score",), yields=("score", "why")))


async def _context(desk: Desk, words: str) -> None:
    """With words: what the model would see if they were said now. Without: what it saw last."""
    turn = await last_turn(desk.app.store, desk.owner, desk.session.session_id) if desk.session else None
    if turn and not words:
        receipt = await request_of(desk.app.store, desk.owner, turn)
        return desk.show(Text(desk.say["chat.context.last"], style="bold"), *budget(desk.say, receipt))
    context = await next_context(desk.app, desk.session, words or "…", mode=desk.mode, skill=desk.skill)
    return desk.show(Text(desk.say["chat.context.next"], style="bold"), *budget(desk.say, context.receipt))


def budget(say: Say, receipt: Receipt) -> list[Any]:
    """A bar for each layer, and what was cut and why."""
    left_out = cuts(receipt, say)
    parts: list[Any] = [Text(""), bars(receipt, say)]
    if receipt.over_budget:
        parts += [Text(""), over(say)]
    if left_out is None and receipt.over_budget:
        return parts
    if left_out is None:
        return [*parts, Text(""), Text(say["chat.nothing_cut"], style="dim")]
    return [*parts, Text(""), Text(say["chat.cut"], style="yellow"), left_out]


def over(say: Say) -> Text:
    words = Text(f"⚠ {say['over']}", style="bold red")
    return words.append(f"\n  {say['next']}{say['colon']}{say['over.next']}", style="default not bold")


async def _why(desk: Desk, words: str) -> None:
    turn = await desk.turn()
    receipts = await requests_of(desk.app.store, desk.owner, turn)
    if not receipts:
        raise unsent(turn)
    number = int(words) if words.isascii() and words.isdigit() else len(receipts)
    if not 1 <= number <= len(receipts):
        raise InputError(f"/why {words}", hint=desk.say["chat.requests"].format(count=len(receipts)))
    receipt = receipts[number - 1]
    head = desk.say["chat.why"].format(turn=turn.turn_id[:SHORT], number=number, count=len(receipts))
    narrow = desk.screen.console.width < 100
    desk.screen.print(
        Padding(Group(Text(head, style="bold"), Text("")), (1, 0, 0, 2)),
        Padding(segments(receipt, desk.say, full=False, narrow=narrow), (0, 0, 0, 1)),
        Padding(Text(proof(receipt, desk.say), style="dim"), (0, 0, 0, 2)), Text(""),
    )  # fmt: skip


async def _tools(desk: Desk, words: str) -> None:
    calls = desk.last.calls if desk.last else ()
    if not calls:
        return desk.say_line("chat.no_calls")
    desk.screen.print(Text(""))
    for call, result in calls:
        desk.screen.print(desk.call_lines(call, result, full=True), Text(""))
    return None


async def _collect(desk: Desk, words: str) -> None:
    turn = await desk.turn()
    await desk.app.collect(desk.owner, turn.answer_message_id)
    message = await desk.app.store.history.get(desk.owner, turn.answer_message_id)
    place = f"{turn.session_id[:SHORT]}#{message.seq}"
    desk.say_line("sessions.collected", place=place, text=one_line(message.text, 60))


async def _compact(desk: Desk, words: str) -> None:
    session = desk.need()
    try:
        with desk.screen.console.status(desk.say["chat.compacting"], spinner_style="cyan"):
            done = await desk.app.compact(desk.owner, session.session_id)
    except CompactionError as error:  # nothing is wrong: there is little to gain yet, and the chat goes on
        return desk.show(Text(visible(error_in(desk.say["lang"], error.message))))
    desk.say_line("chat.compacted", before=f"{done.before:,}", after=f"{done.after:,}", by=done.written_by)
    return None


async def _model(desk: Desk, words: str) -> After:
    provider = desk.app.provider
    if words:
        with_model(desk.app.settings, words)  # one that nobody has is refused here, where there is a way back
        return Switch(words)
    window = f"{provider.window:,}" if provider.window else "—"
    desk.say_line("chat.model", model=provider.model, provider=provider.name, window=window)
    return None


async def _help(desk: Desk, words: str) -> None:
    rows = [[styled(f"/{name}{desk.say[f'slash.{name}.arg']}", "cyan"), desk.say[f"slash.{name}"]] for name in COMMANDS]
    from rich.table import Table

    made = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    made.add_column(no_wrap=True)
    made.add_column(overflow="fold")
    for row in rows:
        made.add_row(*row)
    desk.show(made, Text(""), Text(desk.say["chat.help_keys"], style="dim"))


async def _quit(desk: Desk, words: str) -> After:
    return Leave()


COMMANDS: Mapping[str, Command] = {
    "new": _new, "sessions": _sessions, "resume": _resume, "mode": _mode, "skill": _skill, "rules": _rules,
    "memory": _memory, "context": _context, "why": _why, "tools": _tools, "collect": _collect, "compact": _compact,
    "model": _model, "help": _help, "quit": _quit,
}  # fmt: skip


async def obey(desk: Desk, words: str) -> After:
    """Do what a slash command says."""
    name, _, rest = words.removeprefix("/").partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        close = get_close_matches(name, COMMANDS, 1) or [one for one in COMMANDS if name and one.startswith(name)]
        hint = desk.say["chat.did_you_mean"].format(name=close[0]) if close else desk.say["chat.see_help"]
        raise InputError(desk.say["chat.unknown"].format(name=visible(f"/{name}")), hint=hint)
    return await command(desk, rest.strip())


def choices(desk: Desk, name: str) -> Iterable[tuple[str, str]]:
    """What may be typed next: the commands, or what may follow one of them."""
    say = desk.say
    if not name:
        return [(f"/{one}", say[f"slash.{one}"]) for one in COMMANDS]
    if name == "mode":
        return [(mode, say[f"mode.{mode}"]) for mode in MODES]
    if name == "resume":
        return [(one.session_id[:SHORT], one_line(one.title, 50) or say["untitled"]) for one in desk.sessions]
    if name == "skill":
        return [*((one.name, one_line(one.description, 50)) for one in desk.skills), ("none", "")]
    return ()
