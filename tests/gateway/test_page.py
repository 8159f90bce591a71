"""The page's files: a fixed table, their types and hashes, the policy, and the rules that the page's own code keeps."""

import json
import re
from pathlib import Path

import pytest

from lamina.gateway.system_routes import FOLDER, MEDIA, PAGE_POLICY, page_files
from lamina.text.messages import LANGUAGES, catalogue
from tests.gateway.raw import request, say
from tests.gateway.serving import running

SOURCES = sorted(path for path in FOLDER.iterdir() if path.suffix in MEDIA)
OUT_OF_IT = (
    "/web/", "/web/index.htm", "/web/..", "/web/../gateway/page.py", "/web/%2e%2e/gateway/page.py", "/web/APP.JS",
    "/web/..%2fgateway%2fpage.py", "/web/%2e%2e%2f%2e%2e%2fetc%2fpasswd", "/web//etc/passwd", "/web/app.js%00.css",
    "/web/app.js/", "/web/__init__.py",
)  # fmt: skip


async def test_each_file_is_served_with_its_type_its_hash_and_the_policy(tmp_path: Path) -> None:
    async with running(tmp_path / "store.db") as site:
        for path in SOURCES:
            got = await site.get(f"/web/{path.name}", key="")
            assert (got.status, got.raw) == (200, path.read_bytes())
            assert got.headers["Content-Type"] == MEDIA[path.suffix]
            assert "'unsafe" not in got.headers["Content-Security-Policy"]
            assert got.headers["X-Content-Type-Options"] == "nosniff"
            again = await site.get(f"/web/{path.name}", key="", headers={"If-None-Match": got.headers["ETag"]})
            assert (again.status, again.raw) == (304, b"")
            other = await site.get(f"/web/{path.name}", key="", headers={"If-None-Match": '"other", W/"more"'})
            assert other.status == 200
        got = await site.get("/", key="")
        assert got.raw == (FOLDER / "index.html").read_bytes()
        assert got.headers["Cache-Control"] == "no-cache"


async def test_nothing_but_the_files_of_the_table_can_be_read(tmp_path: Path) -> None:
    async with running(tmp_path / "store.db") as site:
        for path in OUT_OF_IT:
            status, _, body = await say(site.port, request("GET", path, port=site.port))
            assert (status, b"there is nothing here" in body) == (404, True), path


def test_the_table_is_the_folder_and_a_catalogue_for_each_language() -> None:
    catalogues = {f"messages.{lang}.json" for lang in LANGUAGES}
    assert set(page_files()) == {path.name for path in SOURCES} | catalogues
    assert {path.name for path in FOLDER.iterdir()} == set(page_files()) - catalogues
    for lang in LANGUAGES:
        served: dict[str, str] = json.loads(page_files()[f"messages.{lang}.json"].body)
        assert served.items() <= catalogue(lang).items()
        assert "gateway.not_found" in served


def test_the_policy_lets_nothing_in_from_elsewhere() -> None:
    rules = {name: rest for name, _, rest in (rule.partition(" ") for rule in PAGE_POLICY.split("; "))}
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert rules["img-src"] == "'self' data: blob:"
    assert rules["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in PAGE_POLICY


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_the_page_has_no_long_file_no_inline_code_and_no_word_of_another_host(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 500
    hosts = set(re.findall(r"https?://[\w.-]+", text)) - {"http://www.w3.org"}
    assert not hosts
    if path.suffix == ".js":
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc", text
        )
        assert all(name.startswith("./") for name in re.findall(r"""from ["']([^"']+)["']""", text))
    if path.suffix == ".html":
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|<script(?![^>]*\ssrc=\"/web/)", text)
    if path.suffix == ".css":
        assert "url(" not in text
        assert "@import" not in text
