"""`lamina trace`: what a past turn sent, rebuilt from the store byte for byte; two turns side by side; asking again."""

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

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
from lamina.cli.common import SHORT, Say, argument, chosen, day, flag, opened, option, page, pairs, run, show_json, tell
from lamina.cli.texts import reason_in, visible
from lamina.errors import InputError
from lamina.records import StoredMessage, TurnRecord
from lamina.types import Receipt, Text, ToolCallEvent, Usage


def add_trace(app: typer.Typer, say: Say) -> None:
    trace = typer.Typer(no_args_is_help=True)
    for name, make in (("show", _shower), ("diff", _differ), ("replay", _replayer)):
        trace.command(name, help=say[f"trace.{name}"], epilog=say[f"trace.{name}.examples"])(make(say))
    app.add_typer(trace, name="trace", help=say["trace.help"])


def _shower(say: Say) -> Any:
    def show(
        name: Annotated[str, argument(say, "turn", "TURN")],
        request: Annotated[int | None, option(say, "request", "--request", min=1)] = None,
        payload: Annotated[bool, flag(say, "payload", "--payload")] = False,
        as_json: Annotated[bool, flag(say, "as_json", "--json")] = False,
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
    ) -> None:
        if as_json and payload:
            raise InputError(say["both"], hint="leave one of them out")
        settings = chosen(user, store)

        async def read() -> tuple[TurnRecord, list[Receipt], Receipt, list[StoredMessage], Sequence[Prefix | None]]:
            async with opened(settings) as app:
                turn = await find_turn(app.store, settings.user, _bare(name))
                one = await request_of(app.store, settings.user, turn, request)
                ids = (turn.user_message_id, turn.answer_message_id)
                said = [await app.store.history.get(settings.user, message_id) for message_id in ids]
                receipts = list(await requests_of(app.store, settings.user, turn))
                return turn, receipts, one, said, await prefixes_of(app.store, settings.user, turn, receipts)

        turn, receipts, one, said, prefixes = run(read())
        if payload:
            _write(one.payload)
        elif as_json:
            facts = {n: getattr(turn, n) for n in ("turn_id", "session_id", "state", "usage", "error", "created")}
            told = [asdict(prefix) if prefix else None for prefix in prefixes]
            show_json({**facts, "requests": [receipt.to_dict() for receipt in receipts], "prefixes": told})
        else:
            _show(say, turn, receipts, one, said, prefixes)

    return show


def _bare(name: str) -> str:
    """A turn's id as the gateway's clients have it in their replies, too."""
    for form in ("chatcmpl-", "msg_"):
        name = name.removeprefix(form)
    return name


def _show(
    say: Say, turn: TurnRecord, receipts: list[Receipt], one: Receipt, said: list[StoredMessage],
    prefixes: Sequence[Prefix | None],
) -> None:  # fmt: skip
    from rich.padding import Padding
    from rich.text import Text as Line

    from lamina.cli.common import one_line, styled
    from lamina.cli.view import bars, proof, segments

    colour = {"complete": "green", "failed": "red"}.get(turn.state, "yellow")
    rows: dict[str, object] = {"turn": turn.turn_id, "session": _session(turn), "began": day(turn.created)}
    rows["state"] = styled(say[f"state.{turn.state}"] + (f"{say['colon']}{turn.error}" if turn.error else ""), colour)
    rows["said"] = one_line(said[0].text)
    rows["answer"] = one_line(said[1].text) or "—"
    if turn.usage:
        counts = {name: value for name, value in turn.usage.items() if isinstance(value, int)}
        named = (f"{say.get(f'usage.{name}', name)} {value:,}" for name, value in counts.items())
        rows["usage"] = say["comma"].join(named)
    for number, receipt in enumerate(receipts, 1):
        mark = " ◀" if receipt is one or receipt.hash == one.hash else ""
        rows.setdefault("requests", Line())
        line = f"#{number}  {receipt.tokens:,} {say['tokens']}  {receipt.size:,} {say['bytes']}  {receipt.hash[:16]}"
        if prefix := prefixes[number - 1]:
            line += f"\n    {say['trace.prefix'].format(predicted=prefix.predicted, cached=prefix.cached)}"
        rows["requests"].append(("\n" if number > 1 else "") + line + mark)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType] -- a rich text
    width = 100 if not sys.stdout.isatty() else os.get_terminal_size().columns
    page(
        pairs(say, rows), Line(""), bars(one, say),
        Padding(segments(one, say, full=False, narrow=width < 100), (1, 0, 0, 0)),
        Padding(Line(proof(one, say), style="dim"), (0, 1)),
    )  # fmt: skip


def _session(turn: TurnRecord) -> str:
    """Cut as in a table; a name of lamina's own, such as that of single requests, is whole."""
    return turn.session_id if turn.session_id.startswith("@") else turn.session_id[:SHORT]


