"""T5: web_fetch reaches only the open internet: hostile addresses, redirects, names that change their answer, bombs.

Servers are real and on this machine. What counts as the open internet is a switch of the test, strict by default.
"""

import asyncio
import base64
import gzip
import json
import socket
from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.errors import ToolError
from lamina.tools.registry import Tool, ToolRegistry
from lamina.tools.web import MAX_REDIRECTS, Address, Web, carries_secret, is_global, read_target, web_tools
from lamina.types import Decision, Key, ToolCallEvent
from tests.tools.site import HERE, always_here, answer, only_here, site, to, web

NOT_OPEN = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.100.100.200",
    "100.127.255.255",
    "127.0.0.1",
    "127.255.255.254",
    "169.254.169.254",
    "169.254.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.0.1",
    "192.168.255.255",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "168.63.129.16",
    "::",
    "::1",
    "::7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:0:7f00:1::",
    "2001:2::1",
    "2001:10::1",
    "2001:20::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:a00:1::",
    "2002:c0a8:1::",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
    "192.175.48.1",
]

OPEN = (
    "1.1.1.1 8.8.8.8 93.184.216.34 172.32.0.1 100.128.0.1 "
    "192.0.1.1 2606:4700::1111 2a00:1450:4001::1 ::ffff:8.8.8.8 64:ff9b::808:808"
)

HOSTILE = [
    line
    for line in r"""
http://127.0.0.1/
http://127.1/
http://127.0.1/
http://2130706433/
http://0x7f000001/
http://0x7f.0.0.1/
http://0x7f.1/
http://0177.0.0.1/
http://017700000001/
http://127.0.0.01/
http://127.0.0.1./
http://127.0.0.1.:80/
http://0/
http://0.0.0.0/
http://00000000000000000000000177.1/
http://0x/
http://1/
http://256.1.1.1/
http://999999999999/
http://10.0.0.1/
http://192.168.1.1/admin
http://169.254.169.254/latest/meta-data/
http://[::1]/
http://[::]/
http://[0:0:0:0:0:0:0:1]/
http://[::ffff:127.0.0.1]/
http://[::ffff:7f00:1]/
http://[::127.0.0.1]/
http://[64:ff9b::7f00:1]/
http://[2002:7f00:1::]/
http://[2001:0:7f00:1::]/
http://[fe80::1]/
http://[fe80::1%25eth0]/
http://[fd00:ec2::254]/
http://[v1.x]/
http://[::1
http://localhost/
http://LOCALHOST/
http://localhost./
http://a.localhost/
http://printer.local/
http://metadata.google.internal/
http://router.lan/
http://intranet/
http://db.corp/
http://x.home.arpa/
http://127。0。0。1/
http://①②⑦.⓪.⓪.①/
http://１２７.0.0.1/
http://ⓛocalhost/
http://localhost%00.example.com/
http://127.0.0.1%2f.example.com/
http://example.com%40127.0.0.1/
http://user@example.com/
http://user:pass@example.com/
http://example.com@127.0.0.1/
http://@example.com/
http://:@example.com/
http://example.com:0/
http://example.com:99999/
http://example.com:abc/
http://example.com:80:80/
http://exa mple.com/
http://example.com\@127.0.0.1/
http:\\127.0.0.1\
http://
http:///path
http:127.0.0.1
//127.0.0.1/
127.0.0.1
example.com
ftp://example.com/
file:///etc/passwd
file://localhost/etc/passwd
gopher://127.0.0.1:6379/_x
data:text/html,x
javascript:alert(1)
dict://127.0.0.1:11211/
ws://example.com/
unix:/var/run/docker.sock
about:blank
view-source:http://127.0.0.1/
jar:http://127.0.0.1!/
http://-example.com/
http://exa_mple..com/
http://.example.com/
http://example.com../
""".splitlines()
    if line.strip()
]
HOSTILE.extend(
    [
        "http://example.com/\nx",
        "http://exam\tple.com/",
        "http://\u200bexample.com/",
        "http://example.com/" + "x" * 5_000,
        "",
    ]
)


