"""`lamina trace`: what a past turn sent, rebuilt from the store byte for byte; two turns side by side; asking again."""

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from lamina.app.app import App
from lamina.app.traces import (
    Difference,
    Prefix,
    asked_again,
    by_layer,
    difference,
    find_turn,
    prefixes_of,
    request_of,
    requests_of,
)
from lamina.cli.call import Call, Commands, Json, argument, flag, option, show_json
from lamina.cli.common import format_time, one_line, page, pairs, short_id, styled
from lamina.cli.say import Say, visible
from lamina.errors import InputError
from lamina.records import StoredMessage, TurnRecord
from lamina.text.messages import Phrase
from lamina.types import Receipt, Text, ToolCallEvent, Usage

COMMANDS = Commands("trace")
TurnName = Annotated[str, argument("turn", "TURN")]
Request = Annotated[int | None, option("request", "--request", least=1)]


@COMMANDS.command("show", examples=True)
async def show(
    call: Call, name: TurnName, request: Request = None, payload: Annotated[bool, flag("payload", "--payload")] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    if as_json and payload:
        raise InputError("option.exclusive", first="--json", second="--payload")
    async with call.open() as app:
        turn = await find_turn(app.store, call.user, _bare_id(name))
        one = await request_of(app.store, call.user, turn, request)
        ids = (turn.user_message_id, turn.answer_message_id)
        messages = [await app.store.messages.get(call.user, message_id) for message_id in ids]
        receipts = list(await requests_of(app.store, call.user, turn))
        prefixes = await prefixes_of(app.store, call.user, turn, receipts)
    if payload:
        _write(one.payload)
    elif as_json:
        facts = {n: getattr(turn, n) for n in ("turn_id", "session_id", "state", "usage", "created")}
        facts["error"] = Phrase.load(turn.error).text()
        plain = [asdict(prefix) if prefix else None for prefix in prefixes]
        show_json({**facts, "requests": [receipt.to_dict() for receipt in receipts], "prefixes": plain})
    else:
        _show(call.say, turn, receipts, one, messages, prefixes)


def _bare_id(name: str) -> str:
    """A turn's id, also as clients of the gateway have it in their replies."""
    for form in ("chatcmpl-", "msg_"):
        name = name.removeprefix(form)
    return name


def _show(
    say: Say, turn: TurnRecord, receipts: list[Receipt], one: Receipt, messages: list[StoredMessage],
    prefixes: Sequence[Prefix | None],
) -> None:  # fmt: skip
    from rich.padding import Padding
    from rich.text import Text as Line

    from lamina.cli.view import bars, proof, segments

    state = say(f"cli.state.{turn.state}")
    if turn.error:
        state = say("cli.trace.state", state=state, error=say.render(Phrase.load(turn.error)))
    colour = {"complete": "green", "failed": "red"}.get(turn.state, "yellow")
    rows: dict[str, object] = {"turn": turn.turn_id, "session": _session(turn), "began": format_time(turn.created)}
    rows |= {"state": styled(state, colour), "said": one_line(messages[0].text)}
    rows["answer"] = one_line(messages[1].text) or "—"
    if turn.usage:
        counts = {name: value for name, value in turn.usage.items() if isinstance(value, int)}
        named = (say.get(f"cli.usage.{name}", f"{name} {value:,}", count=value) for name, value in counts.items())
        rows["usage"] = say.join(named)
    if one.triggers:
        rows["injected"] = say.join(say(f"cli.trigger.{code}") for code in one.triggers)
    lines: list[str] = []
    for number, receipt in enumerate(receipts, 1):
        mark = " ◀" if receipt is one or receipt.hash == one.hash else ""
        values = {"tokens": receipt.tokens, "bytes": receipt.size, "hash": receipt.hash[:16]}
        line = say("cli.trace.request", number=number, **values)
        if prefix := prefixes[number - 1]:
            line += f"\n    {say('cli.trace.prefix', predicted=prefix.predicted, cached=prefix.cached)}"
        lines.append(line + mark)
    rows["requests"] = "\n".join(lines)
    width = 100 if not sys.stdout.isatty() else os.get_terminal_size().columns
    page(
        pairs(say, rows), Line(""), bars(one, say),
        Padding(segments(one, say, full=False, narrow=width < 100), (1, 0, 0, 0)),
        Padding(Line(proof(one, say), style="dim"), (0, 1)),
    )  # fmt: skip


def _session(turn: TurnRecord) -> str:
    """Cut as in a table; a name of lamina's own, such as that of single requests, is whole."""
    return turn.session_id if turn.session_id.startswith("@") else short_id(turn.session_id)


@COMMANDS.command("diff", examples=True)
async def diff(call: Call, before: TurnName, after: TurnName, as_json: Json = False) -> None:
    async with call.open() as app:
        first, second = [await find_turn(app.store, call.user, _bare_id(name)) for name in (before, after)]
        same = first.turn_id == second.turn_id
        a = await request_of(app.store, call.user, first, 1 if same else None)
        b = await request_of(app.store, call.user, second, None if same else 1)
    found = difference(a, b)
    if as_json:
        show_json({**found.to_dict(), "layers": by_layer(a, b)})
    else:
        _show_difference(call.say, a, b, found)


def _show_difference(say: Say, a: Receipt, b: Receipt, found: Difference) -> None:
    from rich.table import Table
    from rich.text import Text as Line

    from lamina.cli.view import LAYER_COLOURS

    if found.byte is None:
        print(say("cli.diff.same"))
        return
    code = "cli.diff.grows" if found.extends else "cli.diff.differs"
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(say("cli.col.layer"))
    for head in ("cli.diff.before", "cli.diff.after", "cli.diff.change"):
        table.add_column(say(head), justify="right")
    for layer, (old, new) in by_layer(a, b).items():
        change = Line(f"{new - old:+,}" if new != old else "·", style="yellow" if new != old else "dim")
        table.add_row(Line(layer, style=LAYER_COLOURS.get(layer, "white")), f"{old:,}", f"{new:,}", change)
    shared = say("cli.diff.shared", shared=found.shared_tokens, after=found.tokens_after)
    where = say(code, byte=str(found.byte), layer=found.layer, source=found.source)
    page(
        Line(where, style="bold green" if found.extends else "bold yellow"), Line(say.render(found.reason)),
        Line(shared, style="dim"), Line(""), table,
    )  # fmt: skip


@COMMANDS.command("replay", examples=True)
async def replay(
    call: Call, name: TurnName, request: Request = None, out: Annotated[Path | None, option("out", "--out")] = None,
    send: Annotated[bool, flag("send", "--send")] = False,
) -> None:  # fmt: skip
    async with call.open() as app:
        turn = await find_turn(app.store, call.user, _bare_id(name))
        receipt = await request_of(app.store, call.user, turn, request)
        if out:
            _write_new_file(out, receipt.payload)
            call.tell("cli.trace.written", path=str(out), size=receipt.size, hash=receipt.hash)
        elif not send:
            _write(receipt.payload)
        if send:
            answer = await app.store.messages.get(call.user, turn.answer_message_id)
            await _send(call.say, app, receipt, answer.text)


async def _send(say: Say, app: App, receipt: Receipt, stored: str) -> None:
    """The stored answer and the new one, one below the other, with what the provider counted."""
    print(say("cli.trace.sends", size=receipt.size, hash=receipt.hash[:16], model=app.provider.model))
    print(f"\n── {say('cli.trace.stored')} ──\n{visible(stored) or '—'}\n\n── {say('cli.trace.again')} ──")
    pieces: list[str] = []
    async for event in asked_again(app.settings, receipt):
        match event:
            case Text():
                pieces.append(event.text)
                print(visible(event.text), end="", flush=True)
            case ToolCallEvent():
                print(say("cli.calls", name=event.name, arguments=event.arguments))
            case Usage():
                counts = {"prompt": event.prompt, "completion": event.completion, "cached": event.cached}
                print(f"\n{say('cli.trace.usage', **counts)}", end="")
            case _:
                pass
    print(f"\n\n{say('cli.trace.same' if ''.join(pieces) == stored else 'cli.trace.other')}")


def _write_new_file(path: Path, payload: bytes) -> None:
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(payload)
    except FileExistsError:
        raise InputError("file.exists", path=repr(str(path))) from None
    except OSError as error:
        raise InputError("file.not_writable", path=repr(str(path)), why=error.strerror) from None


def _write(payload: bytes) -> None:
    """The bytes and nothing else; on a terminal as text that cannot drive it."""
    sys.stdout.flush()
    if sys.stdout.isatty():
        print(visible(payload.decode("utf-8", "replace")))
    else:
        sys.stdout.buffer.write(payload)
