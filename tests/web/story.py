"""A small world to look at: a team's folder, a script with a tool in it, some sessions, memories and skills."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.web.site import Answer, Site

ROOT = Path(__file__).parent.parent.parent
PIER = """Lin Mo stands at the **old pier**, and he knows three things:

1. the ferry left *without* its captain
2. the lamp was lit from outside
3. 码头上的脚印只有一行 (one line of footprints, going out)

| who | where at nine | who saw it |
|---|---|---:|
| the captain | the lamp room | nobody |
| Lin Mo | the ferry | 14 people |

> The third one is what he has not told anybody.

```python
def footprints(night: list[str]) -> int:
    return sum(step == "out" for step in night)
```
"""
RULES = "I look at the house rules first."
KEPT = """As you wish. The drafts stay where they are, and from now on I write into `story/` only.

- Chapter three opens at the pier, **at nine**.
- The captain's letter is found *before* the lamp goes out.
"""
CHINESE = """林默站在**旧码头**上，他知道三件事：

1. 渡船离开时*没有*船长
2. 灯是从外面点亮的
3. 码头上的脚印只有一行

> 第三件事，他还没有告诉任何人。

接下来可以写 `story/chapter-3.md`：先写九点钟的码头，再写那封信。
"""
SCRIPT: list[Answer] = [
    [{"text": PIER, "split": [20, 60, 120, 200, 300]}, {"usage": [1184, 0, 152]}],
    [
        {"text": RULES}, {"call": "read_file", "id": "call_1", "arguments": {"path": "AGENTS.md"}},
        {"usage": [1402, 1184, 24]},
    ],
    [{"text": KEPT}, {"usage": [1690, 1402, 61]}],
    [{"text": CHINESE}, {"usage": [1893, 1690, 140]}],
    [{"text": "The letter is short. It says who lit the lamp, and it is not signed."}, {"usage": [2104, 1893, 31]}],
]  # fmt: skip
QUESTIONS = (
    "What does Lin Mo know about the night at the pier?",
    "Leave the drafts alone, and go on with the story. My editor is called Wei.",
    "用中文把第三章的开头讲给我听。",
    "And the letter?",
)
LEARNED = "My editor is called Wei."
"""What is found in the second of them."""
MEMORIES: tuple[dict[str, Any], ...] = (
    {"text": "The editor of the novel is called Wei and reads on Fridays.", "kind": "fact", "pinned": True},
    {"text": "Answers about the plot should be short and give a table where it helps.", "kind": "preference"},
    {"text": "林默今年二十八岁，左手写字。", "kind": "fact"},
)
SKILLS: tuple[dict[str, Any], ...] = (
    {"name": "chapter-plan", "content": "Plan a chapter as beats: place, want, turn, cost.", "is_skill": True,
     "description": "Plans a chapter before it is written", "scenario": "common"},
    {"name": "names", "content": "Keep every name as it was written first.", "is_skill": True,
     "description": "Keeps names the same everywhere", "scenario": "common"},
)  # fmt: skip


def workspace(folder: Path) -> dict[str, str]:
    """The example of a team beside the store; the environment that works in it."""
    shutil.copytree(ROOT / "examples" / "team", folder / "team")
    return {"LAMINA_WORKSPACE": str(folder / "team"), "LAMINA_TOOLS": "true", "LAMINA_LANG": "en"}


def told(site: Site) -> tuple[str, list[str]]:
    """All of it over the API: the session of the story and its turns."""
    for skill in SKILLS:
        site.ask("POST", "/api/templates", skill)
    for memory in MEMORIES:
        site.ask("POST", "/api/memories", memory)
    session = site.ask("POST", "/api/sessions", {"title": "The night at the old pier", "mode": "agent"})["session_id"]
    turns = [site.said(words, session)[1] for words in QUESTIONS]
    until(lambda: LEARNED in {one["text"] for one in site.ask("GET", "/api/memories")["memories"]})
    return session, turns


def until(there: Callable[[], bool], seconds: float = 30) -> None:
    """The background works when it can, and tells nobody: look again and again."""
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)
