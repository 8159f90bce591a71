"""Writes the diffs of docs/design/extending/ into the page docs/design/extending.md, each where its mark stands."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "design" / "extending.md"
DIFFS = ROOT / "docs" / "design" / "extending"
BLOCK = re.compile(r"^<!-- (\w+)\.diff -->\n(?:```diff\n.*?^```\n)?", re.MULTILINE | re.DOTALL)


def page_with_diffs(text: str) -> str:
    """The page with each diff as it is in its file."""

    def shown(found: re.Match[str]) -> str:
        name = found.group(1)
        diff = (DIFFS / f"{name}.diff").read_text(encoding="utf-8")
        return f"<!-- {name}.diff -->\n```diff\n{diff}```\n"

    return BLOCK.sub(shown, text)


if __name__ == "__main__":
    PAGE.write_text(page_with_diffs(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.exit(0)
