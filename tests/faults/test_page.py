"""G6: answers, questions, titles and memories that want to run or to load something, in a real Chromium.

Hundreds of pieces of hostile text go through every view of the page. Nothing may run, nothing may be asked of anybody
else, and nothing that could may even stand on the page. The planted bugs read text as HTML, with the policy and without.
"""
# ruff: noqa: E501 -- the pieces are read as a list, and the page's check as one function

import http.server
import random
import re
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Dialog, Error, Route

from tests.faults.load import Load
from tests.web.browser import Seen, chromium, looking
from tests.web.site import Answer, Site, serving

RUN = "window.ran=(window.ran||0)+1"
PIECES = [
    "<script>RUN</script>", "<SCRIPT SRC=OUT/a.js></SCRIPT>", "<img src=x onerror=RUN>", "<img src=OUT/b.png>",
    "<svg onload=RUN>", "<svg><script>RUN</script></svg>", "<svg><image href=OUT/c.png></svg>", "<iframe src=OUT/d></iframe>",
    "<iframe srcdoc='<script>parent.RUN</script>'></iframe>", "<object data=OUT/e></object>", "<embed src=OUT/f>",
    "<link rel=stylesheet href=OUT/g.css>", "<style>@import 'OUT/h.css'; body{background:url(OUT/i)}</style>",
    "<div style=\"background:url(OUT/j)\">x</div>", "<video src=OUT/k autoplay>", "<audio src=OUT/l autoplay onerror=RUN>",
    "<meta http-equiv=refresh content='0;url=OUT/m'>", "<base href=OUT/>", "<form action=OUT/n><input autofocus onfocus=RUN>",
    "<details open ontoggle=RUN>", "<body onload=RUN>", "<math><mi xlink:href=javascript:RUN>", "<a href=javascript:RUN>x</a>",
    "<!-- --><img src=OUT/o>", "<!--><img src=x onerror=RUN>-->", "</code></pre><img src=x onerror=RUN>", "</textarea><img src=x onerror=RUN>",
    "<template><img src=x onerror=RUN></template>", "<noscript><img src=OUT/p></noscript>", "<input type=image src=OUT/q>",
    "[a](javascript:RUN)", "[a](JaVaScRiPt:RUN)", "[a](java\tscript:RUN)", "[a](\u0001javascript:RUN)", "[a]( javascript:RUN)",
    "[a](data:text/html,<script>RUN</script>)", "[a](vbscript:RUN)", "[a](blob:OUT/x)", "[a](file:///etc/passwd)",
    "<javascript:RUN>", "![x](OUT/r.png)", "![x](javascript:RUN)", "![x](data:image/svg+xml,<svg onload=RUN>)",
    "![x](OUT/s.png \"t\" onerror=RUN)", "[![x](OUT/t.png)](OUT/u)", "[x](OUT/v\"onmouseover=RUN)", "[x]: OUT/w\n\n![x][x]",
    "OUT/y\"onmouseover=\"RUN", "`<img src=x onerror=RUN>`", "```html\n<img src=x onerror=RUN>\n```", "```\"><img src=x onerror=RUN>\nx\n```",
    "~~~<script>RUN</script>\nx\n~~~", "**<img src=x onerror=RUN>**", "> <img src=x onerror=RUN>", "# <img src=x onerror=RUN>", "- <svg onload=RUN>",
    "| <img src=x onerror=RUN> | b |\n|---|---|\n| <script>RUN</script> | ![x](OUT/z.png) |", "&lt;img src=x onerror=RUN&gt;", "&#60;script&#62;RUN",
    "\u202e<img src=x onerror=RUN>\u202c", "\u200b<scr\u200bipt>RUN</script>", "\U000e0041<img src=x onerror=RUN>", "[\u202egood.example](OUT/evil)",
    "constructor __proto__ {{RUN}} ${RUN} <%= RUN %>", "\x00<img src=x onerror=RUN>", "<a href='OUT/ping' ping='OUT/ping2'>x</a>",
]  # fmt: skip
FOUND = """() => {
    const bad = [];
    const own = [location.origin + "/web/icon.svg"];
    for (const node of document.querySelectorAll("body *")) {
        const name = node.localName;
        const drawn = node.closest("svg.icon, svg.chart-svg");
        if (["script", "iframe", "object", "embed", "style", "link", "meta", "base", "video", "audio", "template", "math"].includes(name)) bad.push(name);
        if ((name === "svg" || node.namespaceURI.endsWith("svg")) && !drawn) bad.push(name);
        if (name === "img" && !own.includes(node.src) && !/^data:image\\/(png|jpeg|webp|gif);base64,/.test(node.src)) bad.push(`img ${node.src}`);
        for (const { name: attribute, value } of node.attributes) {
            if (attribute.startsWith("on") || ["srcdoc", "ping", "action", "formaction", "background"].includes(attribute)) bad.push(`${name} ${attribute}`);
            if (attribute === "href" && !/^(https?:\\/\\/|mailto:|#|blob:)/.test(value)) bad.push(`${name} ${value}`);
            if (attribute === "href" && /^https?:/.test(value) && !(/noopener/.test(node.rel) && /noreferrer/.test(node.rel) && node.target === "_blank")) bad.push(`rel ${value}`);
        }
    }
    return [bad, window.ran || 0, window.refused || []];
}"""
WATCH = """addEventListener("securitypolicyviolation", (event) => {
    (window.refused ??= []).push(`${event.violatedDirective} ${event.blockedURI}`);
});"""


