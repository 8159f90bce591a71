"""web_fetch: pages as Markdown, charsets, pieces, refusals in words; over a real server on this machine."""

import gzip
import zlib

import pytest

from lamina.errors import ToolError
from lamina.tools.web import DEFAULT_CHARS, convert_to_markdown, decode_page, web_tools
from tests.tools.site import answer, site, to, web

CHINESE = (
    "<html><head><title>天气预报</title></head><body><h1>北京</h1>"
    "<p>今天晴，<a href='/明天'>明天</a>有雨。</p></body></html>"
)


async def test_a_page_is_fetched_as_markdown_with_its_title_and_url() -> None:
    html = (
        b"<title> A  page </title><nav>menu</nav><h1>Hi</h1><p>one <b>two</b></p><script>x()</script><style>x{}</style>"
    )
    async with site({"/": answer(html)}) as it:
        text = await web().web_fetch(it.url("/"))
    assert text == f"# A page\nURL: http://site.example:{it.port}/\n\n# Hi\n\none **two**"


async def test_only_get_is_sent_without_cookies_or_credentials_and_under_our_own_name() -> None:
    async with site({"/": to("/b") + b"", "/b": answer(b"hi")}) as it:
        await web().web_fetch(it.url("/"))
    assert len(it.asked) == 2
    for head in it.asked:
        assert head.startswith("GET ")
        assert "User-Agent: lamina" in head
        assert "Cookie" not in head
        assert "Authorization" not in head


async def test_a_cookie_that_a_page_sets_is_not_sent_back() -> None:
    first = answer(b"", status="302 Found", Location="/b", Set_Cookie="id=1")
    async with site({"/": first, "/b": answer(b"hi")}) as it:
        await web().web_fetch(it.url("/"))
    assert "Cookie" not in it.asked[1]


@pytest.mark.parametrize(
    ("encoding", "kind", "meta"),
    [
        ("gb18030", "text/html; charset=gb2312", ""),
        ("gb18030", "text/html; charset=GBK", ""),
        ("gb18030", "text/html", '<meta charset="gb2312">'),
        ("gb18030", "text/html", '<meta http-equiv="Content-Type" content="text/html; charset=gbk">'),
        ("gb18030", "text/html", ""),
        ("big5", "text/html; charset=big5", ""),
        ("utf-8", "text/html", ""),
        ("utf-8-sig", "text/html; charset=latin-1", ""),
        ("utf-16", "text/html", ""),
        ("utf-8", "text/html; charset=no-such-thing", ""),
        ("utf-8", "text/html; charset=rot13", ""),
    ],
)
async def test_chinese_pages_are_read_in_every_charset_they_come_in(encoding: str, kind: str, meta: str) -> None:
    text = CHINESE if encoding != "big5" else CHINESE.replace("气", "氣").replace("预报", "預報").replace("晴，", "晴")
    body = text.replace("<head>", f"<head>{meta}").encode(encoding)
    async with site({"/": answer(body, kind)}) as it:
        found = await web().web_fetch(it.url("/"))
    assert "# 北京" in found
    assert "明天" in found
    assert "�" not in found


def test_links_are_complete_and_only_those_of_the_web_stay() -> None:
    html = (
        "<a href='/a'>a</a> <a href='b?x=1'>b</a> <a href='https://o.example/'>c</a> <a href='javascript:x()'>d</a> "
        "<a href='data:text/html,x'>e</a> <a href='http://[bad'>f</a><img src=x alt='a cat'>"
    )
    _, text = convert_to_markdown(html, "https://site.example/dir/page")
    assert text == (
        "[a](https://site.example/a) [b](https://site.example/dir/b?x=1) [c](https://o.example/) d e fa cat"
    )


def test_tables_lists_and_code_stay_readable() -> None:
    html = (
        "<table><tr><th>城市</th><th>度</th></tr><tr><td>北京</td><td>21</td></tr></table>"
        "<ul><li>one<ul><li>two</li></ul></li></ul><pre><code>x = 1\ny = 2</code></pre>"
    )
    _, text = convert_to_markdown(html, "https://x.example/")
    assert "| 城市 | 度 |\n| --- | --- |\n| 北京 | 21 |" in text
    assert "- one\n  - two" in text
    assert "x = 1\ny = 2" in text


def test_what_readers_do_not_see_is_left_out() -> None:
    html = (
        "<p>seen</p><p hidden>h1</p><p style='display: none'>h2</p><div aria-hidden=true>h3</div><!-- h4 -->"
        "<template>h5</template><noscript>h6</noscript><p style='visibility:hidden'>h7</p><svg><text>h8</text></svg>"
    )
    assert convert_to_markdown(html, "https://x.example/") == ("", "seen")


