"""G7: the token is a part of every address that the bot asks; it is in no log line, no error, no output, no store."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from lamina.errors import LaminaError
from lamina.settings import load_settings
from lamina.telegram.checks import keep_out_of_logs
from lamina.telegram.client import TelegramClient
from lamina.types import Key
from tests.cli.process import Lamina
from tests.telegram.botapi import TOKEN, Fault, bot_api
from tests.telegram.bots import PNG, bot, hello, process

CANARY = TOKEN.partition(":")[2]


@pytest.fixture
def own_records() -> Iterator[None]:
    """How log records are made is global: leave it as it was."""
    before = logging.getLogRecordFactory()
    yield
    logging.setLogRecordFactory(before)


def leaks(records: list[logging.LogRecord]) -> list[str]:
    form = logging.Formatter("%(message)s")
    return [line for record in records if CANARY in (line := form.format(record))]


async def bad_day(where: str) -> None:
    """Everything that can go wrong on the way, each once."""
    async with bot_api() as api, bot(api, where, hello("Here")):
        api.faults["getUpdates"] += [Fault(0), Fault(409, "Conflict"), Fault(200, "huh")]
        api.faults["sendMessage"] += [Fault(0), Fault(403, "Forbidden: blocked"), Fault(400, "Bad Request: odd")]
        api.faults["file"] += [Fault(404), Fault(500)]
        await api.push(api.picture(PNG), api.picture(PNG), api.update("one"), api.update("two"))
        await api.until(lambda: len(api.sent()) >= 4)


async def test_G7_no_log_line_at_any_level_holds_the_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, own_records: None
) -> None:
    caplog.set_level(logging.DEBUG)
    await bad_day(str(tmp_path / "s.db"))
    assert len(caplog.records) > 5
    assert leaks(caplog.records) == []
    keep_out_of_logs(Key(TOKEN))
    logging.getLogger("aiohttp.client").debug("GET %s", f"https://api.telegram.org/bot{TOKEN}/getMe")
    try:
        raise ValueError(f"https://api.telegram.org/bot{TOKEN}/getMe")
    except ValueError:
        logging.getLogger("asyncio").exception("Task exception was never retrieved")
    assert "ValueError: https://api.telegram.org/bot" in logging.Formatter("%(message)s").format(caplog.records[-1])
    assert leaks(caplog.records) == []


@pytest.mark.planted("a log line with the token")
def test_G7_a_planted_leak_is_found(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("aiohttp.client").debug("GET %s", f"https://api.telegram.org/bot{TOKEN}/getMe")
    assert leaks(caplog.records)


async def test_G7_no_error_holds_the_token() -> None:
    async with bot_api() as api:
        client = TelegramClient(Key(TOKEN), api=api.base)
        try:
            for faults in ({"getFile": Fault(0)}, {"file": Fault(404)}, {"getFile": Fault(400, "Bad Request: odd")}):
                for name, fault in faults.items():
                    api.faults[name].append(fault)
                api.files["x"] = PNG
                with pytest.raises(LaminaError) as caught:
                    await client.download("x", 100)
                assert CANARY not in f"{caught.value!r}{caught.value}{caught.value.__cause__!r}"
        finally:
            await client.close()


async def test_G7_a_real_process_shows_and_keeps_the_token_nowhere(tmp_path: Path) -> None:
    lamina = Lamina(tmp_path)
    lamina.script([{"text": "Here"}])
    async with bot_api() as api, process(api, lamina, "--verbose", PYTHONASYNCIODEBUG="1") as child:
        api.faults["getUpdates"] += [Fault(0), Fault(502, "Bad Gateway")]
        api.faults["sendMessage"] += [Fault(0)]
        await child.until_ready()
        await api.say("Hi")
        await api.until_shown("Here")
        assert await child.end() == 0
        assert child.output
        assert CANARY not in child.output
        found = [path.name for path in tmp_path.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
        assert found == []


def test_G7_settings_never_show_the_token(tmp_path: Path) -> None:
    environ = {"LAMINA_TELEGRAM_TOKEN": TOKEN}
    kept = load_settings(tmp_path, environ, channel="telegram")
    assert kept.telegram_token is not None
    assert kept.telegram_token.reveal() == TOKEN
    assert CANARY not in repr(kept)
    lamina = Lamina(tmp_path)
    for arguments in (("config",), ("config", "--json"), ("config", "--channel", "telegram")):
        assert CANARY not in lamina(*arguments, LAMINA_TELEGRAM_TOKEN=TOKEN)
    assert CANARY not in lamina.error("telegram", LAMINA_TELEGRAM_TOKEN=f" {CANARY}\n")


def test_settings_of_the_bot_come_from_the_environment_alone_and_bad_ones_are_named(tmp_path: Path) -> None:
    given = {"LAMINA_TELEGRAM_ALLOW": "7, 8;9", "LAMINA_TELEGRAM_USERS": "7=ann, 8=bob"}
    kept = load_settings(tmp_path, given, channel="telegram")
    assert (kept.telegram_allow, dict(kept.telegram_users)) == ((7, 8, 9), {7: "ann", 8: "bob"})
    for variable, value in (
        ("LAMINA_TELEGRAM_TOKEN", "no token"), ("LAMINA_TELEGRAM_ALLOW", "@ann"), ("LAMINA_TELEGRAM_ALLOW", "-7"),
        ("LAMINA_TELEGRAM_USERS", "7"), ("LAMINA_TELEGRAM_USERS", "7=ann,7=bob"), ("LAMINA_TELEGRAM_USERS", "7=@all"),
        ("LAMINA_TELEGRAM_API", "ftp://x"),
    ):  # fmt: skip
        with pytest.raises(LaminaError, match=variable):
            load_settings(tmp_path, {variable: value})
    for line in (
        'telegram_token = "1:a"',
        'telegram_allow = "1"',
        'telegram_users = "1=a"',
        'telegram_api = "http://x"',
    ):
        (tmp_path / "lamina.toml").write_text(line)
        with pytest.raises(LaminaError, match="may not be set here"):
            load_settings(tmp_path, {})


def test_the_command_says_what_is_missing(tmp_path: Path) -> None:
    lamina = Lamina(tmp_path)
    lamina.script([{"text": "Here"}])
    assert "LAMINA_TELEGRAM_TOKEN" in lamina.error("telegram")
    assert "LAMINA_TELEGRAM_ALLOW" in lamina.error("telegram", LAMINA_TELEGRAM_TOKEN=TOKEN)
    assert "--webhook" in lamina.error("telegram", "--listen", "127.0.0.1:1", LAMINA_TELEGRAM_TOKEN=TOKEN)
    for lang, words in (("en", "Run the Telegram bot."), ("zh", "运行 Telegram 机器人。")):
        assert words in lamina("--lang", lang, "telegram", "--help")
