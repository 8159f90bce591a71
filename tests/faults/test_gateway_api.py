"""I2, I3, R10, R14 and R15 over the gateway's own API, on a real socket: each with a bug that it must catch."""

import ast
import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import lamina.gateway
from lamina.app.app import App
from lamina.errors import NotFoundError
from lamina.gateway.api_turns import EventsQuery
from lamina.gateway.gateway import ROUTES
from lamina.gateway.handlers import Handler, HttpError, Reply, Request, Route
from lamina.gateway.schemas import PARAMETER
from lamina.providers.scripted import Step
from lamina.records import Session
from tests.faults.load import Load
from tests.gateway.apis import Api, Got, api_on, as_piece
from tests.gateway.streams import Heard, heard, text_of
from tests.gateway.worlds import everything, say, world

EVENTS = {"Accept": "text/event-stream"}


def planted(method: str, path: str, handler: Handler) -> list[Route]:
    """The routes, with a bug in place of one handler."""
    assert any((route.method, route.path) == (method, path) for route in ROUTES)
    return [replace(r, handler=handler) if (r.method, r.path) == (method, path) else r for r in ROUTES]


def handler_of(method: str, path: str) -> Handler:
    return next(route.handler for route in ROUTES if (route.method, route.path) == (method, path))


# I2: every route × every id × {another's, missing, malformed}

S, T, M, P = "/api/sessions/{session_id}", "/api/turns/{turn_id}", "/api/memories/{memory_id}", "/api/templates/"
ROWS: Mapping[str, tuple[str, ...]] = {
    f"GET {S}": ("session_id",),
    f"PATCH {S}": ("session_id",),
    f"DELETE {S}": ("session_id",),
    f"POST {S}/branch": ("session_id",),
    f"POST {S}/end": ("session_id",),
    f"POST {S}/compact": ("session_id",),
    f"GET {S}/messages": ("session_id",),
    f"POST {S}/messages": ("session_id",),
    f"POST {S}/context": ("session_id",),
    f"GET {S}/turns": ("session_id",),
    f"GET {S}/rules": ("session_id",),
    f"GET {T}": ("turn_id",),
    f"GET {T}/events": ("turn_id",),
    f"POST {T}/cancel": ("turn_id",),
    f"POST {T}/retry": ("turn_id",),
    f"GET {T}/receipt": ("turn_id",),
    f"GET {T}/payload": ("turn_id",),
    f"GET {T}/diff/{{other_id}}": ("turn_id", "other_id"),
    "PUT /api/messages/{message_id}/collected": ("message_id",),
    f"GET {M}": ("memory_id",),
    f"PATCH {M}": ("memory_id",),
    f"DELETE {M}": ("memory_id",),
    f"GET {P}{{template_id}}": ("template_id",),
    f"PUT {P}{{template_id}}": ("template_id",),
    f"DELETE {P}{{template_id}}": ("template_id",),
}
"""A route with an id in its path that is not here fails the suite."""
NOBODYS = {"GET /v1/models/{model}"}
"""The name of the model is the same for everybody."""


def strange(own: str, others: str, another_kind: str) -> dict[str, str]:
    """Ids that are none of this principal's, by what they are."""
    return {
        "another user's": others, "missing": uuid4().hex, "empty": "", "too long": "a" * 201, "very long": "a" * 4_000,
        "with U+0000": f"{own}\0", "a lone surrogate": "\ud800", "a beginning of an own one": own[:12],
        "in capitals": own.upper() + "X", "of another kind": another_kind, "with a blank": f"{own} ", "dots": "..",
        "SQL": "' OR '1'='1", "a wildcard": "%", "another wildcard": "_" * 32, "Chinese": "会话", "a line break": "a\n",
        "a slash": f"{own}/x", "a bell": "\a", "last": "last",
    }  # fmt: skip


def shape_of(got: Got) -> tuple[int, bytes, tuple[str, ...]]:
    """What of a reply can tell one case from another."""
    return got.status, got.raw, tuple(sorted(set(got.headers) - {"date", "x-request-id"}))