@pytest.mark.parametrize(
    "html",
    [
        "<p>hello<p>there", "<b><i>x</b></i>", "<div", "<a href=", "</p></p>", "<table><tr><td>x",
        "<!-- never closed", "<![x[>" * 9,
        "<div>" * 3_000 + "deep", "<blockquote>" * 300 + "q", "<ul><li>" * 500 + "x", "&#xD800; &#0; &bogus;",
        "<title>", "\0<p>x\0</p>",
        "<script>never closed <p>x", "<p " + "a" * 10_000 + ">x", "<" * 60_000, "&" * 60_000, "",
    ],
)  # fmt: skip
def test_broken_html_gives_text_and_never_fails(html: str) -> None:
    title, text = convert_to_markdown(html, "https://x.example/")
    assert isinstance(title, str)
    assert "\0" not in text


async def test_a_long_page_is_read_piece_by_piece_by_characters() -> None:
    words = " ".join(f"词{n}" for n in range(5_000))
    async with site({"/": answer(f"<p>{words}</p>".encode())}) as it:
        pieces, offset = "", 0
        while True:
            head, _, piece = (await web().web_fetch(it.url("/"), offset)).partition("\n\n")
            pieces += piece
            if "continue with" not in head:
                break
            assert len(piece) == DEFAULT_CHARS
            offset = int(head.rpartition("=")[2])
        assert pieces == words
        assert "Characters 10 to 15 of" in await web().web_fetch(it.url("/"), 10, 5)
        assert (await web().web_fetch(it.url("/"), 10**9)).endswith("\n\n")
        with pytest.raises(ToolError, match="counts from 0"):
            await web().web_fetch(it.url("/"), -1)


@pytest.mark.parametrize(
    "kind", ["application/json", "text/plain", "application/xml", "application/ld+json", "text/csv"]
)
async def test_texts_that_are_no_html_come_as_they_are(kind: str) -> None:
    async with site({"/": answer(b'{"a": "<b>"}', kind)}) as it:
        assert (await web().web_fetch(it.url("/"))).endswith('\n\n{"a": "<b>"}')


@pytest.mark.parametrize(
    "kind", ["image/png", "application/pdf", "application/octet-stream", "video/mp4", "application/zip"]
)
async def test_what_is_no_text_is_refused_in_words(kind: str) -> None:
    async with site({"/": answer(b"\x89PNG", kind)}) as it:
        with pytest.raises(ToolError, match=f"is {kind}, not text"):
            await web().web_fetch(it.url("/"))


async def test_without_a_content_type_bytes_are_looked_at() -> None:
    async with site({"/a": answer(b"<p>x</p>", ""), "/b": answer(b"\0\1", ""), "/c": answer(b"plain", "")}) as it:
        assert (await web().web_fetch(it.url("/a"))).endswith("\n\nx")
        assert (await web().web_fetch(it.url("/c"))).endswith("\n\nplain")
        with pytest.raises(ToolError, match="not text"):
            await web().web_fetch(it.url("/b"))


@pytest.mark.parametrize("status", ["404 Not Found", "500 Oops", "204 No Content", "403 Forbidden"])
async def test_other_answers_are_told_in_words(status: str) -> None:
    async with site({"/": answer(b"", status=status)}) as it:
        with pytest.raises(ToolError, match=f"answered {status[:3]}"):
            await web().web_fetch(it.url("/"))


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(b"<p>hello</p>", mtime=0)),
        ("gzip", gzip.compress(b"<p>he", mtime=0) + gzip.compress(b"llo</p>", mtime=0)),
        ("gzip", gzip.compress(b"<p>hello</p>", mtime=0) + b"\0\0\0"),
        ("deflate", zlib.compress(b"<p>hello</p>")),
        ("deflate", raw_deflate(b"<p>hello</p>")),
        ("identity", b"<p>hello</p>"),
    ],
    ids=["gzip", "two-gzips", "gzip-and-more", "deflate", "bare-deflate", "plain"],
)
async def test_packed_pages_are_unpacked(encoding: str, body: bytes) -> None:
    async with site({"/": answer(body, Content_Encoding=encoding)}) as it:
        assert (await web().web_fetch(it.url("/"))).endswith("\n\nhello")


@pytest.mark.parametrize(
    ("encoding", "body"), [("br", b"xx"), ("gzip, gzip", b"xx"), ("gzip", b"not packed"), ("zstd", b"x")]
)
async def test_a_page_packed_in_another_way_is_refused_in_words(encoding: str, body: bytes) -> None:
    async with site({"/": answer(body, Content_Encoding=encoding)}) as it:
        with pytest.raises(ToolError, match="compressed"):
            await web().web_fetch(it.url("/"))


def test_a_charset_is_never_a_codec_that_is_none() -> None:
    assert decode_page(b"caf\xc3\xa9", "unicode_escape") == "café"
    assert decode_page(b"\\u0041", "raw_unicode_escape") == "\\u0041"
    assert decode_page(b"caf\xe9", "iso-8859-1") == "café"


def test_the_tool_says_when_to_use_it_and_has_offset_and_limit() -> None:
    (tool,) = web_tools()
    assert tool.name == "web_fetch"
    assert set(tool.parameters["properties"]) == {"url", "offset", "limit"}
    assert "Markdown" in tool.description
    assert tool.modes == ("agent", "plan")
    assert tool.run is not None
    assert tool.check is not None
    assert tool.check({"url": "https://example.com/"}).verdict == "confirm"
