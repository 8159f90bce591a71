"""Looking back at turns for the faces: a turn by its beginning, two of its requests side by side, and asking again.

The requests themselves are rebuilt by `trace`. Nothing here is stored, whatever the provider answers.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lamina.apart import run_apart
from lamina.app.app import App
from lamina.app.config import counter, file_rows, instruction_files, provider_of
from lamina.app.follow import requests_of
from lamina.app.lookup import LAST, find_id
from lamina.assembly.receipt import Difference, explain, predicted_prefix
from lamina.assembly.request import context_of_receipt
from lamina.errors import InputError, NotFoundError
from lamina.prompts.injection import InjectionState
from lamina.records import REQUESTS, Session, StoredMessage, TurnRecord
from lamina.settings import Settings
from lamina.store.store import Store
from lamina.store.turns import LOST
from lamina.text.messages import Phrase
from lamina.types import Context, Event, Receipt

LOOKED_AT, LOOKED_BACK = 50, 3


async def find_turn(store: Store, owner: str, name: str) -> TurnRecord:
    """A turn by its id, the beginning of it, or `last`; `last~2` is two turns before it in the same session."""
    base, sign, back = name.partition("~")
    if base == LAST and sign and back.isascii() and back.isdigit() and len(back) < 7:
        last, many = await find_turn(store, owner, LAST), int(back) + 1
        found = await store.turns.list(owner, last.session_id, limit=many)
        if len(found) < many:
            if len(found) == 1:
                raise NotFoundError("turn.only_one", name=name)
            raise NotFoundError("turn.too_far_back", name=name, oldest=f"{LAST}~{len(found) - 1}")
        return found[0]
    if name == LAST:
        if found := await _newest(store, owner):
            return found
        raise NotFoundError("turn.none_yet")
    return await store.turns.get(owner, await find_id(store, owner, "turn", name))


async def _newest(store: Store, owner: str) -> TurnRecord | None:
    """The turn that began last, in a chat or as one of the gateway's single requests, which are in no list."""
    alone = await store.admin.ids(owner, "session", REQUESTS)
    single = await last_turn(store, owner, REQUESTS) if alone else None
    for session in await store.sessions.list(owner, limit=LOOKED_AT):
        if found := await last_turn(store, owner, session.session_id):
            return max(found, single, key=lambda turn: turn.created) if single else found
    return single


async def last_turn(store: Store, owner: str, session_id: str) -> TurnRecord | None:
    """The turn of a session in which something happened last; imported messages belong to none."""
    newest = await store.messages.list(owner, session_id, limit=LOOKED_AT, newest=True)
    turn_id = next((message.turn_id for message in reversed(newest) if message.turn_id), "")
    return await store.turns.get(owner, turn_id) if turn_id else None


async def request_of(store: Store, owner: str, turn: TurnRecord, number: int | None = None) -> Receipt:
    """One request of a turn, counted from 1; the last one unless a number is given."""
    receipts = await requests_of(store, owner, turn)
    if not receipts:
        raise explain_unsent(turn)
    if number is not None and not 1 <= number <= len(receipts):
        raise InputError("turn.no_such_request", number=number, count=len(receipts))
    return receipts[-1 if number is None else number - 1]


@dataclass(frozen=True, slots=True)
class Prefix:
    """What a request shares with the one before, by their receipts, and what the provider took from its cache.

    A cache serves whole blocks and forgets, so it may serve less; one that keeps answers too may serve more.
    """

    predicted: int
    cached: int


async def prefixes_of(
    store: Store, owner: str, turn: TurnRecord, receipts: Sequence[Receipt]
) -> Sequence[Prefix | None]:
    """For each request of a turn; None where there is nothing before it, or no usage."""
    counts: Sequence[Sequence[int] | None] = turn.usage.get("requests") or ()
    before, reported = await _sent_before(store, owner, turn)
    found: list[Prefix | None] = []
    for receipt, counted in zip(receipts, counts, strict=False):
        prompt, cached, _ = counted or (0, 0, 0)
        known = before and counted
        size = receipt.size + (before.size if before else 0)
        predicted = await run_apart(size, predicted_prefix, before, receipt, reported) if before else 0
        found.append(Prefix(min(prompt, predicted), cached) if known else None)
        before, reported = receipt, prompt
    return [*found, *[None] * (len(receipts) - len(found))]


