"""Tools for your own `App`: those that ship, and what a tool of your own is made of.

A name is loaded when it is first used: the core needs the registry alone.
"""

from importlib import import_module

TYPE_CHECKING = False  # as in lamina/__init__.py
if TYPE_CHECKING:
    from lamina.app.config import built_in_tools
    from lamina.tools.files import file_tools
    from lamina.tools.registry import Tool, ToolRegistry
    from lamina.types import Decision, Outcome

_MODULES = {
    "Decision": "types",
    "Outcome": "types",
    "Tool": "tools.registry",
    "ToolRegistry": "tools.registry",
    "built_in_tools": "app.config",
    "file_tools": "tools.files",
}

__all__ = ["Decision", "Outcome", "Tool", "ToolRegistry", "built_in_tools", "file_tools"]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'lamina.tools' has no attribute {name!r}")
    return getattr(import_module(f"lamina.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
