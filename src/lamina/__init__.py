"""lamina decides, byte for byte, what a language model sees on every turn, and can prove afterwards what it sent.

The public names, nothing else. A name is loaded when it is first used, so `import lamina` costs next to nothing.
"""

from importlib import import_module

TYPE_CHECKING = False  # type checkers take it as true; importing `typing` for it would cost 8 ms
if TYPE_CHECKING:
    from lamina.app.app import App
    from lamina.assembly.fences import Fence, Hint, Prompt, system_hint, tool_result
    from lamina.assembly.grammar import validate
    from lamina.assembly.pieces import assemble_segments, assemble_system_prompt
    from lamina.assembly.receipt import explain
    from lamina.assembly.request import encode, render
    from lamina.assembly.tokens import estimate_message_tokens, estimate_tokens
    from lamina.assembly.window import build_llm_messages
    from lamina.engine.build import ContextBuilder
    from lamina.errors import LaminaError
    from lamina.library import Ledger, Window, assemble
    from lamina.memory.service import MemoryService
    from lamina.prompts.injection import SystemPromptManager
    from lamina.prompts.instructions import InstructionFiles
    from lamina.providers.tokenizers import exact_counter
    from lamina.settings import Settings
    from lamina.store.store import open_store
    from lamina.tools.registry import Tool, ToolRegistry
    from lamina.types import Layer

__version__ = "0.1.0"

_ROOMS = {
    "app.app": ("App",),
    "assembly.fences": ("Fence", "Hint", "Prompt", "system_hint", "tool_result"),
    "assembly.grammar": ("validate",),
    "assembly.pieces": ("assemble_segments", "assemble_system_prompt"),
    "assembly.receipt": ("explain",),
    "assembly.request": ("encode", "render"),
    "assembly.tokens": ("estimate_message_tokens", "estimate_tokens"),
    "assembly.window": ("build_llm_messages",),
    "engine.build": ("ContextBuilder",),
    "errors": ("LaminaError",),
    "prompts.injection": ("SystemPromptManager",),
    "prompts.instructions": ("InstructionFiles",),
    "memory.service": ("MemoryService",),
    "tools.registry": ("Tool", "ToolRegistry"),
    "library": ("Ledger", "Window", "assemble"),
    "providers.tokenizers": ("exact_counter",),
    "settings": ("Settings",),
    "store.store": ("open_store",),
    "types": ("Layer",),
}

__all__ = [
    "App",
    "ContextBuilder",
    "Fence",
    "Hint",
    "InstructionFiles",
    "LaminaError",
    "Layer",
    "Ledger",
    "MemoryService",
    "Prompt",
    "Settings",
    "SystemPromptManager",
    "Tool",
    "ToolRegistry",
    "Window",
    "assemble",
    "assemble_segments",
    "assemble_system_prompt",
    "build_llm_messages",
    "encode",
    "estimate_message_tokens",
    "estimate_tokens",
    "exact_counter",
    "explain",
    "open_store",
    "render",
    "system_hint",
    "tool_result",
    "validate",
]


def __getattr__(name: str) -> object:
    for room, names in _ROOMS.items():
        if name in names:
            value = globals()[name] = getattr(import_module(f"lamina.{room}"), name)
            return value
    raise AttributeError(f"module 'lamina' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
