"""Print the path of one streamed request through a running gateway: `make walk`.

The gateway, the app and the store are the real ones, in this process, with a scripted provider. A first request loads
everything; the second is traced from the socket to its last byte, on the event loop and in all threads.
"""

import argparse
import asyncio
import json
import logging
import re
import sys
import tempfile
import textwrap
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import aiohttp

from lamina.app.app import App
from lamina.gateway.gateway import Gateway
from lamina.gateway.limits import GatewayOptions
from lamina.gateway.server import listen, serving
from lamina.providers.scripted import ScriptedProvider
from lamina.settings import load_settings

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "lamina"
PAGE = ROOT / "docs" / "design" / "request.md"
BLOCK = re.compile(r"(?<=^<!-- walk -->\n```\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
TOKEN = "lam_loopback_" + "w" * 43
ANSWER = [{"text": "A pier "}, {"text": "stands in "}, {"text": "the sea."}, {"usage": [120, 96, 8]}, {"done": "stop"}]
FORMS = ("openai", "anthropic", "api")
LINE_COLUMNS = 118
SETTLE_S = 0.5
"""After the first request, whose last checkpoint is still being written when its reply ends."""
EPILOG = "example: python -m scripts.walk --form api --json | jq .files[].path"


@dataclass
class Walk:
    """What one request ran through; files and functions are in the order of their first call."""

    form: str
    functions: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """The functions that ran, by file."""
    calls: Counter[str] = field(default_factory=Counter[str])
    """By file. A coroutine that resumes after an await counts again."""
    file_changes: int = 0
    package_changes: int = 0
    tasks: list[str] = field(default_factory=list[str])

    @property
    def packages(self) -> list[str]:
        return list(dict.fromkeys(map(package_of, self.functions)))

    def as_json(self) -> dict[str, Any]:
        files = [
            {"path": path, "package": package_of(path), "calls": self.calls[path], "functions": names}
            for path, names in self.functions.items()
        ]
        return {
            "form": self.form, "files": files, "packages": self.packages, "file_changes": self.file_changes,
            "package_changes": self.package_changes, "tasks": self.tasks,
        }  # fmt: skip

    def as_text(self) -> str:
        functions = sum(map(len, self.functions.values()))
        lines = [
            f"{len(self.functions)} files, {functions} functions, {len(self.packages)} packages; "
            f"{self.file_changes} changes of file, {self.package_changes} of package; {len(self.tasks)} tasks",
            "",
        ]
        for path, names in self.functions.items():
            lines += [path, *_wrap(names)]
        return "\n".join([*lines, "", "tasks started", *_wrap(self.tasks)]) + "\n"


class Tracer:
    """A profile function for all threads. It ignores everything before `start`, and tasks that were running then."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self._armed = False
        self._others: set[asyncio.Task[Any] | None] = set()
        self._names: dict[CodeType, tuple[str, str] | None] = {}
        self._last = ""
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start counting. The gateway's periodic tasks and the client (the current task) are not part of the walk."""
        self._others = set(asyncio.all_tasks())
        self._armed = True

    def stop(self) -> None:
        self._armed = False

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not self._armed:
            return
        if frame.f_code not in self._names:
            self._names[frame.f_code] = _place_of(frame.f_code)
        place = self._names[frame.f_code]
        if place is None or _current_task() in self._others:
            return
        with self._lock:
            self._note(*place)

    def _note(self, path: str, name: str) -> None:
        walk = self.walk
        names = walk.functions.setdefault(path, [])
        if name not in names:
            names.append(name)
        walk.calls[path] += 1
        if self._last and path != self._last:
            walk.file_changes += 1
            walk.package_changes += package_of(path) != package_of(self._last)
        self._last = path

    def make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **more: Any) -> asyncio.Task[Any]:
        """The task factory of the event loop."""
        place = _place_of(coro.cr_code) if self._armed and _current_task() not in self._others else None
        if place:
            self.walk.tasks.append(f"{Path(place[0]).stem}.{place[1]}")
        return asyncio.Task(coro, loop=loop, **more)


