"""Where a web address leads: whether it may be fetched at all, and whether an IP address is one of the open internet.

Pure: no name is resolved here. A host leaves this module in one spelling, so that nothing reads it differently later.
"""

import base64
import re
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import quote, unquote, unquote_plus, urlsplit

from lamina.errors import ToolError, format_value
from lamina.types import Key

Address = IPv4Address | IPv6Address
PORTS = {"http": 80, "https": 443}
MAX_URL_CHARS = 4_000
_NOT_OPEN_4 = [
    IPv4Network(net)
    for net in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24",
        "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
        "168.63.129.16/32",  # a cloud's own services, at an address that looks like any other
    )
]  # fmt: skip
_OPEN_6 = IPv6Network("2000::/3")
_NOT_OPEN_6 = [
    IPv6Network(net)
    for net in (
        "2001::/23",  # Teredo, ORCHID, benchmarks and other special purposes
        "2001:db8::/32",
        "2002::/16",  # 6to4 carries an IPv4 address
        "2620:4f:8000::/48",
        "3fff::/20",
    )
]
_NAT64 = IPv6Network("64:ff9b::/96")
_HOST = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?)+"
)
_LOCAL = (
    "localhost",
    "local",
    "localdomain",
    "internal",
    "intranet",
    "lan",
    "home",
    "corp",
    "home.arpa",
    "private",
    "test",
)
_SHORTEST_SECRET = 6
_CODES: tuple[tuple[str, Callable[[str], bytes]], ...] = (
    (r"(?:[0-9A-Fa-f]{2})+", lambda text: bytes.fromhex(text.rstrip("="))),
    (r"[\w+/-]{2,}", lambda text: base64.b64decode(text.rstrip("=").translate({45: 43, 95: 47}) + "==")),
    (r"[A-Za-z2-7]{2,}", lambda text: base64.b32decode(text.upper())),
)
"""What a piece may be written in, and how it is read."""


@dataclass(frozen=True, slots=True)
class Target:
    """A web address in its one spelling. `address` is there when the host is an IP address."""

    scheme: str
    host: str
    port: int
    path: str
    address: Address | None = None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}"


def is_global(address: Address) -> bool:
    """Whether an address is one of the open internet: no loopback, private, link-local, shared or reserved one, no
    multicast, and none that carries such an address inside."""
    if isinstance(address, IPv4Address):
        return address.is_global and not any(address in net for net in _NOT_OPEN_4)
    if address.scope_id:
        return False
    if address.ipv4_mapped is not None:
        return is_global(address.ipv4_mapped)
    if address in _NAT64:
        return is_global(IPv4Address(int(address) & 0xFFFFFFFF))
    return address in _OPEN_6 and address.is_global and not any(address in net for net in _NOT_OPEN_6)


def read_target(url: str) -> Target:
    """What an address says, in one spelling; raises ToolError for what is never fetched."""
    if len(url) > MAX_URL_CHARS:
        raise ToolError("web.url_too_long", size=len(url), limit=MAX_URL_CHARS)
    if any(
        char <= " " or char in '\\<>"`{}|^\x7f' or unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zs")
        for char in url
    ):
        raise ToolError("web.bad_character", url=format_value(url))
    try:
        parts = urlsplit(url)
        host, port, user = parts.hostname or "", parts.port, parts.username is not None or "@" in parts.netloc
    except ValueError:
        raise ToolError("web.not_a_url", url=format_value(url)) from None
    if parts.scheme not in PORTS:
        raise ToolError("web.bad_scheme", url=format_value(url))
    if user:
        raise ToolError("web.user_name", scheme=parts.scheme, host=host)
    if port == 0:
        raise ToolError("web.port_zero", url=format_value(url))
    host, address = _read_host(host, bracketed="[" in parts.netloc)
    query = "?" + quote(parts.query, safe="/%:@!$&'()*+,;=~-._?[]") if parts.query else ""
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._") + query
    return Target(parts.scheme, host, port or PORTS[parts.scheme], path, address)


