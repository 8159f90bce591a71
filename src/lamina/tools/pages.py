"""A web page as text: its bytes decoded by the charset it names, its HTML as Markdown.

Needs markdownify and beautifulsoup4, of the extra `app`. It fetches nothing and follows nothing.
"""

import codecs
import re
from urllib.parse import urljoin, urlsplit

from bs4 import BeautifulSoup, Tag
from markdownify import MarkdownConverter  # pyright: ignore[reportMissingTypeStubs] -- it has none

_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_META = re.compile(rb"<meta[^>]{0,200}?charset\s{0,9}=\s{0,9}[\"']?\s{0,9}([A-Za-z0-9_.:-]{2,40})", re.IGNORECASE)
_XML = re.compile(rb"^\s*<\?xml[^>]{0,200}?encoding\s{0,9}=\s{0,9}[\"']([A-Za-z0-9_.:-]{2,40})", re.IGNORECASE)
_WIDER = {
    "gb2312": "gb18030", "gbk": "gb18030", "big5": "big5hkscs", "shift_jis": "cp932", "euc_kr": "cp949",
    "iso8859-1": "cp1252", "ascii": "cp1252", "tis-620": "cp874", "iso8859-9": "cp1254",
}  # fmt: skip
"""What pages call a charset, and what they mean by it."""
_KNOWN = re.compile(
    r"utf-8|utf-8-sig|utf-16(-[lb]e)?|gb18030|big5(hkscs)?|cp\d+|iso8859-\d+|koi8-[rut]|euc_j\w+|iso2022_\w+|shift_jis\w*|mac-\w+"
)
_DROPPED = [
    "script",
    "style",
    "nav",
    "noscript",
    "template",
    "svg",
    "iframe",
    "object",
    "embed",
    "canvas",
    "form",
    "dialog",
]
_UNSEEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_OPENS = re.compile(r"<(?:!--|[!?]|(script|style)(?=[\s/>]))", re.IGNORECASE)
_ENDS = {"script": re.compile("</script", re.IGNORECASE), "style": re.compile("</style", re.IGNORECASE)}
_INDENTED = ("blockquote", "ul", "ol")
_DEEPEST, _MOST_INDENTS = 60, 6
_MOST_CHARACTERS = 1_000_000
_MOST_TAGS = 50_000


def decoded(body: bytes, named: str = "") -> str:
    """The text of a page: by its byte order mark, the charset of the header, what the page says itself, else UTF-8."""
    for mark, name in _BOMS:
        if body.startswith(mark):
            return body[len(mark) :].decode(name, "replace")
    head = body[:4096]
    for found in (named, *(m[1].decode() for m in (_XML.search(head), _META.search(head)) if m)):
        codec = _codec(found)
        if codec:
            return body.decode(codec, "replace")
    for codec in ("utf-8", "gb18030"):  # a page that says nothing: Chinese ones are often of an older kind
        try:
            return codecs.getincrementaldecoder(codec)("strict").decode(body)
        except UnicodeDecodeError:
            continue
    return body.decode("utf-8", "replace")


def _codec(name: str) -> str:
    """The codec for a charset's name, empty for one that is unknown or no charset of pages."""
    try:
        found = codecs.lookup(name.strip()).name if name else ""
    except (LookupError, ValueError):
        return ""
    found = _WIDER.get(found, found)
    if found.startswith("utf-16") and name.lower() in ("utf-16", "utf16"):
        found = "utf-16-le"
    return found if _KNOWN.fullmatch(found) else ""


def as_markdown(html: str, url: str) -> tuple[str, str]:
    """The title and the text of a page. What readers do not see is left out; links are complete."""
    html = _without_noise(html)[:_MOST_CHARACTERS]
    if html.count("<") > _MOST_TAGS or html.count("&") > _MOST_TAGS:
        return "", tidy(re.sub(r"<[^<>]*+>", " ", html))
    soup = BeautifulSoup(html, "html.parser")
    title = " ".join(soup.title.get_text(" ").split()) if soup.title else ""
    for tag in soup.find_all([*_DROPPED, "head", "title"]):
        tag.decompose()
    for tag in soup.find_all(_is_unseen):
        tag.decompose()
    _flatten(soup)
    _complete_links(soup, url)
    text = str(_Converter(heading_style="ATX", bullets="-", escape_misc=False).convert_soup(soup))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType] -- markdownify has no types
    return title, tidy(text)


class _Converter(MarkdownConverter):
    """As markdownify does it; a picture is its words."""

    def convert_img(self, el: Tag, _text: str, parent_tags: set[str]) -> str:
        return str(el.get("alt") or "").strip()


def tidy(text: str) -> str:
    """Without control characters, blanks at the ends of lines and more than one empty line."""
    text = _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip(" \t\xa0") for line in text.split("\n"))).strip()


def _without_noise(html: str) -> str:
    """Without comments, declarations, scripts and styles: broken ones cost the parser the square of their time."""
    kept: list[str] = []
    at = 0
    while found := _OPENS.search(html, at):
        kept.append(html[at : found.start()] + " ")
        name = (found[1] or "").lower()
        if name:
            end = _ENDS[name].search(html, found.end())
            place = html.find(">", end.end()) if end else -1
            at = place + 1 if place >= 0 else len(html)
        else:
            mark = "-->" if found[0] == "<!--" else ">"
            place = html.find(mark, found.end())
            at = place + len(mark) if place >= 0 else len(html)
    whole = "".join(kept) + html[at:]
    last = whole.rfind(">") + 1
    return whole[:last] + whole[last:].replace("<", " ")


def _is_unseen(tag: Tag) -> bool:
    return (
        tag.has_attr("hidden") or tag.get("aria-hidden") == "true" or bool(_UNSEEN.search(str(tag.get("style") or "")))
    )


def _flatten(soup: BeautifulSoup) -> None:
    """What is nested too deeply becomes plain text: the converter calls itself for every level."""
    waiting: list[tuple[Tag, int, int]] = [(soup, 0, 0)]
    while waiting:
        tag, depth, indents = waiting.pop()
        indents += tag.name in _INDENTED
        if depth >= _DEEPEST or indents > _MOST_INDENTS:
            tag.string = tag.get_text(" ")
            continue
        waiting += [(child, depth + 1, indents) for child in tag.children if isinstance(child, Tag)]


def _complete_links(soup: BeautifulSoup, url: str) -> None:
    for tag in soup.find_all("a", href=True):
        try:
            full = urljoin(url, str(tag["href"]).strip())
            fine = urlsplit(full).scheme in ("http", "https", "mailto")
        except ValueError:
            full, fine = "", False
        if fine:
            tag["href"] = full
        else:
            tag.unwrap()
