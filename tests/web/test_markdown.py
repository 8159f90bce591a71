"""The page's own Markdown: what it builds, that streaming builds the same, and that no text makes it slow."""
# ruff: noqa: E501 -- a case is easier to compare on one line

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.web.browser import Seen
from tests.web.conftest import Look
from tests.web.site import Site, serving
from tests.web.story import PIER

BUILT = """async (text) => {
    const { markdown } = await import("/web/markdown.js");
    const strip = (node) => node.nodeType === 3 ? node.data : (
        node.matches(".code-head") ? "" :
        `<${node.localName}${["href", "start"].filter((n) => node.hasAttribute(n)).map((n) => ` ${n}=${node.getAttribute(n)}`).join("")}>`
        + [...node.childNodes].map(strip).join("") + `</${node.localName}>`);
    return [...markdown(text).childNodes].map(strip).join("");
}"""
STREAMED = """async ([text, cuts]) => {
    const { Growing, markdown } = await import("/web/markdown.js");
    const grown = new Growing();
    let at = 0;
    for (const cut of [...cuts, text.length]) {
        grown.add(text.slice(at, cut));
        grown.draw();
        at = cut;
    }
    grown.end();
    return [grown.root.innerHTML, markdown(text).innerHTML];
}"""
CASES = [
    ("plain <b>tags</b> & entities &lt;", "<p>plain <b>tags</b> & entities &lt;</p>"),
    ("# One\n### Three ###", "<h3>One</h3><h5>Three</h5>"),
    ("a\nb", "<p>a<br></br>b</p>"),
    ("**b** *i* ***bi*** ~~s~~ `c`", "<p><strong>b</strong> <em>i</em> <strong><em>bi</em></strong> <del>s</del> <code>c</code></p>"),
    ("中文**粗体**和*斜体*。", "<p>中文<strong>粗体</strong>和<em>斜体</em>。</p>"),
    ("**“引号”**后面", "<p><strong>“引号”</strong>后面</p>"),
    ("snake_case_name and 2*3*4 * 5", "<p>snake_case_name and 2<em>3</em>4 * 5</p>"),
    ("*open and **never closed", "<p>*open and **never closed</p>"),
    ("`a ``b` ``c ` d``", "<p><code>a ``b</code> <code>c ` d</code></p>"),
    ("\\*not\\* \\`code\\`", "<p>*not* `code`</p>"),
    ("- a\n- b\n  - c\n    1. d\n- e", "<ul><li>a</li><li>b<ul><li>c<ol><li>d</li></ol></li></ul></li><li>e</li></ul>"),
    ("3. c\n4. d", "<ol start=3><li>c</li><li>d</li></ol>"),
    ("1. a\n\n   more\n\n2. b", "<ol><li><p>a</p><p>more</p></li><li><p>b</p></li></ol>"),
    ("- [ ] open\n- [x] done", "<ul><li><span></span>open</li><li><span></span>done</li></ul>"),
    ("> a\n> > b\n\nc", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><p>c</p>"),
    ("---\n***", "<hr></hr><hr></hr>"),
    ("```js\nlet a = '<b>';\n```\nafter", "<div><pre><code>let a = '<b>';</code></pre></div><p>after</p>"),
    ("~~~\n```\n~~~", "<div><pre><code>```</code></pre></div>"),
    ("| a | b |\n|---|--:|\n| `x|y` | 2 \\| 3 |", "<div><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td><code>x|y</code></td><td>2 | 3</td></tr></tbody></table></div>"),
    ("a | b\nno table", "<p>a | b<br></br>no table</p>"),
    ("[text](https://example.org/x)", "<p><span><a href=https://example.org/x>text</a><span> (example.org)</span></span></p>"),
    ("https://example.org/a_b_c, and", "<p><a href=https://example.org/a_b_c>https://example.org/a_b_c</a>, and</p>"),
    ("见https://example.org/甲。", "<p>见<a href=https://example.org/%E7%94%B2>https://example.org/甲</a>。</p>"),
    ("[https://good.example](https://evil.example)", "<p><span><a href=https://evil.example/>https://good.example</a><span> (evil.example)</span></span></p>"),
    ("[a](javascript:alert(1)) [b](data:text/html,x)", "<p><span>a</span> <span>b</span></p>"),
    ("[mail](mailto:a@b.example)", "<p><span><a href=mailto:a@b.example>mail</a><span> (a@b.example)</span></span></p>"),
    ("[x]( https://example.org/x  'y' ) [z]()", "<p><span><a href=https://example.org/x>x</a><span> (example.org)</span></span> <span>z</span></p>"),
    ("http://[ and **b**", "<p>http://[ and <strong>b</strong></p>"),
    ("[x](<https://example.org/a b>)", "<p><span><a href=https://example.org/a%20b>x</a><span> (example.org)</span></span></p>"),
]  # fmt: skip
SLOW = {
    "stars": "*a " * 40_000, "brackets": "[" * 120_000, "links": "[a](" * 30_000, "ticks": "".join("`" * (n % 300) + "x" for n in range(900)),
    "quotes": "> " * 60_000, "blanks": "# a" + " " * 120_000 + "b", "spaces": "a" + " " * 120_000 + "b\nc", "dots": "http://a" + "." * 120_000 + "x",
    "brackets closed": "http://a" + ")" * 120_000, "deep list": "\n".join("  " * n + "- a" for n in range(600)), "table": "|a" * 3_000 + "|\n" + "|-" * 3_000 + "|\n" + ("|b" * 3_000 + "|\n") * 20,
    "rows": "|a|b|\n|-|-|\n" + "|1|2|\n" * 40_000, "emphasis": "**" * 60_000, "angles": "<http://" * 15_000, "pipes": "|" * 120_000, "list": "- a\n" * 20_000,
    "blank target": "[a](" + " " * 400_000 + "x", "blank title": "[a](b" + " " * 400_000 + "x", "blank end": '[a](b "c"' + " " * 400_000 + "x",
    "refused addresses": "http://[" * 100_000,
}  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with serving(tmp_path_factory.mktemp("site"), [[{"text": "x"}]]) as found:
        yield found


@pytest.fixture
def seen(site: Site, look: Look) -> Seen:
    return look(site)


def test_markdown_becomes_these_nodes(seen: Seen) -> None:
    built = [(given, seen.page.evaluate(BUILT, given)) for given, _ in CASES]
    assert built == CASES


def test_a_picture_is_a_link_with_a_note_and_never_an_image(seen: Seen) -> None:
    built = seen.page.evaluate(BUILT, "![a cat](https://outside.example/cat.png)")
    assert "<img" not in built
    assert "href=https://outside.example/cat.png" in built
    assert "not loaded" in built


def test_characters_that_nobody_sees_are_shown_by_number_and_copied_as_they_were(seen: Seen) -> None:
    built = seen.page.evaluate(BUILT, "a\u202eb\u200bc \U000e0041 👩‍👩‍👧")
    assert built == "<p>a<span>U+202E</span>b<span>U+200B</span>c <span>U+E0041</span> 👩‍👩‍👧</p>"


def documents(chance: random.Random) -> str:
    pieces = [given for given, _ in CASES] + [
        PIER,
        "",
        "   ",
        "\n\n",
        "```",
        "- ",
        "|",
        "    four",
        "1. x\n   y",
        "> q",
    ]
    return "".join(chance.choice(pieces) + chance.choice(["\n", "\n\n", "", " "]) for _ in range(chance.randint(1, 9)))


def test_an_answer_that_streams_is_built_as_the_whole_one_is(seen: Seen) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(150):
        text = documents(chance)
        cuts = sorted(chance.randint(0, len(text)) for _ in range(chance.randint(0, 12)))
        given: list[Any] = [text, cuts]
        grown, whole = seen.page.evaluate(STREAMED, given)
        assert grown == whole, given


def test_streaming_rebuilds_only_the_last_block(seen: Seen) -> None:
    kept = seen.page.evaluate(
        """async () => {
            const { Growing } = await import("/web/markdown.js");
            const grown = new Growing();
            grown.add("one\\n\\ntwo\\n\\nthree\\nfo"); grown.draw();
            const [one, two] = grown.root.children;
            grown.add("ur\\n\\n```\\ncode"); grown.draw();
            const code = grown.root.querySelector("pre code").firstChild;
            grown.add("\\nmore"); grown.draw();
            return [grown.root.children[0] === one, grown.root.children[1] === two,
                    grown.root.querySelector("pre code").firstChild === code, grown.root.textContent];
        }"""
    )
    assert kept[:3] == [True, True, True]
    assert kept[3].startswith("onetwothreefour")
    assert kept[3].endswith("code\nmore")


@pytest.mark.parametrize("name", SLOW)
def test_no_text_takes_more_than_linear_time(seen: Seen, name: str) -> None:
    """The test's own deadline ends it: a quadratic step over these takes minutes."""
    seen.page.evaluate(
        "async (text) => { const { markdown } = await import('/web/markdown.js'); markdown(text); }", SLOW[name]
    )