def _read_host(host: str, bracketed: bool) -> tuple[str, Address | None]:
    """The host in plain ASCII, and its address when it is one."""
    if bracketed:
        try:
            return (six := IPv6Address(host)).compressed, six
        except ValueError:
            raise ToolError("web.not_ipv6", host=host[:60]) from None
    plain = unicodedata.normalize("NFKC", host).lower().replace("。", ".").removesuffix(".")
    try:
        plain = plain.encode("idna").decode("ascii") if not plain.isascii() else plain
    except UnicodeError:
        raise ToolError("web.not_a_host", host=format_value(host)) from None
    last = plain.rpartition(".")[2]
    if re.fullmatch(r"[0-9]+|0x[0-9a-f]*", last):  # then every program that connects takes it for a number
        try:
            address = IPv4Address(plain)
        except ValueError:
            raise ToolError("web.unusual_address", host=format_value(host)) from None
        return plain, address
    if any(plain == name or plain.endswith(f".{name}") for name in _LOCAL) or "." not in plain:
        raise ToolError("web.local_name", host=format_value(host))
    if not _HOST.fullmatch(plain):
        raise ToolError("web.not_a_host", host=format_value(host))
    return plain, None


def carries_secret(url: str, secrets: Sequence[str]) -> bool:
    """Whether an address holds a secret: forwards or backwards, in any case, with other characters between, encoded, or
    in pieces that follow each other in the path or in the parameters."""
    looks = {url}
    for _ in range(3):
        looks |= {decoded for look in looks for decoded in (unquote(look), unquote_plus(look))}
    looks |= _join_pieces(url)
    lower = {look.lower() for look in looks}
    lower |= {look[::-1] for look in lower}
    squeezed = {re.sub(r"[^a-z0-9]", "", look) for look in lower}
    for each in secrets:
        secret = each.reveal() if isinstance(each, Key) else each
        if len(secret) < _SHORTEST_SECRET:
            continue
        forms = {secret.lower(), *_encode_secret(secret.encode("utf-8", "surrogatepass"))}
        forms |= _encode_secret(secret[::-1].encode("utf-8", "surrogatepass"))
        short = {re.sub(r"[^a-z0-9]", "", form) for form in forms}
        if any(form in look for form in forms for look in lower):
            return True
        if any(form in look for form in short if len(form) >= _SHORTEST_SECRET for look in squeezed):
            return True
    return False


def _join_pieces(url: str) -> set[str]:
    """The pieces of an address one after the other: of the host, of the path, the names and the values of parameters,
    and all of these; as they are, and each decoded once."""
    rest = url.partition("://")[2]
    host, _, path = re.split(r"[?#]", rest, maxsplit=1)[0].partition("/")
    pairs = [pair.partition("=") for pair in re.split(r"[?&;#]", rest)[1:]]
    names, values = [name for name, _, _ in pairs], [value for _, _, value in pairs]
    found: set[str] = set()
    for raw in (host.split("."), path.split("/"), names, values, [*host.split("."), *path.split("/"), *values]):
        pieces = [unquote_plus(piece) for piece in raw]
        opened = [_decode_piece(piece) for piece in pieces]
        found |= {"".join(pieces), *(text for each in opened for text in each)}
        found |= {"".join(each[kind] for each in opened) for kind in range(len(_CODES))}
    return found


def _decode_piece(piece: str) -> list[str]:
    """A piece decoded from each of hex, base64 and base32; as it is where it is none."""
    found: list[str] = []
    for alphabet, decode in _CODES:
        bare = piece.rstrip("=")
        text = piece
        if re.fullmatch(alphabet, bare):
            with suppress(ValueError):  # binascii's error is one; it only looked like this code
                text = decode(bare + "=" * (-len(bare) % 8)).decode("utf-8", "replace")
        found.append(text)
    return found


def _encode_secret(secret: bytes) -> set[str]:
    """A secret in hex, base32 and base64, in lower case; at every place where base64 may begin inside a longer text."""
    forms = {secret.hex(), base64.b32encode(secret).decode().rstrip("=").lower()}
    for before in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            text = encode(b"\0" * before + secret).decode().rstrip("=")
            end = (
                len(text) if (before + len(secret)) % 3 == 0 else len(text) - 1
            )  # the last character depends on what follows
            forms.add(text[(0, 2, 3)[before] : end].lower())
    return {form for form in forms if len(form) >= _SHORTEST_SECRET}


def read_address(text: str) -> Address:
    """An address as a resolver or a socket gives it."""
    return ip_address(text)
