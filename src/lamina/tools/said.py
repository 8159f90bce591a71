"""What the user of the running turn has said. The checks of tools may ask for it; it is set for one turn's calls."""

import re
from contextvars import ContextVar

words: ContextVar[str] = ContextVar("words", default="")


def names_host(host: str) -> bool:
    """Did the user name this host himself, in this session? Then fetching from it needs no further yes."""
    bare = host.casefold().removeprefix("www.").rstrip(".")
    if not bare:
        return False
    # only as an address: `main.py` and `README.md` name files, not hosts
    return (
        re.search(rf"https?://(?:www\.)?{re.escape(bare)}(?![\w.@:-]*@|[\w-]|\.\w)", words.get().casefold()) is not None
    )