def _differ(say: Say) -> Any:
    def diff(
        before: Annotated[str, argument(say, "turn", "TURN")],
        after: Annotated[str, argument(say, "turn", "TURN")],
        as_json: Annotated[bool, flag(say, "as_json", "--json")] = False,
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
    ) -> None:
        settings = chosen(user, store)

        async def read() -> tuple[Receipt, Receipt]:
            async with opened(settings) as app:
                turns = [await find_turn(app.store, settings.user, _bare(name)) for name in (before, after)]
                same = turns[0].turn_id == turns[1].turn_id
                first = await request_of(app.store, settings.user, turns[0], 1 if same else None)
                return first, await request_of(app.store, settings.user, turns[1], None if same else 1)

        a, b = run(read())
        found = difference(a, b)
        if as_json:
            show_json({**{name: getattr(found, name) for name in Difference.__slots__}, "layers": by_layer(a, b)})
        else:
            _show_difference(say, a, b, found)

    return diff


def _show_difference(say: Say, a: Receipt, b: Receipt, found: Difference) -> None:
    from rich.table import Table
    from rich.text import Text as Line

    from lamina.cli.view import COLOURS

    if found.byte is None:
        print(say["diff.same"])
        return
    word = "diff.grows" if found.extends else "diff.differs"
    where = say[word].format(byte=found.byte, layer=visible(found.layer), source=visible(found.source))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("layer", "before", "after", "change"):
        table.add_column(
            say[f"diff.{name}" if name != "layer" else "layer"], justify="left" if name == "layer" else "right"
        )
    for layer, (old, new) in by_layer(a, b).items():
        change = Line(f"{new - old:+,}" if new != old else "·", style="yellow" if new != old else "dim")
        table.add_row(Line(layer, style=COLOURS.get(layer, "white")), f"{old:,}", f"{new:,}", change)
    shared = say["diff.shared"].format(shared=found.shared_tokens, after=found.tokens_after)
    page(
        Line(where, style="bold green" if found.extends else "bold yellow"),
        Line(visible(reason_in(say["lang"], found.reason))), Line(shared, style="dim"), Line(""), table,
    )  # fmt: skip


def _replayer(say: Say) -> Any:
    def replay(
        name: Annotated[str, argument(say, "turn", "TURN")],
        request: Annotated[int | None, option(say, "request", "--request", min=1)] = None,
        out: Annotated[Path | None, option(say, "out", "--out")] = None,
        send: Annotated[bool, flag(say, "send", "--send")] = False,
        user: Annotated[str | None, option(say, "user")] = None,
        store: Annotated[str | None, option(say, "store")] = None,
    ) -> None:
        settings = chosen(user, store)

        async def read() -> None:
            async with opened(settings) as app:
                turn = await find_turn(app.store, settings.user, _bare(name))
                receipt = await request_of(app.store, settings.user, turn, request)
                if out:
                    _new_file(out, receipt.payload)
                    tell(say, "trace.written", path=out, size=f"{receipt.size:,}", hash=receipt.hash)
                elif not send:
                    _write(receipt.payload)
                if send:
                    answer = await app.store.history.get(settings.user, turn.answer_message_id)
                    await _send(say, app, receipt, answer.text)

        run(read())

    return replay


async def _send(say: Say, app: App, receipt: Receipt, stored: str) -> None:
    """The stored answer and the new one, one below the other, with what the provider counted."""
    tell(say, "trace.sends", size=f"{receipt.size:,}", hash=receipt.hash[:16], model=app.provider.model)
    print(f"\n── {say['trace.stored']} ──\n{visible(stored) or '—'}\n\n── {say['trace.again']} ──")
    pieces: list[str] = []
    async for event in asked_again(app.settings, receipt):
        match event:
            case Text():
                pieces.append(event.text)
                print(visible(event.text), end="", flush=True)
            case ToolCallEvent():
                print(f"→ {say['calls']} {visible(event.name)} {visible(event.arguments)}")
            case Usage():
                print(f"\n({event.prompt:,} → {event.completion:,}, {event.cached:,} {say['trace.cached']})", end="")
            case _:
                pass
    same = "".join(pieces) == stored
    print(f"\n\n{say['trace.same' if same else 'trace.other']}")


def _new_file(path: Path, payload: bytes) -> None:
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(payload)
    except FileExistsError:
        raise InputError(f"{str(path)!r} exists already", hint="give a new name; nothing is overwritten") from None
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be written: {error.strerror}", hint="check its folder") from None


def _write(payload: bytes) -> None:
    """The bytes and nothing else; on a terminal as text that cannot drive it."""
    sys.stdout.flush()
    if sys.stdout.isatty():
        print(visible(payload.decode("utf-8", "replace")))
    else:
        sys.stdout.buffer.write(payload)