async def let_in(api: Api, rows: Mapping[str, tuple[str, ...]], load: Load) -> list[str]:
    """Rows in which a stranger's id gets anything else than the one answer."""
    mine, theirs = await world(api, "ann"), await world(api, "bob")
    before = await everything(api, "bob")
    nothing = shape_of(await api("GET", f"/api/sessions/{uuid4().hex}"))
    assert nothing[0] == 404
    problems: list[str] = []
    for route in api.routes:
        name = f"{route.method} {route.path}"
        for parameter in rows.get(name, ()):
            kind = mine["memory_id" if parameter != "memory_id" else "session_id"]
            for what, text in strange(mine[parameter], theirs[parameter], kind).items():
                ids = {**mine, parameter: text}
                path = PARAMETER.sub(lambda found, ids=ids: as_piece(ids[found[1]]), route.path)
                got = shape_of(await api(route.method, path, route.example))
                load.tried(1, "requests")
                if got != nothing:
                    problems.append(f"{name}, {parameter} {what}: {got[0]} {got[1][:80]!r}")
    if await everything(api, "bob") != before:
        problems.append("what is another's has changed")
    return problems


async def test_I2_every_route_with_an_id_has_a_row(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "s.db")) as api:
        needed = {
            f"{route.method} {route.path}": tuple(PARAMETER.findall(route.path))
            for route in api.routes
            if route.scope and PARAMETER.search(route.path)
        }
    assert {name: ids for name, ids in needed.items() if name not in NOBODYS} == ROWS
    assert set(needed) >= NOBODYS


async def test_I2_what_is_not_ones_own_is_not_there_in_the_same_bytes(where: str, load: Load) -> None:
    async with api_on(where) as api:
        assert await let_in(api, ROWS, load) == []


async def _any_session(app: App, request: Request) -> Reply:
    """Planted: the row is looked up for whoever has it."""
    for owner in await app.store.admin.owners():
        for session in await app.store.sessions.list(owner):
            if session.session_id == request.params["session_id"]:
                return Reply({"title": session.title})
    raise NotFoundError("no session")


async def _telling(app: App, request: Request) -> Reply:
    """Planted: a malformed id gets words of its own."""
    if len(request.params["memory_id"]) > 200:
        raise HttpError(400, "this is no id")
    return await handler_of("GET", M)(app, request)


async def _echoing(app: App, request: Request) -> Reply:
    """Planted: the id is told back."""
    try:
        return Reply(await app.store.turns.get(request.user, request.params["turn_id"]))
    except NotFoundError:
        raise HttpError(404, f"no turn {request.params['turn_id']}", kind="not_found") from None


@pytest.mark.planted("a row found for whoever has it; words of its own for a malformed id; an id told back")
@pytest.mark.parametrize(
    ("method", "path", "handler"), [("GET", S, _any_session), ("GET", M, _telling), ("GET", T, _echoing)]
)
async def test_I2_a_planted_leak_is_caught(tmp_path: Path, method: str, path: str, handler: Handler) -> None:
    async with api_on(str(tmp_path / "s.db"), routes=planted(method, path, handler)) as api:
        name = f"{method} {path}"
        assert await let_in(api, {name: ROWS[name]}, Load())


# I3: the principal comes from the credential alone

NAMED = {
    "X-User": "bob", "X-Lamina-User": "bob", "X-Forwarded-User": "bob", "Remote-User": "bob", "From": "bob",
    "X-Lamina-Owner": "bob", "Cookie": "user=bob; owner=bob",
}  # fmt: skip


async def believed(api: Api, load: Load) -> list[str]:
    """Where a name in a header, a body, a parameter or metadata counts for anything."""
    await world(api, "bob")
    before = await everything(api, "bob")
    problems: list[str] = []
    if (await api("GET", "/api/me", headers=NAMED)).json["user"] != "ann":
        problems.append("/api/me says that ann is somebody else")
    mine = await world(api, "ann")
    for route in api.routes:
        if not route.path.startswith("/api") or not route.scope or route.method == "DELETE":
            continue
        path = PARAMETER.sub(lambda found: mine[found[1]], route.path)
        got = await api(route.method, path, route.example, headers=NAMED)
        load.tried(1, "routes")
        if got.status >= 500 or b"of bob" in got.raw or b"bob has" in got.raw:
            problems.append(f"{route.method} {route.path} with headers: {got.status}")
        for name in ("user", "owner", "user_id"):
            if (await api(route.method, f"{path}?{name}=bob", route.example)).status != 400:
                problems.append(f"{route.method} {route.path} takes ?{name}=")
            if isinstance(route.example, dict) and route.path != "/api/profile":
                body: dict[str, Any] = {**route.example, name: "bob"}
                if (await api(route.method, path, body)).status != 400:
                    problems.append(f"{route.method} {route.path} takes {name} in its body")
    meta = {"user": "bob", "owner": "bob", "user_id": "bob"}
    made = (await api("POST", "/api/sessions", {"meta": meta}, headers=NAMED)).json
    await say(api, made["session_id"], headers=NAMED)
    if await everything(api, "bob") != before:
        problems.append("what is bob's has changed")
    return problems


