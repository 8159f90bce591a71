"""Checks of the bot's settings that need no Telegram library, which takes seconds to load.

Mistakes are reported at once, and from the first moment on no log line holds the token.
"""

import logging
import traceback
from dataclasses import dataclass
from urllib.parse import urlsplit

from lamina.errors import InputError, SettingsError, format_value
from lamina.types import Key


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where Telegram calls, and where we listen. Both are checked when it is made."""

    address: str
    listen: str

    def __post_init__(self) -> None:
        _ = self.path, self.host_and_port

    @property
    def path(self) -> str:
        """The path at which Telegram will call."""
        try:
            parts = urlsplit(self.address)
            valid = parts.scheme == "https" and parts.hostname and not (parts.query or parts.fragment)
        except ValueError:
            valid, parts = False, urlsplit("")
        if not valid:
            raise InputError("telegram.bad_webhook", value=format_value(self.address))
        return parts.path or "/"

    @property
    def host_and_port(self) -> tuple[str, int]:
        host, _, port = self.listen.rpartition(":")
        if not host or not (port.isascii() and port.isdigit()) or not 0 <= int(port) < 65_536:
            raise InputError("telegram.bad_listen", value=format_value(self.listen))
        return host.strip("[]"), int(port)


def check_token(token: Key | None, allow: tuple[int, ...]) -> Key:
    """The token, once it is known that somebody may talk to the bot."""
    if token is None:
        raise SettingsError("telegram.no_token")
    if not allow:
        raise SettingsError("telegram.nobody_allowed")
    return token


def keep_out_of_logs(secret: Key) -> None:
    """From now on no log line of this process, whichever library writes it, holds the secret."""
    make_record = logging.getLogRecordFactory()

    def make_masked(*args: object, **more: object) -> logging.LogRecord:
        record = make_record(*args, **more)
        hidden = secret.reveal()
        try:
            message = record.getMessage()
        except (TypeError, ValueError, LookupError):  # the arguments do not fit: logging itself will report it
            message = ""
        if hidden in message:
            record.msg, record.args = message.replace(hidden, "…"), ()
        if record.exc_info and record.exc_info[0]:
            record.exc_text = "".join(traceback.format_exception(*record.exc_info)).rstrip().replace(hidden, "…")
            record.exc_info = None
        return record

    logging.setLogRecordFactory(make_masked)
