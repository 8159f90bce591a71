"""People before a cluster: they talk through its front, come back after a break, leave, and remember what they saw.

What was acknowledged goes into the ledger of `tests.faults.chats`: a 2xx header with the turn, and each event. Every
reply is looked through for marks of others.
"""

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.faults.chats import Ledger
from tests.faults.cluster import MARK, Cluster, name_of
from tests.faults.nursery import Line
from tests.gateway.serving import Answer
from tests.gateway.streams import Heard, heard

EVENTS = {"Accept": "text/event-stream"}
AWAY = (502, 503, 504)
"""What the front or a gateway says for a moment when somebody behind it is gone."""
PAUSE = 0.05
BROKEN = (aiohttp.ClientError, ConnectionError)


@dataclass
class Crowd:
    """What all visitors of a cluster saw together."""

    cluster: Cluster
    http: aiohttp.ClientSession
    rng: random.Random
    front: str = ""
    """Another front than the cluster's own."""
    ledger: Ledger = field(default_factory=Ledger)
    served: set[str] = field(default_factory=set[str])
    """The gateways that replied, each by the beginning of its request ids."""
    foreign: list[str] = field(default_factory=list[str])
    own: int = 0
    """Replies in which somebody saw a mark of his own."""
    broken: int = 0
    """Replies that broke off, or were none, and were asked for again."""
    left: list[str] = field(default_factory=list[str])
    turns: list[str] = field(default_factory=list[str])

    def visitor(self, number: int) -> "Visitor":
        return Visitor(self, number, random.Random(self.rng.getrandbits(60)))


class Visitor:
    def __init__(self, crowd: Crowd, number: int, rng: random.Random) -> None:
        self.crowd, self.number, self.rng = crowd, number, rng
        self.front = crowd.front or crowd.cluster.front
        self.key = {"Authorization": f"Bearer {crowd.cluster.keys[number]}"}

    def words(self) -> str:
        return f"My cat is named K{self.number:02}{self.rng.getrandbits(40):010x}."

    def look_at(self, raw: bytes, what: str) -> None:
        owners = {int(found[1]) for found in MARK.finditer(raw.decode("utf-8", "replace"))}
        self.crowd.own += self.number in owners
        if owners - {self.number}:
            self.crowd.foreign.append(f"{name_of(self.number)} saw marks of {sorted(owners)} in {what}")

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """One request, its whole reply. What only looks is asked again while somebody is away."""
        while True:
            with suppress(*BROKEN):
                async with self.crowd.http.request(
                    method, f"{self.front}{path}", json=body, headers={**self.key, **headers}
                ) as reply:
                    raw = await reply.read()
                    if method != "GET" or reply.status not in AWAY:
                        self.look_at(raw, path)
                        self.crowd.served.add(reply.headers.get("X-Request-Id", "")[:8])
                        value = await reply.json() if reply.content_type == "application/json" and raw else None
                        return Answer(reply.status, reply.headers, raw, value)
            self.crowd.broken += 1
            await asyncio.sleep(PAUSE)

    async def session(self) -> str:
        while (made := await self.ask("POST", "/api/sessions", {})).status in AWAY:
            await asyncio.sleep(PAUSE)
        return made.json["session_id"]

    async def say(self, session: str, *, leave_after: int | None = None) -> str:
        """A question, read to its end through every break; or left behind after so many bytes. The turn's id."""
        words, key = self.words(), f"k{self.rng.getrandbits(60):x}"
        read = _Read(self, session, words)
        while not read.over:
            try:
                async with asyncio.timeout(60), self._request(read, session, words, key) as reply:
                    await self._listen(reply, read, leave_after)
            except BROKEN:
                self.crowd.broken += 1
            if leave_after is not None and read.size >= leave_after:
                self.crowd.left.append(read.turn)
                break
            if not read.over:
                await asyncio.sleep(PAUSE)
        return read.turn

    def _request(self, read: "_Read", session: str, words: str, key: str) -> Any:
        """The question, the very same one again while nobody has taken it, and then the rest of its answer."""
        http, url = self.crowd.http, self.front
        if not read.turn:
            headers = {**self.key, **EVENTS, "Idempotency-Key": key}
            return http.post(f"{url}/api/sessions/{session}/messages", json={"content": words}, headers=headers)
        headers = {**self.key, **({"Last-Event-ID": read.last} if read.last else {})}
        return http.get(f"{url}/api/turns/{read.turn}/events", headers=headers)

    async def _listen(self, reply: aiohttp.ClientResponse, read: "_Read", leave_after: int | None) -> None:
        if reply.status in AWAY:
            self.crowd.broken += 1
            return
        assert reply.status in (200, 204), (reply.status, await reply.text())
        self.crowd.served.add(reply.headers["X-Request-Id"][:8])
        read.begun(reply.headers)
        if reply.status == 204:
            read.over = True
            return
        rest = b""
        async for piece in reply.content.iter_any():
            rest = read.take(rest + piece)
            if leave_after is not None and read.size + len(rest) >= leave_after:
                read.size = leave_after
                reply.close()
                return


class _Read:
    """How far one question has come for whoever asked it."""

    def __init__(self, visitor: Visitor, session: str, words: str) -> None:
        self._visitor, self._ledger = visitor, visitor.crowd.ledger
        self._session, self._words = session, words
        self.turn = self.last = ""
        self.size = 0
        self.over = False

    def begun(self, headers: Mapping[str, str]) -> None:
        if not self.turn:
            self.turn = headers["X-Lamina-Turn"]
            self._visitor.crowd.turns.append(self.turn)
            owner = name_of(self._visitor.number)
            self._ledger.take({
                "what": "began", "owner": owner, "session": self._session, "words": self._words, "turn": self.turn
            })  # fmt: skip

    def take(self, raw: bytes) -> bytes:
        """The events that are whole; returns what is left."""
        whole, sign, rest = raw.rpartition(b"\n\n")
        self._visitor.look_at(whole, f"the stream of {self.turn}")
        self.size += len(whole)
        for event in heard(whole + sign):
            self.last = event.id or self.last
            self.over = self.over or event.name == "ended"
            if line := line_of(self.turn, event):
                self._ledger.take(line)
        return rest


def line_of(turn: str, event: Heard) -> Line | None:
    """An event as the ledger has it."""
    data: Any = event.data
    match event.name:
        case "text":
            return {"what": "text", "turn": turn, "text": data["text"]}
        case "call":
            return {"what": "call", "turn": turn, "id": data["id"]}
        case "result":
            return {"what": "result", "turn": turn, "id": data["id"], "text": data["text"]}
        case "ended":
            return {"what": "ended", "turn": turn, "state": data["state"]}
        case _:
            return None


def grew(before: Any, after: Any) -> list[str]:
    """What a later look at a session lacks, or has otherwise, than an earlier one: questions only come behind others,
    and an answer that was whole stays as it was."""
    old, new = ([row["message_id"] for row in rows if row["role"] == "user"] for rows in (before, after))
    found = [] if new[: len(old)] == old else [f"{len(old)} questions were there, and they no longer are"]
    texts = {row["message_id"]: row["content"] for row in after}
    found += [
        f"the message {row['message_id']} is gone or changed"
        for row in before
        if row["state"] == "complete" and texts.get(row["message_id"]) != row["content"]
    ]
    return found