async def test_I3_a_user_who_is_named_by_the_caller_counts_for_nothing(tmp_path: Path, load: Load) -> None:
    async with api_on(str(tmp_path / "s.db")) as api:
        assert await believed(api, load) == []


def _believing(inner: Handler) -> Handler:
    """Planted: a header says who asks."""

    async def handler(app: App, request: Request) -> Reply:
        named = request.headers.get("x-lamina-user", request.user)
        return await inner(app, replace(request, principal=replace(request.principal, user=named)))

    return handler


@pytest.mark.planted("a header that says who asks")
async def test_I3_a_planted_belief_in_a_header_is_caught(tmp_path: Path) -> None:
    routes = planted("GET", "/api/sessions", _believing(handler_of("GET", "/api/sessions")))
    async with api_on(str(tmp_path / "s.db"), routes=routes) as api:
        assert any("GET /api/sessions" in each for each in await believed(api, Load()))


# R10: resume at any position

WORDS = ("once ", "there ", "was ", "一只", "猫", " 🐈 ", "and\n", "\r\n", "a dog; ", "e\u0301 ", "data: x\n\n")


def tale(rng: random.Random, pieces: int, delay: float = 0.0) -> list[list[Step]]:
    """An answer in three requests, with calls in between."""
    script: list[list[Step]] = []
    for part in range(3):
        steps: list[Step] = []
        for _ in range(pieces):
            steps += [{"text": "".join(rng.choices(WORDS, k=rng.randint(1, 6)))}]
            steps += [{"delay": delay}] if delay else []
        calls: list[Step] = [{"call": "look", "id": f"c{part}{n}", "arguments": {}} for n in range(2)]
        script.append([*steps, *(calls if part < 2 else []), {"usage": [10, 0, 5]}])
    return script


def units(events: Sequence[Heard]) -> list[str]:
    """A stream as what it says, whatever the pieces: each character, call and result."""
    found: list[str] = []
    for event in events:
        if event.name == "text":
            found += event.data["text"]
        elif event.name in ("call", "result"):
            found.append(f"{event.name} {event.data['id']}")
    return found


async def begun(api: Api) -> str:
    session = (await api("POST", "/api/sessions", {"mode": "agent"})).json["session_id"]
    return (await api("POST", f"/api/sessions/{session}/messages", {"content": "Tell."})).json["turn_id"]


async def resumed_wrongly(api: Api, turn_id: str, rng: random.Random, offsets: Iterable[int]) -> list[str]:
    """Positions after which something else comes than the rest of the whole."""
    path = f"/api/turns/{turn_id}/events"
    events = heard((await api("GET", path)).raw)
    whole = units(events)
    assert len(whole) > 100
    assert events[-1].data["state"] == "complete"
    problems: list[str] = []
    for _ in offsets:
        after = rng.randint(0, len(whole))
        given = {"Last-Event-ID": str(after)} if rng.random() < 0.5 else None
        got = heard((await api("GET", path if given else f"{path}?after={after}", headers=given)).raw)
        if units(got) != whole[after:] or got[-1].name != "ended":
            problems.append(f"after {after} of {len(whole)}")
    for event in events[:-1]:  # the ids themselves
        got = heard((await api("GET", path, headers={"Last-Event-ID": event.id})).raw)
        known = units(events[: events.index(event) + 1])
        if known + units(got) != whole:
            problems.append(f"after the event {event.id}")
    return problems


