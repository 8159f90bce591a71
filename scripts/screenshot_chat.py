"""`python scripts/screenshot_chat.py docs/images/chat.svg`: a chat in a real terminal, with a scripted model."""

import os
import shutil
import sys
import tempfile
from itertools import groupby
from pathlib import Path

import pyte
from rich.style import Style
from rich.text import Text

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from screenshot import WIDTH, draw  # noqa: E402
from tests.cli.terminal import CTRL_D, ENTER, Terminal  # noqa: E402

NAMES = {"brown": "yellow", "brightbrown": "bright_yellow", "brightblack": "bright_black"}


class Dim(pyte.HistoryScreen):
    """pyte does not know faint text: grey stands for it."""

    def select_graphic_rendition(self, *attrs: int, **more: bool) -> None:
        super().select_graphic_rendition(*(90 if attr == 2 else attr for attr in attrs), **more)


def typed(folder: Path) -> str:
    """What a terminal gets to see of a short chat in the example of a team."""
    shutil.copytree(ROOT / "examples" / "team", folder / "team")
    (folder / "team" / "drafts").mkdir()
    own = {"LAMINA_PROVIDER": "scripted", "LAMINA_SCRIPT": str(ROOT / "examples" / "chat" / "script.json"),
           "LAMINA_STORE": str(folder / "chats.db"), "LAMINA_USER": "ann", "LAMINA_EMBEDDER": "none",
           "XDG_STATE_HOME": str(folder)}  # fmt: skip
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("LAMINA_", "LC_"))}
    with Terminal(["chat", "--mode", "agent"], {**environ, **own}, folder / "team", width=WIDTH) as terminal:
        terminal.say("What does Lin Mo know?", "52 out")
        terminal.say("Clean up, then go on with the story", "[y/N]")
        terminal.send(ENTER)
        terminal.wait("72 out")
        terminal.say("/context", "nothing was left out")
        terminal.ready()
        terminal.send(CTRL_D)
        terminal.end()
        return terminal.raw.decode().replace(f"{folder}/team", "~/team")


def style_of(char: pyte.screens.Char) -> Style:
    colour = NAMES.get(char.fg, char.fg.replace("bright", "bright_"))
    colour = f"#{colour}" if len(colour) == 6 and all(c in "0123456789abcdef" for c in colour) else colour
    return Style(color=colour, bold=char.bold, italic=char.italics, underline=char.underscore)


def text_of(raw: str) -> Text:
    screen = Dim(WIDTH, 40, history=1_000)
    pyte.Stream(screen).feed(raw)
    rows = [*screen.history.top, *(screen.buffer[number] for number in range(screen.lines))]
    text = Text()
    for row in rows:
        line = Text()
        for style, run in groupby((row[column] for column in range(WIDTH)), style_of):
            line.append("".join(char.data for char in run), style)
        line.rstrip()
        text.append_text(line).append("\n")
    text.rstrip()
    return text.append("\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        draw(sys.argv[1], text_of(typed(Path(folder))), "lamina chat")
