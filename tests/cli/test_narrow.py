"""A terminal of 40 columns: bars and secondary columns give way, texts are folded, and nothing is cut."""

import pytest
from rich.cells import cell_len

from lamina.cli.chat import fit_toolbar
from tests.cli.process import Lamina

TEA = "How do I make tea properly in the morning?"
CHINESE = "安喜欢在早上喝加蜂蜜的绿茶，中午以后从不喝咖啡，周末去爬山。"


@pytest.fixture
def talked(lamina: Lamina) -> Lamina:
    lamina.script([{"text": "Well."}])
    lamina("memory", "add", CHINESE, "--kind", "preference")
    lamina("ask", TEA)
    return lamina


def shown(lamina: Lamina, *command: str, width: int = 40, lang: str = "en") -> str:
    with lamina.terminal(*command, width=width, environ={"LAMINA_LANG": lang}) as terminal:
        terminal.end()
        return terminal.text


def joined(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_lists_keep_ids_and_texts_whole(talked: Lamina, lang: str) -> None:
    session, memory = talked.json("sessions")[0]["session_id"][:8], talked.json("memory")[0]["memory_id"][:8]
    sessions, memories = shown(talked, "sessions", lang=lang), shown(talked, "memory", lang=lang)
    assert session in sessions
    assert joined(TEA) in joined(sessions)
    assert memory in memories
    assert joined(CHINESE) in joined(memories)
    assert len(memories.split("\n")) < 8, "the text has room"
    assert "…" not in sessions + memories


@pytest.mark.parametrize("width", [40, 80])
def test_bars_give_way_to_tokens_and_shares(talked: Lamina, width: int) -> None:
    for row in talked.json("trace", "show", "last")["requests"][0]["segments"]:
        line = next(one for one in shown(talked, "trace", "show", "last", width=width).split("\n")
                    if one.strip().startswith(row["layer"]) and one.endswith("%"))  # fmt: skip
        assert line.split()[-2] == f"{row['tokens']:,}"
        assert "█" in line


def test_in_a_chat_too(talked: Lamina) -> None:
    with talked.terminal("chat", width=40, environ={"LAMINA_LANG": "zh"}) as terminal:
        terminal.ready()
        assert joined(TEA) in joined(terminal.say("/sessions", "morning?"))
        assert joined(CHINESE) in joined(terminal.say("/memory", "爬山。"))
        assert "%\n" in terminal.say("/context", "%")
        assert "…" not in terminal.say("/help", "/quit").split("› /help")[1]


@pytest.mark.parametrize("width", [20, 40, 100])
def test_L11_the_bar_below_what_is_typed_keeps_the_way_to_the_help(width: int) -> None:
    line = fit_toolbar("agent", "SmolLM2-135M-Instruct-Q4_K_M", "新会话", "/help", width)
    assert line.endswith(" · 新会话 · /help")
    assert cell_len(line) <= max(width, 29)
    assert ("SmolLM2-135M-Instruct-Q4_K_M" in line) is (width == 100)


def test_the_help_folds_chinese(lamina: Lamina) -> None:
    for width, command in ((80, ("serve",)), (40, ()), (40, ("sessions", "search")), (40, ("trace",))):
        said = shown(lamina, *command, "--help", width=width, lang="zh")
        assert "…" not in said.replace("postgresql://…", "").replace("……", "").replace("…；", "")
    assert "默认没有。" in joined(shown(lamina, "serve", "--help", width=80, lang="zh")).replace("│", "")
