"""scripts/walk.py follows a real request, and its page names files that exist."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scripts.walk import PACKAGE, PAGE, Walk, page_with_walk

ROOT = Path(__file__).parent.parent


def walk(*options: str) -> Any:
    command = [sys.executable, "-m", "scripts.walk", "--json", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("form", ["openai", "api"])
def test_a_walk_goes_from_the_socket_through_engine_and_store_to_the_provider_and_back(form: str) -> None:
    found = walk("--form", form)
    files = {file["path"]: file for file in found["files"]}
    assert next(iter(files)).startswith("gateway/"), "the request arrives there"
    assert {"gateway", "engine", "assembly", "store", "providers"} <= set(found["packages"])
    assert "ScriptedProvider.stream" in files["providers/scripted.py"]["functions"]
    assert [path for path in files if not (PACKAGE / path).is_file()] == []
    assert all(file["calls"] >= len(file["functions"]) for file in files.values())
    assert found["file_changes"] > found["package_changes"] > len(found["packages"])
    assert any("_supervise" in task for task in found["tasks"]), "the turn runs in a task of its own"
    assert not any("Limits.run" in name for file in files.values() for name in file["functions"]), "a periodic task"


def test_the_page_names_files_that_exist_and_takes_a_new_walk() -> None:
    page = PAGE.read_text(encoding="utf-8")
    named = re.findall(r"^[\w/]+\.py$", page, re.MULTILINE)
    assert len(named) > 10
    assert [name for name in named if not (PACKAGE / name).is_file()] == []
    written = page_with_walk(page, Walk("openai", {"engine/turn.py": ["run"]}))
    assert re.findall(r"^[\w/]+\.py$", written, re.MULTILINE) == ["engine/turn.py"]
    assert "1 files, 1 functions" in written