async def _sent_before(store: Store, owner: str, turn: TurnRecord) -> tuple[Receipt | None, int]:
    """The last request of the turn before, and what the provider counted for it."""
    for earlier in reversed(await store.turns.list(owner, turn.session_id, before=turn.user_seq, limit=LOOKED_BACK)):
        counts: list[Sequence[int] | None] = list(earlier.usage.get("requests", ()))
        sent = await requests_of(store, owner, earlier) if counts else []
        if sent and len(sent) >= len(counts):
            return sent[len(counts) - 1], int((counts[-1] or (0,))[0])
    return None, 0


def compare_layers(a: Receipt, b: Receipt) -> dict[str, tuple[int, int]]:
    """Tokens of each layer, before and after. A text that is in both counts in both as in the second: a counter that
    was corrected between them does not change what was sent."""
    now = {(s.layer, s.hash, s.decision): s.tokens for s in b.segments}
    before, after = dict.fromkeys(a.by_layer(), 0), {layer: tokens for layer, (tokens, _) in b.by_layer().items()}
    for s in a.segments:
        before[s.layer] += now.get((s.layer, s.hash, s.decision), s.tokens) if s.decision != "dropped" else 0
    return {layer: (before.get(layer, 0), after.get(layer, 0)) for layer in (*before, *after)}


def explain_unsent(turn: TurnRecord) -> NotFoundError:
    """Why there is no request of this turn: each is stored when something of its answer comes, or after 50 ms."""
    if turn.finished is None:
        return NotFoundError("trace.running")
    if was_lost(turn):
        return NotFoundError("trace.lost", turn=turn.turn_id, session=turn.session_id[:8], hint="trace.show_session")
    return NotFoundError("trace.not_sent", turn=turn.turn_id, hint=Phrase.load(turn.error))


def was_lost(turn: TurnRecord) -> bool:
    """Did its process end before it?"""
    return turn.error == LOST


async def messages_of(store: Store, owner: str, turn: TurnRecord) -> Sequence[StoredMessage]:
    """Everything that was stored of a turn, from its question on, in order."""
    rows = await store.messages.list(owner, turn.session_id, after=turn.user_seq - 1, before=turn.answer_seq + 1)
    return [row for row in rows if row.turn_id == turn.turn_id]


def difference(before: Receipt, after: Receipt) -> Difference:
    return explain(before, after)


async def ask_again(settings: Settings, receipt: Receipt) -> AsyncGenerator[Event]:
    """The same bytes to the provider of the settings, and what it says this time."""
    provider = provider_of(settings, encode=lambda context, grammar: context.receipt)
    try:
        streamed = provider.stream(context_of_receipt(receipt), max_tokens=settings.max_tokens or None)
        async with aclosing(streamed):
            async for event in streamed:
                yield event
    finally:
        await provider.close()


async def next_context(
    app: App, session: Session | None, words: str, *, mode: str = "", skill: str = "", phase: str = ""
) -> Context:
    """What the model would see if this were said now; without a session, in a new one that is gone afterwards."""
    owner = app.settings.user
    if session is None:
        fresh = await app.new_session(owner, mode=mode, skill=skill, phase=phase)
        try:
            return await next_context(app, fresh, words)
        finally:
            await app.store.sessions.delete(owner, fresh.session_id)
    if app.settings.memory:  # the index is read first, so that the deadline is not spent on a start
        await asyncio.gather(app.recall.search(owner, words, limit=1), return_exceptions=True)
    return await app.context(owner, session.session_id, words)


@dataclass(frozen=True, slots=True)
class Rules:
    """The instruction files in force for a session, and how often they were injected."""

    rows: Sequence[Mapping[str, Any]]
    counters: Mapping[str, int]
    any: bool


def rules_of(app: App, session: Session | None) -> Rules:
    workspace = app.settings.workspace
    files = instruction_files(app.settings, Path(workspace) if workspace else None)
    state = InjectionState.from_dict(session.injection) if session and session.injection else None
    loaded = files.load()
    rows = file_rows(loaded, state, counter(app.settings.counter))
    return Rules(rows, dict(state.counters) if state else {}, bool(loaded.rules_text))
