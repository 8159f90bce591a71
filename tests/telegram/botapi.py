"""A local server that speaks the Bot API, as far as a bot needs it, with Telegram's limits and its bad days.

It keeps updates until a later one is asked for, refuses markup and lengths that Telegram refuses, and can be told to
answer 429, to drop connections, or to deliver everything again and again.
"""

import asyncio
import itertools
import json
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from aiohttp import web

TOKEN = "4242:CANARY-token-of-the-bot"
NAME = "lamina_test_bot"
ME = {"id": 4242, "is_bot": True, "first_name": "lamina", "username": NAME}
TAGS = {"b", "i", "u", "s", "a", "code", "pre", "blockquote"}
MOST = 4_096


@dataclass(frozen=True, slots=True)
class Call:
    """A request that the bot made."""

    method: str
    given: Mapping[str, str]
    at: float

    @property
    def chat(self) -> int:
        return int(self.given.get("chat_id", 0))

    @property
    def text(self) -> str:
        return self.given.get("text", "")


@dataclass(frozen=True, slots=True)
class Fault:
    """What the next request of a method gets instead of an answer; status 0 is a dropped connection."""

    status: int
    words: str = ""
    retry_after: int = 0


class _Reader(HTMLParser):
    """Reads HTML as strictly as Telegram does: known tags, closed in order."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.text, self.open, self.wrong = "", list[str](), ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in TAGS:
            self.wrong = f"unsupported start tag {tag}"
        if self.open and self.open[-1] in ("code", "pre") and (self.open[-1], tag) != ("pre", "code"):
            self.wrong = f"{tag} within {self.open[-1]}"
        if tag == "blockquote" and tag in self.open:
            self.wrong = "nested blockquote"
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong = f"unexpected end tag {tag}"

    def handle_data(self, data: str) -> None:
        self.text += data


def read_html(marked: str) -> tuple[str, str]:
    """The text of HTML, and what is wrong with it."""
    reader = _Reader()
    reader.feed(marked)
    reader.close()
    return reader.text, reader.wrong or ("an open tag" if reader.open else "")


def units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


@dataclass(slots=True)
class BotApi:
    """The server: what it has for the bot, and what the bot sent."""

    updates: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    calls: list[Call] = field(default_factory=list[Call])
    messages: dict[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])
    """What people see, by chat and number."""
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    faults: dict[str, list[Fault]] = field(default_factory=lambda: defaultdict[str, list[Fault]](list))
    copies: int = 1
    """How often each update stands in one answer."""
    stubborn: int = 0
    """So many requests for updates give all of them, whatever was confirmed."""
    asked_from: int = 0
    base: str = ""
    _numbers: Any = field(default_factory=lambda: itertools.count(100))
    _ids: Any = field(default_factory=lambda: itertools.count(1_000))
    _told: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    # people

    def update(self, text: str = "", *, person: int = 7, chat: int | None = None, lang: str = "en", topic: int = 0,
               name: str = "", **more: Any) -> dict[str, Any]:  # fmt: skip
        """A message of somebody, not yet delivered; in private unless a chat is named."""
        group = chat is not None
        message: dict[str, Any] = {
            "message_id": next(self._numbers), "date": int(time.time()),
            "from": {"id": person, "is_bot": False, "first_name": name or f"P{person}", "language_code": lang},
            "chat": {"id": chat if group else person, "type": "supergroup" if group else "private"}, **more,
        }  # fmt: skip
        if topic:
            message |= {"message_thread_id": topic, "is_topic_message": True}
        if text:
            message |= {"text": text, "entities": entities(text)}
        return {"update_id": next(self._ids), "message": message}

    async def push(self, *updates: dict[str, Any]) -> None:
        async with self._news:
            self.updates |= {each["update_id"]: each for each in updates}
            self._told |= {each["update_id"]: each for each in updates}
            self._news.notify_all()

    async def say(self, text: str, **more: Any) -> dict[str, Any]:
        update = self.update(text, **more)
        await self.push(update)
        return update

    def picture(self, raw: bytes, caption: str = "", **more: Any) -> dict[str, Any]:
        """A photo in two sizes; the larger one is the one to take."""
        name = f"file{len(self.files)}"
        self.files |= {f"{name}.small": b"small", name: raw}
        sizes = [
            {"file_id": f"{name}.small", "file_unique_id": f"{name}s", "width": 90, "height": 90, "file_size": 5},
            {"file_id": name, "file_unique_id": name, "width": 900, "height": 900, "file_size": len(raw)},
        ]
        said = {"caption": caption, "caption_entities": entities(caption)} if caption else {}
        return self.update(photo=sizes, **said, **more)

    # looking

    def sent(self, method: str = "sendMessage", chat: int | None = None) -> list[Call]:
        return [call for call in self.calls if call.method == method and chat in (None, call.chat)]

    def shown(self, chat: int = 7) -> list[str]:
        """What the bot's messages in a chat show now, tags left out."""
        return [read_html(text)[0] for (where, _), text in self.messages.items() if where == chat]

    async def until(self, holds: Callable[[], Any], seconds: float = 30) -> None:
        """Wait until something holds; it is looked at after each request."""
        async with asyncio.timeout(seconds), self._news:
            await self._news.wait_for(lambda: bool(holds()))

    async def until_shown(self, words: str, chat: int = 7) -> None:
        await self.until(lambda: any(words in text for text in self.shown(chat)))

    # the API

    async def handle(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        if request.match_info["token"] != TOKEN:
            return _answer(401, "Unauthorized")
        given = {name: str(value) for name, value in (await request.post()).items()}
        fault = self.faults[method].pop(0) if self.faults[method] else None
        if fault and fault.status == 0:
            assert request.transport
            request.transport.close()
            return web.Response()
        if fault:
            more = {"parameters": {"retry_after": fault.retry_after}} if fault.retry_after else {}
            await self._note(method, given)
            return _answer(fault.status, fault.words or "Too Many Requests: retry later", **more)
        answer = await getattr(self, f"_{method}", self._fine)(given)
        await self._note(method, given)
        return answer

    async def file(self, request: web.Request) -> web.StreamResponse:
        raw = self.files.get(request.match_info["name"])
        if self.faults["file"]:
            return web.Response(status=self.faults["file"].pop(0).status)
        return web.Response(body=raw) if raw is not None else web.Response(status=404)

    async def _note(self, method: str, given: Mapping[str, str]) -> None:
        async with self._news:
            self.calls.append(Call(method, given, time.monotonic()))
            self._news.notify_all()

    async def _fine(self, given: Mapping[str, str]) -> web.Response:
        return _answer(200, True)

    async def _getMe(self, given: Mapping[str, str]) -> web.Response:
        return _answer(200, ME)

    async def _getUpdates(self, given: Mapping[str, str]) -> web.Response:
        offset, limit = int(given.get("offset", 0)), int(given.get("limit", 100))
        async with self._news:
            self.asked_from = max(self.asked_from, offset)
            for number in [number for number in self.updates if number < offset]:
                del self.updates[number]
            self._news.notify_all()
            if self.stubborn and self._told:
                self.stubborn -= 1
                return _answer(200, [each for each in list(self._told.values())[-limit:] for _ in range(self.copies)])
            try:
                async with asyncio.timeout(int(given.get("timeout", 0))):
                    await self._news.wait_for(lambda: self.updates)
            except TimeoutError:
                return _answer(200, [])
            found = [self.updates[number] for number in sorted(self.updates)][:limit]
        return _answer(200, [each for each in found for _ in range(self.copies)])

    async def _sendMessage(self, given: Mapping[str, str]) -> web.Response:
        return await self._put(given, next(self._numbers))

    async def _editMessageText(self, given: Mapping[str, str]) -> web.Response:
        number, chat = int(given["message_id"]), int(given["chat_id"])
        if (chat, number) not in self.messages:
            return _answer(400, "Bad Request: message to edit not found")
        if self.messages[chat, number] == _marked(given):
            return _answer(400, "Bad Request: message is not modified: the same as before")
        return await self._put(given, number)

    async def _deleteMessage(self, given: Mapping[str, str]) -> web.Response:
        self.messages.pop((int(given["chat_id"]), int(given["message_id"])), None)
        return _answer(200, True)

    async def _put(self, given: Mapping[str, str], number: int) -> web.Response:
        text, wrong = read_html(given["text"]) if given.get("parse_mode") == "HTML" else (given["text"], "")
        if wrong:
            return _answer(400, f"Bad Request: can't parse entities: {wrong}")
        if not text.strip():
            return _answer(400, "Bad Request: message text is empty")
        if units(text) > MOST:
            return _answer(400, "Bad Request: message is too long")
        chat = int(given["chat_id"])
        self.messages[chat, number] = _marked(given)
        kind = "private" if chat > 0 else "supergroup"
        return _answer(200, {"message_id": number, "date": 1, "chat": {"id": chat, "type": kind}, "text": text})

    async def _getFile(self, given: Mapping[str, str]) -> web.Response:
        name = given["file_id"]
        if name not in self.files:
            return _answer(400, "Bad Request: invalid file_id")
        size = len(self.files[name])
        return _answer(200, {"file_id": name, "file_unique_id": name, "file_size": size, "file_path": f"photos/{name}"})


def _marked(given: Mapping[str, str]) -> str:
    plain = given["text"].replace("&", "&amp;").replace("<", "&lt;")
    return given["text"] if given.get("parse_mode") == "HTML" else plain


def _answer(status: int, value: object, **more: Any) -> web.Response:
    body = {"ok": True, "result": value} if status == 200 else {"ok": False, "error_code": status, "description": value}
    return web.Response(status=status, text=json.dumps({**body, **more}), content_type="application/json")


def entities(text: str) -> list[dict[str, Any]]:
    """The commands and mentions in a text, where Telegram counts them."""
    found: list[dict[str, Any]] = []
    at = 0
    for word in text.replace("\n", " ").split(" "):
        kind = {"/": "bot_command", "@": "mention"}.get(word[:1])
        if kind:
            found.append({"type": kind, "offset": at, "length": units(word)})
        at += units(word) + 1
    return found


@asynccontextmanager
async def bot_api(first: int = 1_000) -> AsyncGenerator[BotApi, None]:
    """The server on a free port, as long as the block lasts; `first` is the number of its first update."""
    api = BotApi(_ids=itertools.count(first))
    app = web.Application()
    app.router.add_post("/bot{token}/{method}", api.handle)
    app.router.add_get("/file/bot{token}/photos/{name}", api.file)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port: int = runner.addresses[0][1]
        api.base = f"http://127.0.0.1:{port}"
        yield api
    finally:
        await runner.cleanup()
