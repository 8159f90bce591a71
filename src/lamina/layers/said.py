"""What the user of the running turn has said. The checks of tools may ask for it; it is set for one turn's calls."""

import re
from contextvars import ContextVar

words: ContextVar[str] = ContextVar("words", default="")


def names_host(host: str) -> bool:
    """Did the user name this host himself, in this session? Then fetching from it needs no further yes."""
    bare = host.casefold().removeprefix("www.").rstrip(".")
    if not bare:
        return False
    return re.search(rf"(?<![\w.@-])(?:www\.)?{re.escape(bare)}(?![\w-]|\.\w)", words.get().casefold()) is not None
