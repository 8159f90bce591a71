"""lamina decides, byte for byte, what a language model sees on every turn, and can prove afterwards what it sent.

The public names, nothing else. A name is loaded when it is first used, so `import lamina` costs next to nothing.
"""

from importlib import import_module

TYPE_CHECKING = False  # type checkers take it as true; importing `typing` for it would cost 8 ms
if TYPE_CHECKING:
    from lamina.app.app import App
    from lamina.assembly.estimate import estimate_tokens
    from lamina.assembly.fences import Fence, Hint, Prompt, system_hint
    from lamina.assembly.grammar import validate
    from lamina.assembly.messages import build_llm_messages
    from lamina.assembly.prompt import assemble_segments, assemble_system_prompt
    from lamina.assembly.receipt import explain
    from lamina.assembly.results import tool_result
    from lamina.assembly.tokens import estimate_message_tokens
    from lamina.assembly.wire import encode, render
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
    "assembly.estimate": ("estimate_tokens",),
    "assembly.fences": ("Fence", "Hint", "Prompt", "system_hint"),
    "assembly.grammar": ("validate",),
    "assembly.messages": ("build_llm_messages",),
    "assembly.prompt": ("assemble_segments", "assemble_system_prompt"),
    "assembly.receipt": ("explain",),
    "assembly.results": ("tool_result",),
    "assembly.tokens": ("estimate_message_tokens",),
    "assembly.wire": ("encode", "render"),
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