@dataclass
class Outside:
    """Somebody else's server: where it is, and what was asked of it."""

    url: str
    asked: list[str] = field(default_factory=list[str])


@contextmanager
def outside() -> Generator[Outside, None, None]:
    found = Outside("")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.asked.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- its name in the standard library
            """Quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()


@dataclass
class Breaches:
    """What should be empty: what ran, what was loaded, what the policy had to stop, and what could have."""

    ran: int = 0
    loaded: list[str] = field(default_factory=list[str])
    refused: list[str] = field(default_factory=list[str])
    standing: list[str] = field(default_factory=list[str])

    def none(self) -> bool:
        return not (self.ran or self.loaded or self.refused or self.standing)


def hostile(chance: random.Random, other: str) -> str:
    """A text of many pieces, each of them once alone and once in the middle of something."""
    pieces = [piece.replace("RUN", RUN).replace("OUT", other) for piece in PIECES]
    chance.shuffle(pieces)
    return "".join(
        piece + chance.choice(["\n\n", "\n", " ", "\n> ", "\n- ", "\n  - ", " | ", "**", "`"]) for piece in pieces
    )


def plain(text: str) -> str:
    """Without slots and characters that nobody sees, which a template may not have."""
    return "".join(sign for sign in text.replace("{{", "{") if sign.isprintable() or sign == "\n")


def script_of(chance: random.Random, other: str) -> list[Answer]:
    text = hostile(chance, other)
    cuts = sorted({chance.randrange(1, len(text)) for _ in range(30)})
    called = {"path": "<img src=x onerror=RUN>".replace("RUN", RUN)}
    return [
        [{"text": text, "split": cuts}, {"usage": [9, 0, 9]}],
        [{"text": hostile(chance, other)}, {"call": "read_file", "id": "call_1", "arguments": called}],
        [{"text": hostile(chance, other)}],
    ]


def visited(seen: Seen, found: Breaches, other: Outside, chance: random.Random) -> None:
    """The whole page with hostile text in every place that takes some."""
    page, site = seen.page, seen.site

    def refuse(dialog: Dialog) -> None:
        found.standing.append("dialog")
        dialog.dismiss()

    page.context.add_init_script(WATCH)
    page.on("dialog", refuse)
    page.goto(site.door)
    page.wait_for_selector("#ask")

    def looked(ready: str) -> None:
        page.wait_for_selector(ready)
        page.wait_for_timeout(120)  # what loads by itself gets the time to
        bad, ran, refused = page.evaluate(FOUND)
        found.standing += bad
        found.refused += refused
        found.ran += ran

    page.fill("#ask", hostile(chance, other.url))
    page.keyboard.press("Enter")
    looked(".answer-foot .collect")
    session = seen.session
    turn = page.get_attribute(".turn", "data-turn")
    page.click(".answer-foot .collect")
    site.ask(
        "PATCH",
        f"/api/sessions/{session}",
        {"title": hostile(chance, other.url).replace("\0", "")[:200], "mode": "agent"},
    )
    page.fill("#ask", "And a tool, please")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelectorAll('.answer-foot .collect').length === 2")
    looked("details.call")
    page.reload()
    looked(".answer-foot .collect")
    site.ask("POST", "/api/memories", {"text": hostile(chance, other.url)[:2000].replace("\0", "")})
    skill = {
        "name": "<img src=x>",
        "content": plain(hostile(chance, other.url)),
        "is_skill": True,
        "description": PIECES[2],
    }
    site.ask("POST", "/api/templates", skill)
    last = site.ask("GET", f"/api/sessions/{session}/turns")["turns"][-1]["turn_id"]
    views = {"#/collected": ".card", "#/memories": ".fact", "#/skills": ".card", f"#/t/{turn}/inspect": ".seg",
             f"#/t/{last}/inspect": ".seg", f"#/diff/{turn}/{last}": ".verdict"}  # fmt: skip
    for address, ready in views.items():
        seen.go(address)
        looked(ready)
    page.fill("#side input", "onerror")
    looked(".hit")


def attacked(browser: Browser, folder: Path, seed: int, *, change: Any = None) -> Breaches:
    chance, found = random.Random(seed), Breaches()
    folder.mkdir(exist_ok=True)
    with (
        outside() as other,
        serving(folder, script_of(chance, other.url), environ=TOOLS) as site,
        looking(browser, site, enter=False) as seen,
    ):
        if change:
            change(seen.page, site)
        with suppress(Error) if change else nullcontext():  # a page that is broken shows no more
            visited(seen, found, other, chance)
        for _ in range(50):  # what ran also loads, which takes a moment on a busy machine
            if not found.ran or seen.outside or other.asked:
                break
            seen.page.wait_for_timeout(100)
        found.loaded += [*seen.outside, *other.asked]
        found.refused += [error for error in seen.errors if "TrustedHTML" in error]
    return found


TOOLS = {"LAMINA_TOOLS": "true", "LAMINA_WORKSPACE": "."}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def test_G6_hostile_text_runs_nothing_and_loads_nothing(browser: Browser, tmp_path: Path, load: Load) -> None:
    for trial in load.rounds(1, "pages"):
        seed = load.seed()
        found = attacked(browser, tmp_path / str(trial), seed)
        assert found.none(), (seed, found)


def as_html(route: Route, *, policy: bool) -> None:
    """A copy of the page whose text is read as HTML; without a policy it may also do what it says."""
    reply = route.fetch()
    text = reply.text()
    if route.request.url.endswith("/web/dom.js"):
        plain = "return [document.createTextNode(text)];"
        assert plain in text
        text = text.replace(
            plain, "{ const box = document.createElement('div'); box.innerHTML = text; return [...box.childNodes]; }"
        )
    headers = dict(reply.headers)
    if not policy:
        headers.pop("content-security-policy", None)
    route.fulfill(status=reply.status, headers=headers, body=text)


@pytest.mark.planted("a page that reads text as HTML, with and without its policy")
@pytest.mark.parametrize("policy", [True, False])
def test_G6_is_not_blind_to_a_page_that_reads_text_as_html(browser: Browser, tmp_path: Path, policy: bool) -> None:
    def planted(page: Any, site: Site) -> None:
        page.route(
            re.compile(re.escape(site.url) + r"/(web/.*|\?token=.*|)$"), lambda route: as_html(route, policy=policy)
        )

        page.context.set_default_timeout(5_000)

    found = attacked(browser, tmp_path, 6, change=planted)
    assert not found.none()
    if policy:  # the second line holds: nothing ran, and nothing left
        assert found.refused
        assert (found.ran, found.loaded) == (0, [])
    else:
        assert found.ran
        assert found.loaded
        assert found.standing