async def test_R10_a_stream_goes_on_at_any_of_200_positions(where: str, load: Load) -> None:
    seed = load.seed()
    rng = random.Random(seed)
    async with api_on(where, tale(rng, 40)) as api:
        turn_id = await begun(api)
        assert await resumed_wrongly(api, turn_id, rng, load.rounds(200, "places")) == []
        missing = await api("GET", f"/api/turns/{uuid4().hex}/events")
        wrong = await api("GET", f"/api/turns/{turn_id}/events", user="bob")
        end = await api("GET", f"/api/turns/{turn_id}/events", user="bob", headers={"Last-Event-ID": "9.end"})
        assert shape_of(wrong) == shape_of(missing) == shape_of(end)


async def test_R10_readers_that_come_and_go_while_it_is_told_hear_all_of_it(where: str, load: Load) -> None:
    seed = load.seed()
    rng = random.Random(seed)

    async def reader(api: Api, turn_id: str) -> list[str]:
        """Reads a little, leaves, comes again with the last id."""
        found: list[str] = []
        last = ""
        sent = await api.headers("ann")
        while True:
            raw, enough = b"", rng.randint(1, 4_000)
            async with api.http.get(
                f"{api.url}/api/turns/{turn_id}/events", headers={**sent, "Last-Event-ID": last} if last else sent
            ) as reply:
                if reply.status == 204:
                    return found
                async for piece in reply.content.iter_any():
                    raw += piece
                    if len(raw) >= enough:
                        break
                reply.close()
            events = heard(raw)
            found += units(events)
            last = events[-1].id if events else last

    async with api_on(where, tale(rng, 30, delay=0.002)) as api:
        for _ in load.rounds(1, "readers", each=8):
            turn_id = await begun(api)
            async with asyncio.timeout(120):
                told = await asyncio.gather(*(reader(api, turn_id) for _ in range(8)))
            whole = units(heard((await api("GET", f"/api/turns/{turn_id}/events")).raw))
            assert [one == whole for one in told] == [True] * 8


def _shifted(inner: Handler) -> Handler:
    """Planted: one character too far."""

    async def handler(app: App, request: Request) -> Reply:
        after = request.headers.get("last-event-id") or request.query.after or "0"
        headers = {**request.headers, "last-event-id": str(int(after) + 1) if after != "0" else ""}
        return await inner(app, replace(request, headers=headers, query=EventsQuery()))

    return handler


@pytest.mark.planted("a stream that goes on one character too far")
async def test_R10_a_planted_shift_is_caught(tmp_path: Path) -> None:
    path = f"{T}/events"
    rng = random.Random(1)
    routes = planted("GET", path, _shifted(handler_of("GET", path)))
    async with api_on(str(tmp_path / "s.db"), tale(rng, 40), routes=routes) as api:
        assert await resumed_wrongly(api, await begun(api), rng, range(5))


# R14: one key, one turn


async def repeated(api: Api, rng: random.Random, key: str) -> list[str]:
    """What is wrong when the same is said ten times at once under one key, and once more when it is over."""
    session = (await api("POST", "/api/sessions", {})).json["session_id"]
    path, calls = f"/api/sessions/{session}/messages", len(api.provider.contexts)

    async def once(stream: bool) -> str:
        headers = {"Idempotency-Key": key, **(EVENTS if stream else {})}
        got = await api("POST", path, {"content": "Pay 5 kroner."}, headers=headers)
        if stream and text_of(heard(got.raw)) != "Paid.":
            return f"{got.status} {got.raw!r}"
        return got.headers.get("x-lamina-turn", f"{got.status} {got.raw!r}")

    ids = set(await asyncio.gather(*(once(rng.random() < 0.5) for _ in range(10))))
    ids |= {await once(True), await once(False)}
    turns = (await api("GET", f"/api/sessions/{session}/turns")).json["turns"]
    problems = [] if ids == {turn["turn_id"] for turn in turns} else [f"replies name {ids}"]
    problems += [] if len(turns) == 1 else [f"{len(turns)} turns"]
    made = len(api.provider.contexts) - calls
    return problems + ([] if made == 1 else [f"{made} calls of the provider"])


async def test_R14_the_same_key_ten_times_at_once_is_one_turn_and_one_call(where: str, load: Load) -> None:
    seed = load.seed()
    rng = random.Random(seed)
    async with api_on(where, [[{"delay": 0.02}, {"text": "Paid."}]]) as api:
        for trial in load.rounds(5, "keys sent ten times"):
            assert await repeated(api, rng, f"key {trial}") == []