def test_T5_addresses_that_are_not_of_the_open_internet_are_known_as_such() -> None:
    assert len(NOT_OPEN) >= 60
    assert [text for text in NOT_OPEN if is_global(ip_address(text))] == []
    assert [text for text in OPEN.split() if not is_global(ip_address(text))] == []


@given(st.ip_addresses())
def test_T5_an_address_that_the_standard_library_calls_private_is_never_open(address: Address) -> None:
    if not address.is_global or address.is_multicast or address.is_reserved:
        carries_another = getattr(address, "ipv4_mapped", None) or str(address).startswith("64:ff9b::")
        assert carries_another or not is_global(address)


def test_T5_every_hostile_url_is_blocked_before_anything_is_asked() -> None:
    assert len(HOSTILE) >= 60
    strict = Web()
    assert [url for url in HOSTILE if strict.check({"url": url}).verdict != "block"] == []


async def test_T5_every_hostile_url_is_refused_by_the_fetch_itself() -> None:
    async def never(host: str, port: int) -> Sequence[str]:
        raise AssertionError(f"{host} was looked up")

    strict = Web(resolver=never)
    for url in HOSTILE:
        with pytest.raises(ToolError):
            await strict.web_fetch(url)


@pytest.mark.parametrize("address", NOT_OPEN)
async def test_T5_a_name_that_leads_to_a_private_address_is_refused(address: str) -> None:
    async def leads_there(_host: str, _port: int) -> Sequence[str]:
        return ["93.184.216.34", address]

    with pytest.raises(ToolError, match="not on the public internet"):
        await Web(resolver=leads_there).web_fetch("http://rebind.example/")


# Redirects

PRIVATE = ["http://127.0.0.2/", "http://10.0.0.1/", "http://[::1]/", "http://localhost/", "http://169.254.169.254/",
           "//127.0.0.2/x", "http://2130706434/", "file:///etc/passwd", "http://u:p@site.example/", "http://0/",
           "http://[::ffff:7f00:2]/"]  # fmt: skip


@pytest.mark.parametrize("location", PRIVATE)
async def test_T5_a_redirect_to_a_private_address_is_refused(location: str) -> None:
    async with site({"/": to("/2"), "/2": to("/3"), "/3": to(location)}) as it:
        with pytest.raises(ToolError):
            await web().web_fetch(it.url("/"))
        assert len(it.asked) == 3


async def test_T5_a_redirect_to_a_name_with_a_private_address_is_refused() -> None:
    async def looked_up(host: str, _port: int) -> Sequence[str]:
        return ["127.0.0.1"] if host == "site.example" else ["127.0.0.2"]

    async with site({"/": to("http://www.site.example/")}) as it:
        with pytest.raises(ToolError, match=r"www\.site\.example is not on the public internet"):
            await Web(allowed=only_here, resolver=looked_up).web_fetch(it.url("/"))


async def test_T5_a_redirect_to_another_host_is_told_and_not_followed() -> None:
    seen: list[str] = []

    async def looked_up(host: str, _port: int) -> Sequence[str]:
        seen.append(host)
        return ["127.0.0.1"]

    async with site({"/": to("http://evil.example/leak?d=DATA"), "/sub": to("http://a.site.example/")}) as it:
        one = Web(allowed=only_here, resolver=looked_up)
        text = await one.web_fetch(it.url("/"))
        assert "was not followed" in text
        assert "http://evil.example/leak?d=DATA" in text
        assert "a.site.example" in await one.web_fetch(it.url("/sub"))
        assert len(it.asked) == 2
    assert set(seen) == {"site.example"}
    assert one.check({"url": "http://evil.example/leak?d=DATA"}).verdict == "confirm"


async def test_T5_a_redirect_that_adds_or_leaves_out_www_is_followed() -> None:
    pages = {"/": answer(b"fine")}
    async with site(pages) as it:
        pages["/go"] = to(it.url("/", "www.site.example"))
        pages["/back"] = to(it.url("/"))
        assert (await web().web_fetch(it.url("/go"))).endswith("fine")
        assert (await web().web_fetch(it.url("/back", "www.site.example"))).endswith("fine")


