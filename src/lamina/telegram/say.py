"""What the bot itself says, in the language of the person. Markdown, as the answers are."""

from lamina.text.messages import Phrase, Value

COMMANDS = ("new", "stop", "collect", "uncollect", "memory", "context", "mode", "phase", "help")
"""The menu, in this order."""


def say(lang: str, code: str, /, **values: Value) -> str:
    return Phrase(code, **values).text(lang)


def menu(lang: str) -> dict[str, str]:
    return {name: say(lang, f"bot.command.{name}") for name in COMMANDS}