async def test_R14_keys_of_two_users_are_not_one(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "s.db")) as api:
        turns: set[str] = set()
        for user in ("ann", "bob"):
            session = (await api("POST", "/api/sessions", {}, user=user)).json["session_id"]
            turns.add((await say(api, session, user=user, headers={"Idempotency-Key": "k"}))["turn_id"])
        assert len(turns) == 2


async def test_R14_a_key_of_another_session_or_of_a_wrong_form_is_refused(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "s.db")) as api:
        first, second = [(await api("POST", "/api/sessions", {})).json["session_id"] for _ in range(2)]
        await say(api, first, headers={"Idempotency-Key": "k"})
        body = {"content": "x"}
        got = await api("POST", f"/api/sessions/{second}/messages", body, headers={"Idempotency-Key": "k"})
        assert got.status == 400
        got = await api("POST", f"/api/sessions/{second}/messages", body, headers={"Idempotency-Key": "k" * 151})
        assert got.status == 400
        assert len(api.provider.contexts) == 1


def _forgetful(inner: Handler) -> Handler:
    """Planted: the key is lost."""

    async def handler(app: App, request: Request) -> Reply:
        kept = {name: value for name, value in request.headers.items() if name != "idempotency-key"}
        return await inner(app, replace(request, headers=kept))

    return handler


@pytest.mark.planted("a key that is lost on the way")
async def test_R14_a_planted_loss_of_the_key_is_caught(tmp_path: Path) -> None:
    path = f"{S}/messages"
    routes = planted("POST", path, _forgetful(handler_of("POST", path)))
    async with api_on(str(tmp_path / "s.db"), [[{"text": "Paid."}]], routes=routes) as api:
        assert await repeated(api, random.Random(1), "k")


# R15: messages are only ever added or branched

Kept = dict[str, tuple[Any, ...]]


async def told(app: App, owner: str) -> Kept:
    """Every message that is final, in all sessions: what must stay."""
    kept: Kept = {}
    for session in await app.store.sessions.list(owner, limit=10_000):
        for row in await app.store.messages.list(owner, session.session_id):
            if row.state != "streaming":
                kept[row.message_id] = (session.session_id, row.seq, row.role, str(row.content), str(row.extra))
    return kept


def moves(api: Api, rng: random.Random, session: str, name: str) -> list[Callable[[], Any]]:
    """What a tab does, at random, in a session and its branches."""

    async def any_turn() -> str:
        turns = (await api("GET", f"/api/sessions/{session}/turns")).json["turns"]
        return rng.choice(turns)["turn_id"] if turns else uuid4().hex

    async def said() -> Any:
        return await api("POST", f"/api/sessions/{session}/messages", {"content": f"{name} says {rng.random()}"})

    async def streamed() -> Any:
        body = {"content": f"{name} reads {rng.random()}"}
        return await api("POST", f"/api/sessions/{session}/messages", body, headers=EVENTS)

    async def retried() -> Any:
        return await api("POST", f"/api/turns/{await any_turn()}/retry")

    async def cancelled() -> Any:
        return await api("POST", f"/api/turns/{await any_turn()}/cancel")

    async def branched() -> Any:
        last = (await api("GET", f"/api/sessions/{session}")).json["messages"]
        return await api("POST", f"/api/sessions/{session}/branch", {"seq": rng.randint(1, max(1, last))})

    async def renamed() -> Any:
        return await api("PATCH", f"/api/sessions/{session}", {"title": name, "meta": {"n": rng.random()}})

    async def folded() -> Any:
        return await api("POST", f"/api/sessions/{session}/compact")

    async def collected() -> Any:
        rows = (await api("GET", f"/api/sessions/{session}/messages")).json["messages"]
        if rows:
            path = f"/api/messages/{rng.choice(rows)['message_id']}/collected"
            return await api("PUT", path, {"collected": rng.random() < 0.5})

    return [said, said, streamed, retried, cancelled, branched, renamed, folded, collected]


