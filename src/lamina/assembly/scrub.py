"""What never leaves: hints and fences of lamina's own that a model repeats in its answer.

A filter over a stream of text: however the text is cut into pieces, what comes out is the same. A hint that the user
typed himself is his, and passes. Pure: text in, text out.
"""

import re
from collections.abc import Callable, Iterator

from lamina.assembly.fences import check_mark

HINT, HINT_END = "<system_hint", "</system_hint>"
MAX_TAG_CHARACTERS = 2_000
"""Characters that a tag may have; one without an end by then counts as one, and everything behind it as its inside."""
_HINT = re.compile(HINT, re.IGNORECASE)
_MAY_OPEN = re.compile("<(?:/?(?:[sdl]|$)|$)", re.IGNORECASE)
"""What may be the beginning of a tag of ours; `$` because the rest of it may come later."""
_OTHER_WORD = re.compile("</?system_hint[a-z0-9_-]")


def hints_in(text: str) -> Iterator[str]:
    """The opening tags of hints that stand in a text."""
    for found in _HINT.finditer(text) if "<" in text else ():
        end = text.find(">", found.end(), found.start() + MAX_TAG_CHARACTERS)
        if end >= 0 and "<" not in text[found.end() : end]:
            yield text[found.start() : end + 1]


class Scrub:
    """`feed` what comes, show what it gives back, and `close` at the end. `typed` says whether the user wrote a tag."""

    def __init__(self, mark: str, typed: Callable[[str], bool] = lambda tag: False) -> None:
        self._fences = tuple(f"{begin}{kind}-{check_mark(mark)}" for kind in ("data", "layer") for begin in ("<", "</"))
        self._openings = (HINT, HINT_END[:-1], *self._fences)
        self._opening_size = max(map(len, self._openings)) + 1
        self._typed = typed
        self._held = self._shown = ""
        """What may become a tag, and the end of what was let through."""
        self._depth = 0
        """Hints that are open and dropped."""
        self._passed = 0
        """Hints of the user's own that were let through and are still open."""

    def feed(self, text: str) -> str:
        held, at, begin, out = self._held + text, 0, 0, list[str]()
        while found := _MAY_OPEN.search(held, at):
            at = found.start()
            low = held[at : at + self._opening_size].lower()
            if not low.startswith(self._openings):
                if any(opening.startswith(low) for opening in self._openings):
                    break
                at += 1
                continue
            if _OTHER_WORD.match(low):  # <system_hints> is another word
                at += 1
                continue
            end = held.find(">", at, at + MAX_TAG_CHARACTERS)
            if end < 0 and len(held) - at < MAX_TAG_CHARACTERS:
                break
            self._let(held[begin:at], out)
            begin = end + 1 if end >= 0 else at + MAX_TAG_CHARACTERS
            self._tag(held[at:begin], end >= 0, out)
            at = begin
        else:
            at = len(held)
        self._let(held[begin:at], out)
        self._held = held[at:]
        return "".join(out)

    def close(self) -> str:
        """The answer is over: what was held back because it might have become a tag is text after all."""
        rest, self._held = self._held, ""
        return "" if self._depth or rest.lower().startswith(self._openings) else rest

    def _let(self, text: str, out: list[str]) -> None:
        """Text that passes, unless a hint that is dropped is open around it."""
        if not self._depth and text:
            out.append(text)
            self._shown = (self._shown + text[-MAX_TAG_CHARACTERS:])[-MAX_TAG_CHARACTERS:]

    def _tag(self, tag: str, ended: bool, out: list[str]) -> None:
        low = tag.lower()
        if low.startswith(self._fences):
            return self._drop(out)
        if low.startswith("</"):
            if self._depth:
                self._depth -= 1
                return None if self._depth else self._drop(out)
            if self._passed:
                self._passed -= 1
                return self._let(tag, out)
            return self._drop(out)
        if ended and not self._depth and self._typed(tag):
            self._passed += 1
            return self._let(tag, out)
        self._depth += not tag.endswith("/>")
        return self._drop(out)

    def _drop(self, out: list[str]) -> None:
        """Something is gone here; what stands on both sides of it must not become a tag by that."""
        begin = self._shown.rfind("<")
        if not self._depth and begin >= 0 and any(o.startswith(self._shown[begin:].lower()) for o in self._openings):
            self._let(" ", out)