async def test_T5_redirects_end_after_five_and_never_lose_encryption_or_change_to_odd_ports() -> None:
    pages = {f"/{n}": to(f"/{n + 1}") for n in range(9)} | {"/ok": to("/7"), "/8": answer(b"end")}
    async with site(pages) as it:
        assert (await web().web_fetch(it.url("/4"))).endswith("end")
        with pytest.raises(ToolError, match="redirects more than 5 times"):
            await web().web_fetch(it.url("/0"))
        assert len(it.asked) == 5 + MAX_REDIRECTS + 1
    one = web()
    with pytest.raises(ToolError, match="from https to http"):
        one._check_redirect(read_target("https://a.example/"), "http://a.example/", {80, 443})  # pyright: ignore[reportPrivateUsage] -- no server here has a certificate
    with pytest.raises(ToolError, match="port 6379"):
        one._check_redirect(read_target("https://a.example/"), "https://a.example:6379/", {80, 443})  # pyright: ignore[reportPrivateUsage] -- as above


# Names that change their answer


class Changing:
    """A resolver whose first answer is open and whose second is the private one."""

    def __init__(self, *answers: str) -> None:
        self.answers, self.asked = list(answers), 0

    async def __call__(self, _host: str, _port: int) -> Sequence[str]:
        self.asked += 1
        return [self.answers[min(self.asked, len(self.answers)) - 1]]


async def test_T5_a_name_is_looked_up_once_and_that_very_address_is_connected_to() -> None:
    changing = Changing("127.0.0.1", "127.0.0.2")
    async with site({"/": answer(b"fine")}) as it:
        text = await Web(allowed=only_here, resolver=changing).web_fetch(it.url("/"))
    assert text.endswith("fine")
    assert changing.asked == 1


async def test_T5_a_name_that_changes_between_two_redirects_is_checked_again() -> None:
    changing = Changing("127.0.0.1", "127.0.0.2")
    async with site({"/": to("/b"), "/b": answer(b"the secret")}) as it:
        with pytest.raises(ToolError, match="not on the public internet"):
            await Web(allowed=only_here, resolver=changing).web_fetch(it.url("/"))
        assert len(it.asked) == 1


async def test_T5_the_other_end_of_the_socket_is_looked_at_before_anything_is_sent() -> None:
    """Whatever happened on the way: here the policy itself changes its mind after the name was checked."""
    answers = iter([True, False])

    def once(_address: Address) -> bool:
        return next(answers)

    async with site({"/": answer(b"the secret")}) as it:
        with pytest.raises(ToolError, match="not on the public internet"):
            await Web(allowed=once, resolver=always_here).web_fetch(it.url("/"))
        assert it.asked == []


# Planted bugs: a fetch that checks names alone, and one that does not look at redirects


async def plain_get(host: str, port: int, path: str) -> tuple[int, str, str]:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    location = next((line[10:] for line in head.split("\r\n") if line.startswith("Location: ")), "")
    return int(head.split(" ")[1]), location, body


async def checks_names_only(url: str, resolver: Changing) -> str:
    """The planted bug: the name is checked, then looked up again to connect."""
    target = read_target(url)
    if not all(only_here(ip_address(each)) for each in await resolver(target.host, target.port)):
        raise ToolError("private")
    again = await resolver(target.host, target.port)
    return (await plain_get(again[0], target.port, target.path))[2]


async def follows_blindly(url: str) -> str:
    """The planted bug: where a page leads is not checked."""
    target = read_target(url)
    host = "127.0.0.1"
    for _ in range(5):
        status, location, body = await plain_get(host, target.port, target.path)
        if status != 302:
            return body
        host, _, path = location.removeprefix("http://").partition("/")
        host = host.partition(":")[0]
        target = read_target(f"http://site.example:{target.port}/{path}")
    return ""


