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
        self._openings = (HINT, HINT_END, *self._fences)
        self._typed = typed
        self._held = ""
        self._inside = False
        self._passed = 0
        """Hints of the user's own that were let through and are still open."""

    def feed(self, text: str) -> str:
        self._held += text
        shown: list[str] = []
        while self._held and self._step(shown):
            pass
        return "".join(shown)

    def close(self) -> str:
        """The answer is over: what was held back because it might have become a tag is text after all."""
        rest, self._held = self._held, ""
        if self._inside or rest.startswith(self._openings):
            return ""
        return rest

    def _step(self, shown: list[str]) -> bool:
        """One move; False when more text is needed."""
        if self._inside:
            return self._leave()
        at = self._held.find("<")
        if at:
            shown.append(self._held if at < 0 else self._held[:at])
            self._held = "" if at < 0 else self._held[at:]
            return at > 0
        if not self._held.startswith(self._openings):
            if any(opening.startswith(self._held) for opening in self._openings):
                return False
            shown.append("<")
            self._held = self._held[1:]
            return True
        return self._tag(shown)

    def _leave(self) -> bool:
        end = self._held.find(HINT_END)
        if end < 0:
            self._held = self._held[-len(HINT_END) + 1 :]
            return False
        self._held, self._inside = self._held[end + len(HINT_END) :], False
        return True

    def _tag(self, shown: list[str]) -> bool:
        """Something of ours stands in front, as far as it has come."""
        end = self._held.find(">")
        if end < 0 and len(self._held) <= LONGEST:
            return False
        tag, self._held = (self._held[: end + 1], self._held[end + 1 :]) if end >= 0 else (self._held, "")
        if tag.startswith(self._fences):
            return True
        if tag == HINT_END:
            if self._passed:
                self._passed -= 1
                shown.append(tag)
        elif tag.startswith(HINT) and re.match(rf"{HINT}[\s/>]", tag) is None and end >= 0:
            shown.append(tag)  # <system_hints> is another word
        elif end >= 0 and self._typed(tag):
            self._passed += 1
            shown.append(tag)
        else:
            self._inside = not tag.endswith("/>")
        return True