def package_of(path: str) -> str:
    """`assembly` of `assembly/ledger.py`; the modules beside the packages are the ground."""
    return path.rpartition("/")[0] or "ground"


def _place_of(code: CodeType) -> tuple[str, str] | None:
    """The file within the package and the function, or None for other people's code. A comprehension or a nested
    function belongs to the function around it."""
    path = Path(code.co_filename)
    if not path.is_relative_to(PACKAGE):
        return None
    return str(path.relative_to(PACKAGE)), code.co_qualname.partition(".<locals>")[0]


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread without an event loop
        return None


def _wrap(names: Sequence[str]) -> list[str]:
    return textwrap.wrap(", ".join(names), LINE_COLUMNS, initial_indent="    ", subsequent_indent="    ")


async def follow_request(form: str, folder: Path) -> Walk:
    """Follow the second request of a chat. The background worker is off: its jobs run after the reply."""
    walk = Walk(form)
    tracer = Tracer(walk)
    asyncio.get_running_loop().set_task_factory(tracer.make_task)
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    try:
        settings = load_settings(
            folder, {"LAMINA_USER": "ann", "LAMINA_EMBEDDER": "none", "LAMINA_WORKSPACE": str(folder)}, "gateway"
        )
        provider = ScriptedProvider([ANSWER], repeat=True)
        async with App.open(folder / "walk.db", settings=settings, provider=provider, work=False) as app:
            sock = listen(GatewayOptions(port=0, log="off"))
            port = int(sock.getsockname()[1])
            options = GatewayOptions(port=port, log="off")
            async with (
                serving(Gateway(app, options, token=TOKEN), sock),
                aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client,
            ):
                path, body = await _start_chat(client, form)
                await _stream(client, path, body)
                await asyncio.sleep(SETTLE_S)
                tracer.start()
                await _stream(client, path, body)
                tracer.stop()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # pyright: ignore[reportArgumentType] -- which ends it
    return walk


async def _start_chat(client: aiohttp.ClientSession, form: str) -> tuple[str, dict[str, Any]]:
    """The path and body of the request; lamina's own API needs a session first."""
    said = "What is a pier?"
    if form == "api":
        async with client.post("/api/sessions", json={}, headers=_headers()) as reply:
            session = await reply.json()
        return f"/api/sessions/{session['session_id']}/messages", {"content": said}
    path = "/v1/chat/completions" if form == "openai" else "/v1/messages"
    body = {"model": "lamina", "stream": True, "max_tokens": 100, "messages": [{"role": "user", "content": said}]}
    return path, body


async def _stream(client: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> None:
    async with client.post(path, json=body, headers=_headers()) as reply:
        text = (await reply.read()).decode()
        if reply.status != 200 or "stands in" not in text:
            raise SystemExit(f"{path} answered {reply.status}: {text}")


def _headers() -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKEN}", "Accept": "text/event-stream"}


def walk_of(form: str = "openai") -> Walk:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(follow_request(form, Path(folder)))


def page_with_walk(page: str, walk: Walk) -> str:
    return BLOCK.sub(lambda _: walk.as_text(), page)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.walk", description="The path of one streamed request through a running gateway: "
        "files, functions, changes of package, tasks.", epilog=EPILOG,
    )  # fmt: skip
    parser.add_argument(
        "--form", choices=FORMS, default="openai", help="of the request; api is lamina's own (default: openai)"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--page", action="store_true", help=f"write it into {PAGE.relative_to(ROOT)}")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)  # such as that the empty workspace has no rules
    walk = walk_of(options.form)
    if options.page:
        PAGE.write_text(page_with_walk(PAGE.read_text(encoding="utf-8"), walk), encoding="utf-8")
    print(json.dumps(walk.as_json(), indent=2) if options.json else walk.as_text().rstrip())


if __name__ == "__main__":
    main()