async def inner_and_outer() -> tuple[asyncio.Server, int]:
    """A private server on 127.0.0.2 that holds the secret."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer(b"the secret"))
        writer.close()

    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.2", 0))
    server = await asyncio.start_server(serve, sock=sock)
    return server, sock.getsockname()[1]


@pytest.mark.planted("a name that is checked and then looked up again")
async def test_T5_the_rebinding_test_finds_a_planted_check_by_name() -> None:
    server, port = await inner_and_outer()
    async with server:
        url = f"http://rebind.example:{port}/"
        assert "the secret" in await checks_names_only(url, Changing("127.0.0.1", "127.0.0.2"))
        with pytest.raises(ToolError):
            await Web(allowed=only_here, resolver=Changing("127.0.0.1", "127.0.0.2")).web_fetch(url)
        with pytest.raises(ToolError):
            await Web(allowed=only_here, resolver=Changing("127.0.0.2", "127.0.0.1")).web_fetch(url)


@pytest.mark.planted("a redirect that is followed unseen")
async def test_T5_the_redirect_test_finds_a_planted_fetch_that_follows_blindly() -> None:
    server, port = await inner_and_outer()
    async with server:
        outer = await asyncio.start_server(
            lambda r, w: w.write(to(f"http://127.0.0.2:{port}/")) or w.close(), "127.0.0.1", port
        )
        async with outer:
            url = f"http://site.example:{port}/"
            assert "the secret" in await follows_blindly(url)
            with pytest.raises(ToolError, match=r"127\.0\.0\.2"):
                await web().web_fetch(url)


# Bombs and servers that never end


async def test_T5_a_bomb_stops_at_the_cap() -> None:
    bomb = gzip.compress(b"<p>" + b"a" * 50_000_000)
    chain = b"".join(gzip.compress(b"b" * 100_000) for _ in range(200))
    pages = {"/a": answer(bomb, Content_Encoding="gzip"), "/b": answer(chain, "text/plain", Content_Encoding="gzip"),
             "/c": answer(b"c" * 5_000_000, "text/plain")}  # fmt: skip
    async with site(pages) as it:
        for path in pages:
            page = await web(max_bytes=100_000).load_page(it.url(path))
            assert page.cut
            assert len(page.text) == 100_000
        assert "the rest was not fetched" in await web(max_bytes=100_000).web_fetch(it.url("/c"))
        exact = await web(max_bytes=5_000_000).load_page(it.url("/c"))
        assert not exact.cut


async def test_T5_nothing_that_is_packed_into_nothing_keeps_it_reading() -> None:
    empty = gzip.compress(b"") * 100_000
    async with site({"/": answer(empty, "text/plain", Content_Encoding="gzip")}) as it:
        page = await web(max_bytes=100_000).load_page(it.url("/"))
    assert page.text == ""


async def test_T5_a_server_that_never_answers_ends_at_the_deadline_in_words() -> None:
    stalled = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 100\r\n\r\nhalf"
    async with site({"/": b"never", "/half": stalled, "/junk": b"\0\1\2\r\n\r\n"}) as it:
        with pytest.raises(ToolError, match=r"did not answer"):
            await web(seconds=0.2).web_fetch(it.url("/"))
        with pytest.raises(ToolError, match="could not be fetched"):
            await web().web_fetch(it.url("/half"))
        with pytest.raises(ToolError, match="could not be fetched"):
            await web().web_fetch(it.url("/junk"))


async def test_T5_nobody_there_and_an_unknown_name_are_told_in_words() -> None:
    async def unknown(_host: str, _port: int) -> Sequence[str]:
        raise socket.gaierror(-2, "unknown")

    with pytest.raises(ToolError, match="is not known"):
        await Web(resolver=unknown).web_fetch("http://nowhere.example/")
    async with site({}) as it:
        port = it.port
    with pytest.raises(ToolError, match="could not be fetched"):
        await web().web_fetch(f"http://site.example:{port}/")


# What may run by itself

SECRET = "sk-Very+Secret/1234=="


async def test_T5_only_hosts_that_the_user_named_are_fetched_without_asking() -> None:
    one = Web()
    said = "compare https://docs.example/ with https://xn--fsqu00a.example"
    fetched: list[str] = []

    def fetch(url: str) -> str:
        fetched.append(url)
        return url

    async def refuse(_call: ToolCallEvent, _decision: Decision) -> bool:
        return False

    tools = ToolRegistry(Tool.of(fetch, description="Fetch a page.", check=one.check))
    states = {
        "https://docs.example/a?b=1": "done",
        "https://DOCS.example./": "done",
        "https://例子.example/": "done",
        "https://evil.example/?q=data": "refused",
        "https://docs.example.evil.example/": "refused",
        "https://sub.docs.example/": "refused",
        "https://docs.example:8443/": "refused",
        "http://docs.example:443/": "done",
        "https://me@docs.example/": "blocked",
        "https://10.0.0.1/": "blocked",
    }
    found: dict[str, str] = {}
    for url in states:
        call = ToolCallEvent("c", "fetch", json.dumps({"url": url}))
        found[url] = (await tools.call(call, ask=refuse, user_text=said)).state
        assert (await tools.call(call)).state in ("refused", "blocked"), "nothing is named in an empty text"
    assert found == states
    assert fetched == [url for url, state in states.items() if state == "done"]
    assert one.check({}).verdict == "block"
    assert one.check({"url": "https://docs.example/\u202e"}).shows == "https://docs.example/\\u202e"


@pytest.mark.parametrize(
    "hidden",
    [
        SECRET, quote(SECRET, safe=""), quote(quote(SECRET, safe=""), safe=""), SECRET.upper(), SECRET.lower(),
        SECRET.encode().hex(), base64.b64encode(SECRET.encode()).decode(),
        base64.urlsafe_b64encode(SECRET.encode()).decode(),
        base64.b64encode(b"x" + SECRET.encode() + b"yz").decode(),
        base64.b64encode(b"key=" + SECRET.encode()).decode(),
        base64.b32encode(SECRET.encode()).decode(), SECRET[::-1], "/".join(SECRET), ".".join(SECRET),
        "&".join(SECRET),
        SECRET[:9] + "&" + SECRET[9:], SECRET.encode().hex().upper(),
        quote(base64.b64encode(SECRET.encode()).decode(), safe=""),
    ],
)  # fmt: skip
async def test_T5_a_url_that_holds_a_secret_is_blocked_however_it_is_written(hidden: str) -> None:
    for secret in (SECRET, Key(SECRET)):
        one = Web(secrets=[secret, ""])
        for url in (f"https://docs.example/?q={hidden}", f"https://docs.example/{hidden}/x"):
            decision = one.check({"url": url})
            assert decision.verdict == "block", url
            assert SECRET not in decision.explain()
            with pytest.raises(ToolError, match="secret"):
                await one.web_fetch(url)


def coded(*pieces: str) -> list[str]:
    return [base64.urlsafe_b64encode(piece.encode()).decode().rstrip("=") for piece in pieces]


@pytest.mark.parametrize(
    "rest",
    [
        f"?a={quote(SECRET[:9])}&b={quote(SECRET[9:])}", "?" + "&".join(f"k{n}={quote(c)}" for n,
        c in enumerate(SECRET)),
        f"?{quote(SECRET[:9])}=1&{quote(SECRET[9:])}=2", f"{SECRET[:5]}/{SECRET[5:9]}?c={quote(SECRET[9:])}",
        f"?a={quote(SECRET[::-1][:9])}&b={quote(SECRET[::-1][9:])}", "?a={}&b={}".format(*coded(SECRET[:8],
        SECRET[8:])),
        "{}/{}".format(*coded(SECRET[:8], SECRET[8:])), coded(SECRET[::-1])[0], coded(coded(SECRET)[0])[0],
        SECRET.encode().hex()[::-1], f"{SECRET[:7].encode().hex()}/{SECRET[7:].encode().hex()}",
    ],
)  # fmt: skip
def test_T5_a_secret_in_pieces_is_found_in_their_order_backwards_and_decoded_once(rest: str) -> None:
    assert carries_secret(f"https://docs.example/{rest}", [SECRET])


def test_T5_ordinary_urls_hold_no_secret() -> None:
    for url in ("https://docs.example/", "https://docs.example/very/secret?id=1234", "https://docs.example/sk-1234"):
        assert not carries_secret(url, [SECRET, "abc", ""])


def test_T5_the_product_is_strict_by_default() -> None:
    (tool,) = web_tools()
    assert tool.check is not None
    assert tool.check({"url": f"http://{HERE}/"}).verdict == "block"
