"""What never leaves: hints and fences of lamina's own that a model repeats in its answer.

A filter over a stream of text: however the text is cut into pieces, what comes out is the same. A hint that the user
typed himself is his, and passes. Pure: text in, text out.
"""

import re
from collections.abc import Callable

from lamina.assembly.fences import check_mark

HINT, HINT_END = "<system_hint", "</system_hint>"
LONGEST = 2_000
"""Characters that a tag may have; one without an end by then counts as one, and everything behind it as its inside."""


class Scrub:
    """`feed` what comes, show what it gives back, and `close` at the end. `typed` says whether the user wrote a tag."""

    def __init__(self, mark: str, typed: Callable[[str], bool] = lambda tag: False) -> None:
        self._fences = tuple(f"{begin}{kind}-{check_mark(mark)}" for kind in ("data", "layer") for begin in ("<", "</"))
        self._openings = (HINT, HINT_END[:-1], *self._fences)
        self._typed = typed
        self._held = self._shown = ""
        """What may become a tag, and the end of what was let through."""
        self._depth = 0
        """Hints that are open and dropped."""
        self._passed = 0
        """Hints of the user's own that were let through and are still open."""

    def feed(self, text: str) -> str:
        self._held += text
        out: list[str] = []
        while self._held and self._step(out):
            pass
        return "".join(out)

    def close(self) -> str:
        """The answer is over: what was held back because it might have become a tag is text after all."""
        rest, self._held = self._held, ""
        return "" if self._depth or rest.lower().startswith(self._openings) else rest

    def _step(self, out: list[str]) -> bool:
        """One move; False when more text is needed."""
        at = self._held.find("<")
        if at:
            self._let(self._held if at < 0 else self._held[:at], out)
            self._held = "" if at < 0 else self._held[at:]
            return at > 0
        low = self._held.lower()
        if not low.startswith(self._openings):
            if any(opening.startswith(low) for opening in self._openings):
                return False
            self._let("<", out)
            self._held = self._held[1:]
            return True
        if re.match(r"</?system_hint[a-z0-9_-]", low):  # <system_hints> is another word
            self._let("<", out)
            self._held = self._held[1:]
            return True
        end = low.find(">")
        if end < 0 and len(low) <= LONGEST:
            return False
        tag, self._held = (self._held[: end + 1], self._held[end + 1 :]) if end >= 0 else (self._held, "")
        self._tag(tag, end >= 0, out)
        return True

    def _let(self, text: str, out: list[str]) -> None:
        """Text that passes, unless a hint that is dropped is open around it."""
        if not self._depth and text:
            out.append(text)
            self._shown = (self._shown + text)[-LONGEST:]

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
