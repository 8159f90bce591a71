"""The system prompt as text: its layers (seed 000) and its three segments (seed 002).

Joins and headings only. Text from outside is fenced (`fences`) before it comes here.
"""

from collections.abc import Sequence
from typing import get_args

from lamina.errors import LayerError, format_value
from lamina.text.messages import LANGUAGES, Phrase
from lamina.text.unicode import check_unicode
from lamina.types import GROUPS, LAYERS, Lang, Layer, Trust

JOIN = "\n\n"
TRUSTS = get_args(Trust)

HEADINGS: dict[str, dict[str, str]] = {
    "tools": {"en": "Tool notes", "zh": "可用工具补充说明"},
    "state": {"en": "Runtime state", "zh": "运行时状态"},
}

GROUP_OF = {name: group for group, (names, _) in GROUPS.items() for name in names}

MODE_HINTS = {
    "agent": "Mode: agent\nWork on the task step by step with the tools you have, and say what you did.",
    "plan": "Mode: plan\nOnly plan: say what you would do and in which order. Change nothing.",
    "ask": "Mode: ask\nAnswer the question directly. Do not begin work that was not asked for.",
}


def mode_hint(mode: str) -> str:
    """The hint of a mode (P4)."""
    if mode not in MODE_HINTS:
        raise LayerError("tool.no_such_mode", mode=format_value(mode), known=list(MODE_HINTS), hint="tool.modes")
    return MODE_HINTS[mode]


def assemble_system_prompt(
    *,
    global_identity: str,
    user_rules: str | None = None,
    skill_system_prompt: str | None = None,
    mode_hint: str | None = None,
    memory_overlay: str | None = None,
    context_overlay: str | None = None,
) -> str:
    """Identity, rules, skill, mode, memory, context in this order, joined by a blank line (P1).

    A layer that is None, empty or only white space is skipped (P2); the others keep their bytes (P3).
    """
    layers = {
        "global_identity": global_identity,
        "user_rules": user_rules,
        "skill_system_prompt": skill_system_prompt,
        "mode_hint": mode_hint,
        "memory_overlay": memory_overlay,
        "context_overlay": context_overlay,
    }
    for name, text in layers.items():
        if text is not None:
            check_layer_text(text, name)
    return JOIN.join(text for text in layers.values() if text and not text.isspace())


def check_layer_text(text: object, where: str | Phrase) -> None:
    if not isinstance(text, str):
        raise LayerError("text.not_text", where=where, type=type(text).__name__, value=format_value(text))
    check_unicode(text, where)


def ordered(layers: Sequence[Layer]) -> list[Layer]:
    """The layers that have text, in the fixed order; those of one name keep the order they came in."""
    if isinstance(layers, str) or not isinstance(layers, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise LayerError("layer.not_list", type=type(layers).__name__, value=format_value(layers))
    for number, layer in enumerate(layers):
        _check_layer(layer, f"layers[{number}]")
    kept = [layer for layer in layers if layer.text and not layer.text.isspace()]
    return sorted(kept, key=lambda layer: LAYERS.index(layer.name))


def _check_layer(layer: Layer, where: str) -> None:
    if not isinstance(layer, Layer):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise LayerError("layer.not_layer", where=where, type=type(layer).__name__, value=format_value(layer))
    if layer.name not in LAYERS:
        raise LayerError("layer.unknown_name", where=where, name=format_value(layer.name), known=LAYERS)
    if layer.trust not in TRUSTS:  # a slip here would leave text from outside without its fence
        raise LayerError("layer.unknown_trust", where=where, name=format_value(layer.trust), known=TRUSTS)
    if not isinstance(layer.source, str) or not isinstance(layer.owner, str | None):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise LayerError(
            "layer.bad_origin", where=where, source=format_value(layer.source), owner=format_value(layer.owner)
        )
    check_unicode(layer.source, f"{where}.source")
    check_layer_text(layer.text, Phrase("place.layer", layer=layer.name, source=layer.source))


def check_lang(lang: str) -> None:
    if lang not in LANGUAGES:
        raise LayerError("layer.unknown_language", lang=format_value(lang), known=LANGUAGES)


def segment_opening(name: str, lang: Lang = "en") -> str:
    """What opens the segments of tool notes and runtime state: a rule and a heading."""
    return f"---\n# {HEADINGS[name][lang]}\n\n"


def group_opening(group: str, lang: Lang = "en") -> str:
    """The heading of a group of layers."""
    return f"# {GROUPS[group][1][lang]}\n\n"


def assemble_segments(
    *, static: str, tool_notes: str = "", runtime_hints: Sequence[str] = (), lang: Lang = "en"
) -> str:
    """Static instructions, tool notes and runtime hints as one prompt (S1); the last two vanish when empty."""
    if isinstance(runtime_hints, str):
        raise LayerError("prompt.hints_not_list", where="runtime_hints")
    check_lang(lang)
    hints = JOIN.join(hint for hint in runtime_hints if hint and not hint.isspace())
    pieces = [static]
    pieces += [segment_opening("tools", lang) + tool_notes] if tool_notes and not tool_notes.isspace() else []
    pieces += [segment_opening("state", lang) + hints] if hints else []
    for text in pieces:
        check_layer_text(text, Phrase("place.prompt_segment"))
    return JOIN.join(piece for piece in pieces if piece and not piece.isspace())
