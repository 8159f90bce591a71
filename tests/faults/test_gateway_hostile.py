"""G2: malformed requests, from the OpenAPI document by Schemathesis and by hand: none of them gets a 5xx."""

import asyncio
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from lamina.app.app import App
from lamina.gateway.api_sessions import SessionBody
from lamina.gateway.gateway import ROUTES, Gateway
from lamina.gateway.handlers import Handler, Reply, Request, Route, to_plain
from lamina.gateway.schemas import PARAMETER, ErrorJson
from tests.faults.load import Load
from tests.gateway.apis import Api, api_on, as_piece
from tests.gateway.worlds import world

MORE_ALLOWED = "positive_data_acceptance"
"""The one check that is left out: some things no schema says (a picture's address, hidden characters, a skill's name,
a number that is whole and written as 1.0), and they are refused in words."""
REFUSED = '[checks.negative_data_rejection]\nexpected-statuses = ["4xx"]\n'
"""A body that is too long is refused as such, whatever else is wrong with it."""


def server_errors(gateway: Gateway) -> list[str]:
    """What the gateway itself counted."""
    lines = gateway.metrics.text({}).splitlines()
    return [line for line in lines if line.startswith("lamina_requests_total{") and 'status="5' in line]


async def schemathesis(
    api: Api, folder: Path, load: Load, *options: str, paths: str = "^/(api|metrics|v1)", config: str = ""
) -> tuple[int, str]:
    """A run over the document that the gateway serves; its exit code and what it says. The quick form asks the same
    every time; the long one looks elsewhere."""
    seed = load.seed() if load.factor > 1 else 20_261_115
    (folder / "schemathesis.toml").write_text(f"{config}{REFUSED}", encoding="utf-8")
    command = [
        sys.executable, "-m", "schemathesis.cli", "run", f"{api.url}/api/openapi.json", "--no-color", "--seed",
        str(seed), "-H", f"Authorization: Bearer {await api.key('ann')}", "--request-timeout", "30",
        "--include-path-regex", paths, "--exclude-checks", MORE_ALLOWED, "--continue-on-failure", "--no-shrink",
        *options,
    ]  # fmt: skip
    running = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    try:
        async with asyncio.timeout(300 * load.factor):
            said, _ = await running.communicate()
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()
    text = said.decode(errors="replace")
    load.tried(sum(map(int, re.findall(r"(\d+) generated", text))), "requests")
    return running.returncode or 0, text


def short(said: str) -> str:
    return "\n".join(line[:300] for line in said.splitlines()[-200:])


async def test_G2_schemathesis_finds_no_server_error_and_no_untrue_line_of_the_document(
    tmp_path: Path, load: Load
) -> None:
    async with api_on(str(tmp_path / "s.db")) as api:
        await world(api)
        code, said = await schemathesis(
            api, tmp_path, load, "--max-examples", str(4 if load.factor == 1 else 8 * load.factor)
        )
        assert code == 0, short(said)
        assert server_errors(api.gateway) == []


async def test_G2_schemathesis_finds_none_behind_ids_that_are_there(tmp_path: Path, load: Load) -> None:
    async with api_on(str(tmp_path / "s.db")) as api:
        ids = await world(api)
        config = "[parameters]\n" + "".join(f'"path.{name}" = "{value}"\n' for name, value in ids.items())
        code, said = await schemathesis(
            api, tmp_path, load, "--max-examples", str(8 * load.factor), "--phases", "coverage,fuzzing",
            "--exclude-method", "DELETE", paths=r"^/api/.*\{", config=config,
        )  # fmt: skip
        assert code == 0, short(said)
        assert server_errors(api.gateway) == []


def _breaking(inner: Handler) -> Handler:
    """Planted: nobody thought of a text that long."""

    async def handler(app: App, request: Request) -> Reply:
        if len(str(request.body.title)) > 150:
            raise ZeroDivisionError
        return await inner(app, request)

    return handler


class AnyTitle(SessionBody):
    """Planted with it: a title that is not checked before the handler."""

    title: Any = UNSET


def _untrue(inner: Handler) -> Handler:
    """Planted: the answer has another shape than the document says."""

    async def handler(app: App, request: Request) -> Reply:
        reply = await inner(app, request)
        return replace(reply, body={**to_plain(reply.body), "messages": "many"})

    return handler


@pytest.mark.planted("a handler that fails at a long title; an answer in another shape than the document says")
@pytest.mark.parametrize("bug", [_breaking, _untrue])
async def test_G2_a_planted_bug_is_found(tmp_path: Path, bug: Any) -> None:
    routes = [
        replace(r, handler=bug(r.handler)) if (r.method, r.path) == ("POST", "/api/sessions") else r for r in ROUTES
    ]
    async with api_on(str(tmp_path / "s.db"), routes=routes) as api:
        code, said = await schemathesis(
            api,
            tmp_path,
            Load(factor=1),
            "--max-examples",
            "10",
            "--phases",
            "coverage,fuzzing",
            paths="^/api/sessions$",
        )
        assert code == 1, short(said)


# By hand

