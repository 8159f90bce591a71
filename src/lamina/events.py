"""What a turn streams, for `async for event in session.ask("…")`: begun once, then texts, tool calls and their results,
notices and usages as they come, and ended once.
"""

from lamina.types import Began, Ended, Notice, Text, ToolCallEvent, ToolResult, TurnEvent, Usage

__all__ = ["Began", "Ended", "Notice", "Text", "ToolCallEvent", "ToolResult", "TurnEvent", "Usage"]
