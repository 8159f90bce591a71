"""How a gateway is set up. Nothing here reads a file or the environment: the caller passes everything in."""

from dataclasses import dataclass
from typing import Literal

from lamina.errors import SettingsError, format_value

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
LogLevel = Literal["off", "info", "debug"]


@dataclass(frozen=True, slots=True)
class Options:
    address: str = "127.0.0.1"
    """Where the gateway listens, without the port."""
    port: int = 8765
    host_names: tuple[str, ...] = ()
    """Names in `Host` that are ours beside those of this machine and the address it listens on."""
    origins: tuple[str, ...] = ()
    """Pages of others that may call the gateway with a key of their own."""
    https: bool = False
    """Whether people come by https, through a proxy: then the cookie is only sent that way."""
    body_limit: int = 20_000_000
    open_body_limit: int = 64_000
    """The same where no credential is needed."""
    bodies_limit: int = 400_000_000
    """Bytes of all bodies that are being received at one time."""
    header_limit: int = 32_000
    header_fields: int = 100
    receive_seconds: float = 15.0
    """For a request to come in, headers and body; and for a client to take what it was sent."""
    idle_seconds: float = 15.0
    """How long a connection without a request stays open."""
    connections: int = 1_000
    address_connections: int = 500
    """Of these, from one address. Where there are too many, the one that was idle longest makes room."""
    streams: int = 200
    """Replies in pieces that are open at one time for one key."""
    turns: int = 128
    """Turns of one user that run at one time, begun here."""
    replies_limit: int = 400_000_000
    """Bytes of all long replies that are being sent at one time."""
    rate_limit: int = 0
    """Requests a minute of a key that names no limit of its own; 0 for none."""
    token_limit: int = 0
    """Tokens a day of a key that names no limit of its own; 0 for none."""
    guesses: int = 30
    """Wrong credentials a minute from one address; then new ones from there are not looked at."""
    log: LogLevel = "info"


def listen_place(text: str) -> tuple[str, int]:
    """`127.0.0.1:8765`, `[::1]:8765`, `localhost:0` as an address and a port; port 0 takes a free one."""
    address, sign, port = text.rpartition(":")
    if not sign or not address or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise SettingsError("gateway.bad_listen", hint="gateway.listen_form", value=format_value(text))
    if address.startswith("[") != address.endswith("]") or (":" in address and not address.startswith("[")):
        raise SettingsError("gateway.bad_listen", hint="gateway.listen_form_ipv6", value=format_value(text))
    return address, int(port)


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach the address. A name other than localhost may lead anywhere."""
    bare = address.strip("[]").lower()
    return bare in ("localhost", "::1") or _is_127(bare)


def _is_127(address: str) -> bool:
    parts = address.split(".")
    return len(parts) == 4 and parts[0] == "127" and all(p.isascii() and p.isdigit() and int(p) < 256 for p in parts)
