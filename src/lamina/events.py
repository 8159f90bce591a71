"""What a turn streams, for `async for event in session.ask("…")`: it begins once, then come texts, tool calls and their
results, notices and usages as they happen, and it ends once.
"""

from lamina.types import Began, Ended, Notice, Text, ToolCallEvent, ToolResult, TurnEvent, Usage

__all__ = ["Began", "Ended", "Notice", "Text", "ToolCallEvent", "ToolResult", "TurnEvent", "Usage"]
