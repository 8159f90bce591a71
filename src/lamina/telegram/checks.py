"""What can be said of the bot's settings without Telegram's library, which takes seconds to load.

Slips are told at once; and from the first moment on no log line holds the token.
"""

import logging
import traceback
from dataclasses import dataclass
from urllib.parse import urlsplit

from lamina.errors import InputError, SettingsError, format_value
from lamina.types import Key


def check_address(address: str) -> str:
    """The path at which Telegram will call."""
    try:
        parts = urlsplit(address)
        good = parts.scheme == "https" and bool(parts.hostname) and not (parts.query or parts.fragment)
    except ValueError:
        good, parts = False, urlsplit("")
    if not good:
        raise InputError("telegram.bad_webhook", value=format_value(address))
    return parts.path or "/"


def check_listen(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 <= int(port) < 65_536:
        raise InputError("telegram.bad_listen", value=format_value(listen))
    return host.strip("[]"), int(port)


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where Telegram calls, and where we listen."""

    address: str
    listen: str

    def __post_init__(self) -> None:
        check_address(self.address)
        check_listen(self.listen)


def check_token(token: Key | None, allow: tuple[int, ...]) -> Key:
    """The token, once it is known that somebody may talk to the bot."""
    if token is None:
        raise SettingsError("telegram.no_token")
    if not allow:
        raise SettingsError("telegram.nobody_allowed")
    return token


def keep_out_of_logs(secret: Key) -> None:
    """From now on no log line of this process, whoever writes it, holds the secret (G7)."""
    make = logging.getLogRecordFactory()

    def masked(*args: object, **more: object) -> logging.LogRecord:
        record = make(*args, **more)
        hidden = secret.reveal()
        try:
            message = record.getMessage()
        except (TypeError, ValueError, LookupError):  # a slip of whoever logs: logging itself will say so
            message = ""
        if hidden in message:
            record.msg, record.args = message.replace(hidden, "…"), ()
        if record.exc_info and record.exc_info[0]:
            record.exc_text = "".join(traceback.format_exception(*record.exc_info)).rstrip().replace(hidden, "…")
            record.exc_info = None
        return record

    logging.setLogRecordFactory(masked)
