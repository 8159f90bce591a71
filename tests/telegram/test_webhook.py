"""The webhook: only Telegram's requests are taken, each once, and a 200 means that the question is stored."""

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, TCPConnector

from lamina.errors import InputError
from lamina.telegram.bot import SECRET_HEADER, make_secret
from lamina.telegram.checks import Webhook
from lamina.telegram.switchboard import MAX_REPEATED
from lamina.types import Key
from tests.cli.process import Lamina
from tests.telegram.botapi import TOKEN, bot_api
from tests.telegram.bots import ANN, bot, free_port, hello, process

SECRET = make_secret(Key(TOKEN))
ADDRESS = "https://bot.example.com/hook"


@pytest.fixture
def where(tmp_path: Path) -> str:
    return str(tmp_path / "chats.db")


async def test_a_webhook_takes_what_telegram_sends_and_each_once(where: str) -> None:
    hook = Webhook(ADDRESS, f"127.0.0.1:{free_port()}")
    async with bot_api() as api, bot(api, where, hello("Here"), webhook=hook) as running, ClientSession() as client:
        await api.until(lambda: api.sent("setWebhook"))
        told = api.sent("setWebhook")[0].given
        assert (told["url"], told["secret_token"], told["allowed_updates"]) == (ADDRESS, SECRET, '["message"]')
        address, update = f"http://{hook.listen}/hook", api.update("Hi")

        async def post() -> int:
            async with client.post(address, json=update, headers={SECRET_HEADER: SECRET}) as answer:
                return answer.status

        assert await asyncio.gather(*(post() for _ in range(50))) == [200] * 50
        (session,) = await running.app.store.sessions.list(f"telegram:{ANN}")
        assert session.last_seq == 2, "the 200 says that the question is stored"
        await api.until_shown("Here")
        assert len(running.provider.contexts) == 1


async def test_commands_alone_are_a_crowd_too_at_last(where: str) -> None:
    """A webhook brings them without Telegram's window of a hundred."""
    hook = Webhook(ADDRESS, f"127.0.0.1:{free_port()}")
    many = TCPConnector(limit=0)
    async with (
        bot_api() as api,
        bot(api, where, hello("Here"), webhook=hook, pace=1.0),
        ClientSession(connector=many) as client,
    ):
        await api.until(lambda: api.sent("setWebhook"))
        address = f"http://{hook.listen}/hook"

        async def post(update: Any) -> None:
            async with client.post(address, json=update, headers={SECRET_HEADER: SECRET}):
                pass

        posts = [asyncio.create_task(post(api.update("/new"))) for _ in range(MAX_REPEATED + 20)]
        await api.until_shown(f"{MAX_REPEATED} of your messages are still waiting")
        for each in posts:
            each.cancel()
        await asyncio.gather(*posts, return_exceptions=True)


async def test_a_wrong_secret_a_wrong_path_and_a_wrong_body_are_refused(where: str) -> None:
    hook = Webhook(ADDRESS, f"127.0.0.1:{free_port()}")
    async with bot_api() as api, bot(api, where, hello("Here"), webhook=hook) as running, ClientSession() as client:
        await api.until(lambda: api.sent("setWebhook"))
        base, update = f"http://{hook.listen}", api.update("Hi")
        for headers in (
            {},
            {SECRET_HEADER: ""},
            {SECRET_HEADER: SECRET[:-1]},
            {SECRET_HEADER: "é" * 64},
            {SECRET_HEADER: TOKEN},
        ):
            async with client.post(f"{base}/hook", json=update, headers=headers) as answer:
                assert answer.status == 401
        good = {SECRET_HEADER: SECRET}
        for path, body, status in (
            ("/elsewhere", b"{}", 404), ("/hook", b"no json", 400), ("/hook", b"[]", 400), ("/hook", b"{}", 400),
            ("/hook", b'{"update_id": 1e999}', 400),
            ("/hook", b'{"update_id": 1, "message": 7}', 200), ("/hook", b" " * 1_048_577, 413),
        ):  # fmt: skip
            async with client.post(f"{base}{path}", data=io.BytesIO(body), headers=good) as answer:
                assert answer.status == status, (path, body[:20])
        async with client.get(f"{base}/hook", headers=good) as answer:
            assert answer.status == 405
        assert running.provider.contexts == []
        assert await running.app.store.sessions.list(f"telegram:{ANN}") == []


async def test_a_real_process_serves_a_webhook_and_stops_politely(tmp_path: Path) -> None:
    lamina = Lamina(tmp_path)
    lamina.script([{"text": "Here"}])
    listen = f"127.0.0.1:{free_port()}"
    async with (
        bot_api() as api,
        process(api, lamina, "--webhook", ADDRESS, "--listen", listen) as child,
        ClientSession() as client,
    ):
        await child.until_ready()
        await api.until(lambda: api.sent("setWebhook"))
        async with client.post(
            f"http://{listen}/hook", json=api.update("Hi"), headers={SECRET_HEADER: SECRET}
        ) as answer:
            assert answer.status == 200
        await api.until_shown("Here")
        assert await child.end() == 0
        assert "Stopped." in child.output


@pytest.mark.parametrize(
    ("address", "listen"),
    [("http://e.org/x", "127.0.0.1:1"), ("https://", "127.0.0.1:1"), (ADDRESS, "8443"), (ADDRESS, "h:99999")],
)
def test_an_address_that_cannot_be_used_is_named(address: str, listen: str) -> None:
    with pytest.raises(InputError, match=r"--webhook|--listen"):
        Webhook(address, listen)