async def changed_history(api: Api, rng: random.Random, load: Load) -> list[str]:
    """Two tabs and a bot on one session, all at once; what was final and is not as it was."""
    session = (await api("POST", "/api/sessions", {"mode": "agent"})).json["session_id"]
    problems: list[str] = []
    over = asyncio.Event()

    async def tab(name: str) -> None:
        for _ in load.rounds(25, "moves"):
            got = await rng.choice(moves(api, rng, session, name))()
            if got is not None and got.status >= 500:
                problems.append(f"{got.status} {got.raw!r}")

    async def bot() -> None:
        for number in load.rounds(12, "moves"):
            running = await api.app.start("ann", session, f"bot says {number}", key=f"update:{rng.random()}")
            if rng.random() < 0.5:
                await running.wait()

    async def watch() -> None:
        before: Kept = {}
        while True:
            last = over.is_set()
            now = await told(api.app, "ann")
            for name, row in before.items():
                if now.get(name) != row:
                    problems.append(f"{name} was {row} and is {now.get(name)}")
            before = now
            if last:
                return
            await asyncio.sleep(0.01)

    watching = asyncio.create_task(watch())
    async with asyncio.timeout(180 * load.factor):
        await asyncio.gather(tab("one"), tab("two"), bot())
        over.set()
        await watching
    return problems + await gaps(api.app, "ann")


async def gaps(app: App, owner: str) -> list[str]:
    """Sessions whose messages are not numbered from 1 on, one by one."""
    found: list[str] = []
    sessions: Sequence[Session] = await app.store.sessions.list(owner, limit=10_000)
    for session in sessions:
        numbers = [row.seq for row in await app.store.messages.list(owner, session.session_id)]
        if numbers != list(range(1, len(numbers) + 1)):
            found.append(f"{session.session_id} has the numbers {numbers}")
    return found


CHATTER: list[list[Step]] = [
    [{"delay": 0.005}, {"text": "Well, "}, {"delay": 0.01}, {"text": "yes."}],
    [{"text": "Let me see. "}, {"call": "look", "id": "c1", "arguments": {}}],
    [{"text": "So it is."}],
]


async def test_R15_two_tabs_and_a_bot_only_ever_add_or_branch(where: str, load: Load) -> None:
    seed = load.seed()
    async with api_on(where, CHATTER) as api:
        assert await changed_history(api, random.Random(seed), load) == []


async def _replacing(app: App, request: Request) -> Reply:
    """Planted: a change of the title takes the last answer away, as pages do that put a whole history."""
    session = request.params["session_id"]
    rows = await app.store.messages.list(request.user, session)

    def forget() -> Any:
        yield (
            "DELETE FROM conversation WHERE owner = ? AND session_id = ? AND seq = ?",
            (request.user, session, rows[-1].seq if rows else 0),
        )

    await app.store.db.write(request.user, forget)
    return await handler_of("PATCH", S)(app, request)


@pytest.mark.planted("a new title that takes the last answer away")
async def test_R15_a_planted_route_that_replaces_is_caught(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "s.db"), CHATTER, routes=planted("PATCH", S, _replacing)) as api:
        assert await changed_history(api, random.Random(3), Load(factor=1))


MAY = {
    "messages": {"list", "get", "collected", "text"},
    "turns": {"get", "list", "chunks"},
    "sessions": {"new", "get", "list", "search", "searches_all", "update", "branch", "delete"},
}
"""What a face may do with the store's messages and turns: nothing in it replaces a row."""


def replacing(source: str) -> list[str]:
    """Uses of the store by which a history could be replaced."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
            group = node.value.attr
            if group in MAY and node.attr not in MAY[group]:
                found.append(f"{node.lineno}: {group}.{node.attr}")
        if isinstance(node, ast.Attribute) and node.attr == "db":
            found.append(f"{node.lineno}: db")
    return found


def test_R15_no_route_replaces_a_history() -> None:
    folder = Path(lamina.gateway.__file__).parent
    assert {path.name: replacing(path.read_text(encoding="utf-8")) for path in folder.glob("*.py")} == {
        path.name: [] for path in folder.glob("*.py")
    }
    writes = [f"{r.method} {r.path}" for r in ROUTES if "message" in r.path and r.method in ("PUT", "PATCH", "DELETE")]
    assert writes == ["PUT /api/messages/{message_id}/collected"]


@pytest.mark.planted("a face that writes into a history")
def test_R15_a_planted_use_is_found() -> None:
    assert replacing("await app.store.messages.append(owner, s, m)")
    assert replacing("await app.store.turns.finish(owner, t)")
    assert replacing("app.store.db.write(owner, steps)")
    assert not replacing("await app.store.messages.get(owner, m)")
