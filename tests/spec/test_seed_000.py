"""Seed 000, REQ-AIS-PROMPT-ASSEMBLY: the layers of the system prompt, with the seed's own data."""

import re
from pathlib import Path

import pytest

from lamina import Layer, assemble, assemble_system_prompt
from lamina.app.config import IDENTITY, Sources, assemble_files, gather
from lamina.assembly.pieces import mode_hint
from lamina.errors import LayerError, MessageError
from lamina.settings import Settings, load_settings
from tests.cli.process import Lamina
from tests.engine.chats import chat, told

ALL = {
    "global_identity": "<identity>AI</identity>",
    "user_rules": "规则：不写暴力内容",
    "skill_system_prompt": "你是续写助手，从光标处继续写作",
    "mode_hint": "Mode: agent",
    "memory_overlay": "用户偏好：简洁风格",
    "context_overlay": "当前角色：林默正在调查案件",
}


def test_P1_S1_all_layers_stand_in_order() -> None:
    text = assemble_system_prompt(**ALL)
    places = [text.index(part) for part in ("<identity>", "规则", "续写助手", "Mode: agent", "简洁风格", "林默")]
    assert places == sorted(places)
    assert text == "\n\n".join(ALL.values())


def test_P2_S2_missing_layers_are_skipped() -> None:
    text = assemble_system_prompt(
        global_identity="<identity>AI</identity>",
        user_rules=None,
        skill_system_prompt=None,
        mode_hint=None,
        memory_overlay=None,
        context_overlay=None,
    )
    assert text == "<identity>AI</identity>"
    assert "\n\n\n\n" not in text


def test_P2_S3_blank_layers_are_skipped() -> None:
    text = assemble_system_prompt(
        global_identity="<identity>AI</identity>", user_rules="  ", skill_system_prompt="", memory_overlay="\n"
    )
    assert text == "<identity>AI</identity>"


def test_P2_a_blank_identity_is_skipped_too() -> None:
    assert assemble_system_prompt(global_identity="   ", mode_hint="Mode: agent") == "Mode: agent"
    assert assemble_system_prompt(global_identity="") == ""


def test_P3_the_bytes_of_a_kept_layer_stay_as_they_are() -> None:
    odd = "  \tleading, trailing \r\n\u00a0 e\u0301 \u3000\n\n"
    assert assemble_system_prompt(global_identity=odd, user_rules=odd) == f"{odd}\n\n{odd}"


@pytest.mark.parametrize("name", list(ALL))
@pytest.mark.parametrize("value", [3, b"bytes", ["list"], {"a": 1}])
def test_P1_a_layer_that_is_no_text_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(LayerError, match=name):
        assemble_system_prompt(**{**ALL, name: value})  # pyright: ignore[reportArgumentType] -- on purpose


def test_P1_a_lone_surrogate_is_refused_with_its_place() -> None:
    with pytest.raises(MessageError, match=r"user_rules contains the lone surrogate U\+D800 at character 2"):
        assemble_system_prompt(global_identity="AI", user_rules="ab\ud800")


def test_P4_modes_and_their_hints() -> None:
    for mode in ("agent", "plan", "ask"):
        assert mode_hint(mode).startswith(f"Mode: {mode}\n")
    with pytest.raises(LayerError, match="'yolo'"):
        mode_hint("yolo")


async def test_P4_every_mode_sends_its_hint_from_the_app_and_no_mode_is_ask(tmp_path: Path) -> None:
    async with chat(str(tmp_path / "s.db"), [[{"text": "ok"}]]) as (app, _, provider):
        for mode in ("agent", "plan", "ask", ""):
            session = await app.new_session("ann", mode=mode)
            await told(app, session, "Go on.")
            segments = provider.contexts[-1].receipt.segments
            assert [s.source for s in segments if s.layer == "mode"] == [f"mode:{mode or 'ask'}"]
            assert provider.contexts[-1].system.count("Mode: ") == 1
            assert f"\nMode: {mode or 'ask'}\n" in provider.contexts[-1].system


def test_P4_lamina_ask_sends_the_hint_of_its_mode(tmp_path: Path) -> None:
    lamina = Lamina(tmp_path)
    lamina.script([{"text": "ok"}])
    lamina("ask", "Why?", "--mode", "ask")
    assert "Mode: ask" in lamina("trace", "show", "last", "--payload")


def test_P1_the_full_assembly_gives_the_same_bytes_as_the_small_function() -> None:
    names = ["identity", "rules", "skill", "mode", "memory", "context"]
    layers = [Layer(name, text) for name, text in zip(names, ALL.values(), strict=True)]
    context = assemble(list(reversed(layers)), user="续写", budget=1000)
    assert context.system == assemble_system_prompt(**ALL)


def test_P6_a_default_identity_ships_with_closed_blocks() -> None:
    text = IDENTITY.read_text(encoding="utf-8")
    for tag in ("identity", "behavior", "context_awareness"):
        assert len(re.findall(rf"<{tag}>", text)) == len(re.findall(rf"</{tag}>", text)) == 1
    context = assemble_files(Settings(), Sources(), user="你好", mark="lamina")
    assert context.system == text.strip("\n").replace("{mark}", "lamina") + f"\n\n{mode_hint('ask')}"


def test_P6_one_setting_replaces_the_identity(tmp_path: Path) -> None:
    own = tmp_path / "me.md"
    own.write_text("<identity>林默</identity>", encoding="utf-8")
    by_variable = load_settings(tmp_path, {"LAMINA_IDENTITY": str(own)})
    (tmp_path / "lamina.toml").write_text('identity = "me.md"\n')
    for settings in (by_variable, load_settings(tmp_path, {})):
        assert gather(settings, Sources(), "ask")[0].text == "<identity>林默</identity>"
