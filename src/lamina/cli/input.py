"""What people type: messages of one or many lines with their history, slash commands completed, and a clear yes.

What was typed before a question was shown never answers it. The history is in the user's state folder, which nobody
else can read.
"""

import json
import os
import select
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import History
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.input.typeahead import clear_typeahead, store_typeahead
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding import KeyBindings, KeyPress, KeyPressEvent
from prompt_toolkit.output import create_output
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.styles import Style

from lamina.app.store_admin import create_private, make_private_folder
from lamina.cli.call import YES
from lamina.cli.say import visible

try:
    import termios
except ImportError:  # a system without it echoes keys while an answer runs
    termios = None

STYLE = Style.from_dict(
    {
        "prompt": "ansicyan bold",
        "bottom-toolbar": "noreverse ansibrightblack",
        "completion-menu": "bg:default noreverse",
        "completion-menu.completion": "bg:default ansicyan",
        "completion-menu.completion.current": "bg:ansicyan ansiblack noreverse",
        "completion-menu.meta.completion": "bg:default ansibrightblack",
        "completion-menu.meta.completion.current": "bg:default ansibrightblack noreverse",
    }
)
MAX_HISTORY = 1_000
"""Messages that the history keeps."""
MAX_LINE_CHARACTERS = 64 * 1024
COOKED = str.maketrans("\n\0", "\r\x04")
"""What a terminal that reads lines makes of Enter and Ctrl-D, and what they are."""

Choice = tuple[str, str]
"""What may be typed, and what it means."""
Choices = Callable[[str], Iterable[Choice]]
"""The words that may follow a slash command; for an empty name the commands themselves."""


class MessageHistory(History):
    """A line of JSON for each message, mode 0600. A chat goes on where the history cannot be stored."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def load_history_strings(self) -> Iterable[str]:
        with suppress(OSError):
            lines = self._path.read_text(encoding="utf-8", errors="replace").split("\n")
            found = [text for line in lines[-4 * MAX_HISTORY :] if (text := _text_of(line))][-MAX_HISTORY:]
            if len(lines) > 2 * MAX_HISTORY:
                self._write(found, os.O_TRUNC)
            yield from reversed(found)

    def store_string(self, string: str) -> None:
        if len(string) <= MAX_LINE_CHARACTERS:
            with suppress(OSError):
                make_private_folder(self._path.parent)
                self._write([string], os.O_APPEND)

    def _write(self, texts: Sequence[str], how: int) -> None:
        handle = create_private(str(self._path), os.O_WRONLY | how)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(text)}\n" for text in texts)


def _text_of(line: str) -> str:
    try:
        found: object = json.loads(line) if line else ""
    except ValueError:
        return ""
    return found if isinstance(found, str) else ""


class SlashCompleter(Completer):
    """`/mo` becomes `/mode`, and after `/mode ` the modes are offered. Ordinary words are left alone."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if not text.startswith("/") or "\n" in text:
            return
        name, blank, rest = text[1:].partition(" ")
        for word, meaning in self._choices(name if blank else ""):
            typed = rest if blank else text
            if word.startswith(typed):
                yield Completion(word, -len(typed), display_meta=visible(meaning))


def _bindings(nothing: Callable[[], None]) -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state and buffer.complete_state.current_completion:
            buffer.complete_state = None
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    @keys.add("c-j")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def _(event: KeyPressEvent) -> None:
        if not event.current_buffer.text:
            nothing()
        event.current_buffer.reset()

    return keys


class Keyboard:
    """How a person types messages in a chat."""

    def __init__(self, history: Path, choices: Choices, toolbar: Callable[[bool], str]) -> None:
        self._cleared = False
        slash = Condition(lambda: get_app().current_buffer.text.startswith("/"))
        self._session: PromptSession[str] = PromptSession(
            multiline=True,
            history=MessageHistory(history),
            completer=SlashCompleter(choices),
            style=STYLE,
            complete_while_typing=slash,
            complete_style=CompleteStyle.COLUMN,
            key_bindings=_bindings(self._clear),
            bottom_toolbar=lambda: [("class:bottom-toolbar", toolbar(self._cleared))],
            prompt_continuation=lambda width, number, wrapped: [("class:prompt", "· ".rjust(width))],
        )
        window = self._session.layout.current_window
        window.dont_extend_height = Condition(lambda: True)  # the toolbar is right below what is typed

    def _clear(self) -> None:
        self._cleared = True

    async def read_message(self) -> str | None:
        """What was typed, without blanks around it; None when people leave."""
        self._cleared = False
        try:
            text = await self._session.prompt_async([("class:prompt", "› ")], handle_sigint=False)
        except EOFError:
            return None
        return text.encode("utf-8", "replace").decode().strip()


async def ask_yes_no(question: str) -> bool:
    """Only a clear yes is one; no is what Enter, Ctrl-D and everything else mean. Ctrl-C is raised."""
    output = None if sys.stdout.isatty() else create_output(stdout=sys.stderr)
    session: PromptSession[str] = PromptSession(style=STYLE, output=output)
    forget_typed(session.input)
    words = FormattedText([("bold", f"  {question} ")])
    try:
        return (await session.prompt_async(words, handle_sigint=False)).strip().casefold() in YES
    except EOFError:
        return False


def forget_typed(given: Input) -> None:
    """Drop keys that are not read yet, and those that an earlier prompt read and left for the next."""
    clear_typeahead(given)
    if termios:
        with suppress(termios.error, OSError, ValueError):
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def keep_typed() -> None:
    """What was typed before `quiet` waits for the first prompt: until then the terminal made Enter a Ctrl-J."""
    typed = b""
    if termios:
        with suppress(termios.error, OSError, ValueError):
            handle = sys.stdin.fileno()
            while len(typed) < MAX_LINE_CHARACTERS and select.select([handle], [], [], 0)[0]:
                block = os.read(handle, 4096)
                if not block:
                    break
                typed += block
    if typed:
        presses: list[KeyPress] = []
        parser = Vt100Parser(presses.append)
        parser.feed(typed.decode("utf-8", "ignore").translate(COOKED))
        parser.flush()
        store_typeahead(create_input(), presses)


@contextmanager
def quiet() -> Generator[None, None, None]:
    """Keys that are pressed inside are not shown; they wait for the next prompt, each as it was pressed."""
    found: Any = None
    if termios:
        with suppress(termios.error, OSError, ValueError):
            found = termios.tcgetattr(sys.stdin.fileno())
            lines = termios.ECHO | termios.ICANON | termios.IEXTEN
            silent = [found[0] & ~termios.ICRNL, *found[1:3], found[3] & ~lines, *found[4:]]
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        if termios and found:
            with suppress(termios.error, OSError, ValueError):
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, found)