DEEP = b"[" * 100_000 + b"]" * 100_000
RAW: dict[str, bytes] = {
    "nothing": b"", "blanks": b"  \n", "no JSON": b"{content: 1}", "cut": b'{"content": "x', "two": b"{}{}",
    "NaN": b"NaN", "Infinity": b'{"meta": {"a": Infinity}}', "a huge number": b'{"seq": ' + b"9" * 5_000 + b"}",
    "a huge float": b'{"importance": 1e999}', "deep": DEEP, "deep objects": b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    "a name twice": b'{"title": "a", "title": "b"}', "a BOM": b'\xef\xbb\xbf{"title": "a"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "latin-1": b'{"title": "\xe9"}', "U+0000 raw": b'{"title": "\x00"}', "a lone surrogate": b'{"title": "\\ud800"}',
    "surrogates the wrong way round": b'{"content": "\\udc00\\ud800"}', "null": b"null", "a list": b"[]",
    "text": b'"x"', "true": b"true", "a number": b"3",
    "many names": b"{" + b",".join(b'"%d":1' % n for n in range(50_000)) + b"}",
}  # fmt: skip
HOSTILE: list[Any] = [
    None, True, -1, 0, 2**63, 10**30, 1.5, 1e308, "", " ", "\0", "x" * 100_000, "\u202e\u200b", "{{x}}",
    "'; DROP TABLE turn; --", [], {}, [[]], {"": ""}, {"\0": "\0"}, [None] * 1_000, {"type": "text"},
    [{"type": "text", "text": "\0"}],
    [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}], [{"type": "text", "text": ""}],
]  # fmt: skip
TEXTS = ["", "-1", "0", "99999999999999999999", "1e5", "NaN", "\0", "%", "a" * 3_000, "会", "' OR 1=1", "true", "null"]


def mutants(value: Any) -> Iterator[Any]:
    """The value with each of its leaves, and each of its lists and objects, replaced by something hostile."""
    yield from HOSTILE
    if isinstance(value, dict):
        for name, inner in value.items():  # pyright: ignore[reportUnknownVariableType]
            yield from ({**value, name: made} for made in mutants(inner))
            yield {key: kept for key, kept in value.items() if key != name}  # pyright: ignore[reportUnknownVariableType]
        yield {**value, "\0": 1}
    if isinstance(value, list) and value:
        yield from ([made] for made in mutants(value[0]))
        yield value * 2  # pyright: ignore[reportUnknownVariableType]


def is_error(raw: bytes) -> bool:
    try:
        return bool(msgspec.json.decode(raw, type=ErrorJson))
    except msgspec.MsgspecError:
        return False


async def sent(api: Api, ids: dict[str, str], route: Route, **options: Any) -> str:
    """What is wrong with the reply; empty when nothing is."""
    query = options.pop("query", "")
    path = PARAMETER.sub(lambda found: ids[found[1]], route.path) + query
    got = await api(route.method, path, **options)
    name = f"{route.method} {route.path}{query[:60]}"
    if got.status >= 500:
        return f"{name}: {got.status} {got.raw[:200]!r}"
    if got.status >= 400 and not is_error(got.raw):
        return f"{name}: an error in another form: {got.raw[:200]!r}"
    return ""


async def failures(api: Api, load: Load) -> list[str]:
    ids = await world(api)
    json_type = {"Content-Type": "application/json"}
    found: list[str] = []
    for route in api.routes:
        if not route.path.startswith("/api") or route.method == "DELETE" or route.path == "/api/logout":
            continue
        for raw in RAW.values() if route.method != "GET" else ():
            found.append(await sent(api, ids, route, data=raw, headers=json_type))
        if route.example is not None:
            for body in mutants(route.example):
                data = json.dumps(body).encode()
                found.append(await sent(api, ids, route, data=data, headers=json_type))
        for name in route.query.__struct_fields__ if route.query else ():
            for text in TEXTS:
                found.append(await sent(api, ids, route, query=f"?{name}={as_piece(text)}", body=route.example))
        for name in route.headers:
            for text in ("", "x" * 5_000, "\xe9\xff", "-1", "9" * 50, "0.end", "\t"):
                found.append(await sent(api, ids, route, body=route.example, headers={name: text}))
    load.tried(len(found), "requests")
    return [each for each in found if each]


async def test_G2_hostile_bodies_parameters_and_headers_get_no_server_error(where: str, load: Load) -> None:
    async with api_on(where) as api:
        assert await failures(api, load) == []
        assert server_errors(api.gateway) == []
        assert (await api("GET", "/api/health")).json == {"status": "ok"}


@pytest.mark.planted("a handler that fails at a hostile body")
async def test_G2_a_planted_failure_by_a_hostile_body_is_caught(tmp_path: Path) -> None:
    routes = [
        replace(r, handler=_breaking(r.handler), body=AnyTitle)
        if (r.method, r.path) == ("POST", "/api/sessions")
        else r
        for r in ROUTES
    ]
    async with api_on(str(tmp_path / "s.db"), routes=routes) as api:
        assert any("POST /api/sessions:" in each for each in await failures(api, Load()))
