"""Real processes: the official clients against one, and a stream that goes on in another."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import openai
import pytest

from tests.gateway.processes import environ, gateway, new_key
from tests.gateway.streams import Heard, heard, text_of
from tests.postgres import Server

HELLO = [[{"text": "Hello, "}, {"text": "你好。"}, {"usage": [70, 50, 9]}]]
SLOW: Any = [[step for n in range(8) for step in ({"text": f"词{n} "}, {"delay": 0.25})]]
WHOLE = "".join(step["text"] for step in SLOW[0] if "text" in step)


def test_the_official_clients_work_against_a_gateway_process(tmp_path: Path) -> None:
    env = environ(tmp_path, str(tmp_path / "s.db"), HELLO)
    key = new_key(tmp_path, env)
    with gateway(tmp_path, env) as site:
        with openai.OpenAI(base_url=f"{site.url}/v1", api_key=key) as client:
            messages: Any = [{"role": "user", "content": "Hi"}]
            whole = client.chat.completions.create(model="lamina", messages=messages)
            assert whole.choices[0].message.content == "Hello, 你好。"
            chunks = client.chat.completions.create(model="lamina", messages=messages, stream=True)
            assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello, 你好。"
        with anthropic.Anthropic(base_url=site.url, api_key=key) as other:
            answer = other.messages.create(model="lamina", max_tokens=99, messages=[{"role": "user", "content": "Hi"}])
            assert answer.content[0].type == "text"
            assert answer.content[0].text == "Hello, 你好。"
            with other.messages.stream(model="lamina", max_tokens=99, messages=messages) as stream:
                assert "".join(stream.text_stream) == "Hello, 你好。"
        log = site.log.read_text()
    assert key.split("_", 2)[2] not in log, "no secret is in a log"


async def read(client: aiohttp.ClientSession, url: str, key: str, after: str = "", upto: int = 10**9) -> list[Heard]:
    headers = {"Authorization": f"Bearer {key}", **({"Last-Event-ID": after} if after else {})}
    raw = b""
    async with client.get(url, headers=headers) as reply:
        assert reply.status == 200, await reply.text()
        async for piece in reply.content.iter_any():
            raw += piece
            if sum(event.name == "text" for event in heard(raw)) >= upto:
                break
    return heard(raw)


async def test_R10_a_stream_begun_on_one_gateway_goes_on_at_another_and_is_ended_from_there(
    tmp_path: Path, postgres: Server
) -> None:
    env = environ(tmp_path, postgres.database(), SLOW)
    key = new_key(tmp_path, env)
    send = {"Authorization": f"Bearer {key}"}
    with gateway(tmp_path, env) as one, gateway(tmp_path, env) as other:
        async with aiohttp.ClientSession() as client, asyncio.timeout(60):
            async with client.post(f"{one.url}/api/sessions", json={}, headers=send) as made:
                session = (await made.json())["session_id"]
            path = f"/api/sessions/{session}/messages"
            async with client.post(f"{one.url}{path}", json={"content": "go"}, headers=send) as said:
                events = (await said.json())["events"]
            begun = await read(client, f"{one.url}{events}", key, upto=2)
            rest = await read(client, f"{other.url}{events}", key, after=begun[-1].id)
            assert text_of(begun) + text_of(rest) == WHOLE
            assert rest[-1].data["state"] == "complete"
            async with client.post(f"{one.url}{path}", json={"content": "again"}, headers=send) as said:
                events = (await said.json())["events"]
            begun = await read(client, f"{other.url}{events}", key, upto=1)
            async with client.post(f"{other.url}{events.replace('/events', '/cancel')}", headers=send) as ended:
                assert (await ended.json())["state"] == "interrupted"
            told = await read(client, f"{one.url}{events}", key)
            assert told[-1].data["state"] == "interrupted"
            assert WHOLE.startswith(text_of(told))
            assert text_of(told).startswith(text_of(begun))


async def test_R20_a_gateway_that_dies_leaves_its_turn_to_the_other(tmp_path: Path, postgres: Server) -> None:
    env = environ(tmp_path, postgres.database(), SLOW)
    key = new_key(tmp_path, env)
    send = {"Authorization": f"Bearer {key}", "Idempotency-Key": "once"}
    with gateway(tmp_path, env) as one, gateway(tmp_path, env) as other:
        async with aiohttp.ClientSession() as client, asyncio.timeout(90):
            async with client.post(f"{other.url}/api/sessions", json={}, headers=send) as made:
                session = (await made.json())["session_id"]
            path = f"/api/sessions/{session}/messages"
            async with client.post(f"{one.url}{path}", json={"content": "go"}, headers=send) as said:
                turn = await said.json()
            begun = await read(client, f"{one.url}{turn['events']}", key, upto=2)
            one.process.kill()
            one.process.wait()
            rest = await read(client, f"{other.url}{turn['events']}", key, after=begun[-1].id)
            assert rest[-1].data["state"] == "interrupted", "within its lease, by whoever is left"
            assert WHOLE.startswith(text_of(begun) + text_of(rest))
            async with client.post(f"{other.url}{path}", json={"content": "go"}, headers=send) as again:
                assert (await again.json())["turn_id"] == turn["turn_id"], "the same key is the same turn, anywhere"


async def test_connections_are_as_many_as_the_setting_says_and_half_of_them_from_one_address(tmp_path: Path) -> None:
    env = environ(tmp_path, str(tmp_path / "s.db"), SLOW) | {"LAMINA_CONNECTIONS": "4"}
    send = {"Authorization": f"Bearer {new_key(tmp_path, env)}"}
    body = {"messages": [{"role": "user", "content": "go"}], "stream": True}
    with gateway(tmp_path, env) as site:
        async with aiohttp.ClientSession() as client, asyncio.timeout(60):
            path = f"{site.url}/v1/chat/completions"
            async with (
                client.post(path, json=body, headers=send) as one,
                client.post(path, json=body, headers=send) as two,
            ):
                assert (one.status, two.status) == (200, 200)
                async with client.get(f"{site.url}/api/health") as third:
                    assert third.status == 503


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_gateway_says_what_is_wrong_in_words(tmp_path: Path, path: str) -> None:
    env = environ(tmp_path, str(tmp_path / "s.db"), HELLO)
    key = new_key(tmp_path, env)
    with gateway(tmp_path, env) as site:
        async with aiohttp.ClientSession() as client:
            send = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
            for raw, status in (
                (b"{", 400), (b"[]", 400), (b'{"messages": 3}', 400), (b"\xff\xfe", 400), (b"", 400),
                (b"[" * 100_000, 400), (b'{"messages": [], "x": NaN}', 400),
            ):  # fmt: skip
                async with client.post(f"{site.url}{path}", data=raw, headers=send) as reply:
                    said = await reply.read()
                    assert reply.status == status, said
                    assert json.loads(said)["error"]["message"]
