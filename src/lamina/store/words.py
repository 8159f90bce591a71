"""Text cut into the words that message search keeps: folded words, and single and paired CJK characters.

Pure. The same cut serves both databases, so that neither's own idea of a word matters.
"""

import re
import unicodedata

MAX_TEXT = 20_000
"""Characters of a message that can be searched for; what stands behind them is stored, not indexed."""
MAX_WORD = 64

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f"
_RUN = re.compile(rf"([{_CJK}]+)|((?:(?![{_CJK}])\w)+)")


def fold(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def words(text: str) -> list[str]:
    """The distinct words of a text, sorted: what an index keeps."""
    found: set[str] = set()
    for run in _RUN.finditer(fold(text[:MAX_TEXT])):
        cjk, word = run.groups()
        if cjk:
            found.update(cjk)
            found.update(cjk[at : at + 2] for at in range(len(cjk) - 1))
        else:
            found.add(word[:MAX_WORD])
    return sorted(found)


def query_words(text: str) -> list[str]:
    """The words that a message must all have; pairs of CJK characters where there are two, in the order written."""
    found: dict[str, None] = {}
    for run in _RUN.finditer(fold(text[:MAX_TEXT])):
        cjk, word = run.groups()
        if cjk and len(cjk) > 1:
            found |= dict.fromkeys(cjk[at : at + 2] for at in range(len(cjk) - 1))
        else:
            found[cjk or word[:MAX_WORD]] = None
    return list(found)


def snippet(text: str, query: str, width: int = 120) -> str:
    """The piece of a text around the first of the words, on one line."""
    line = " ".join(text.split())
    folded = line.casefold()
    places = [at for word in query_words(query) if 0 <= (at := folded.find(word)) < len(line)]
    begin = max(0, min(places, default=0) - width // 3)
    piece = line[begin : begin + width]
    return ("…" if begin else "") + piece + ("…" if begin + width < len(line) else "")
