"""The library as a Python developer meets it: settings written in Python, a session as an object, templates and skills
from code, and import paths that hold what the documents say. Everything goes through `App`.
"""

import ast
import json
import re
import subprocess
import sys
from collections.abc import AsyncGenerator
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lamina import App, Settings
from lamina.errors import InputError, NotFoundError, OwnerError, SettingsError
from lamina.events import Ended, Text, TurnEvent
from lamina.providers.scripted import ScriptedProvider
from lamina.records import Template
from lamina.tools import Tool, built_in_tools
from tests.providers.serving import FORMS, serving

PLAIN = Settings(memory=False, memory_deadline=60_000)
HELLO = [[{"text": "Hello."}]]
ROOT = Path(__file__).parent.parent


async def text_of(events: AsyncGenerator[TurnEvent]) -> str:
    seen = [event async for event in events]
    last = seen[-1]
    assert isinstance(last, Ended)
    assert last.state == "complete", last.error
    return "".join(event.text for event in seen if isinstance(event, Text))


@pytest.mark.parametrize("name", ["openai", "anthropic"])
async def test_settings_written_in_python_name_provider_model_and_key(tmp_path: Path, name: str) -> None:
    form = next(form for form in FORMS if form.name == name)
    async with serving(form.good(True)) as served:
        settings = Settings(provider=name, model="small-1", api_key="sk-own", base_url=served.url, memory=False)
        async with App.open(tmp_path / "chats.db", settings=settings) as app:
            session = await app.session("ann")
            assert await text_of(session.ask("Hello")) == "Hello 你好🙂 and bye"
            assert await text_of(session.ask("And now?", model="large-2")) == "Hello 你好🙂 and bye"
    sent = [json.loads(request.body)["model"] for request in served.requests]
    assert sent == ["small-1", "large-2"], "the model of the settings, and that of one turn"
    keys = [request.headers.get("authorization") or request.headers.get("x-api-key") for request in served.requests]
    assert all("sk-own" in str(key) for key in keys)
    assert "sk-own" not in repr(settings)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"budget": -1}, "the setting budget must be a whole number of at least 0, not -1"),
        ({"provider": "opnai"}, "the setting provider cannot be 'opnai'"),
        ({"layout": "loose"}, "the setting layout cannot be 'loose'"),
        ({"memory": "perhaps"}, "the setting memory must be true or false"),
        ({"base_url": "localhost"}, "the setting base_url cannot be 'localhost'"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_its_name(changes: dict[str, Any], found: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(found)):
        Settings(**changes)


def test_the_environment_and_a_file_are_two_ways_to_build_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lamina.toml").write_text("budget = 500\nmemories = 2\n", encoding="utf-8")
    monkeypatch.setenv("LAMINA_BUDGET", "900")
    monkeypatch.setenv("LAMINA_PROVIDER", "openai")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-own")
    monkeypatch.chdir(tmp_path)
    environment = Settings.from_environment()
    assert (environment.budget, environment.memories, environment.api_key) == (900, 5, "sk-own")
    file = Settings.from_file(tmp_path)
    assert (file.budget, file.memories, file.provider, file.api_key) == (500, 2, "", "")
    both = Settings.load(tmp_path)
    assert (both.budget, both.memories, both.provider) == (900, 2, "openai")
    assert Settings.from_environment({"LAMINA_BUDGET": "70"}).budget == 70


async def test_settings_without_a_store_take_that_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    async with App.open(settings=PLAIN, provider=ScriptedProvider(HELLO), work=False) as app:
        await app.session("ann")
        assert app.settings.approvals == str(tmp_path / "state" / "lamina" / "approved.json")
    assert (tmp_path / "data" / "lamina" / "lamina.db").exists()


def rows_of_settings() -> str:
    """The table of all settings, from their docstrings; one that has none is missing in it."""
    tree = ast.parse((ROOT / "src/lamina/settings/__init__.py").read_text(encoding="utf-8"))
    (settings,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    rows: list[str] = []
    for field, said in pairwise(settings.body):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(said, ast.Expr) and isinstance(said.value, ast.Constant):
            value, meaning = getattr(Settings(), field.target.id), " ".join(str(said.value.value).split())
            default = f"`{value}`" if value not in ("", None, {}, ()) else ""
            rows.append(f"| `{field.target.id}` | {default} | {meaning} |")
    return "\n".join(rows)


def test_every_field_of_the_settings_has_a_docstring_and_a_row_on_the_page() -> None:
    rows = rows_of_settings()
    assert [field.name for field in fields(Settings)] == re.findall(r"^\| `(\w+)`", rows, re.MULTILINE)
    page = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    assert rows in page, f"docs/reference/settings.md should have\n{rows}"


async def test_a_session_is_an_object(tmp_path: Path) -> None:
    provider = ScriptedProvider([[{"text": "Hello, Ann."}], [{"text": "Budget talk."}]], repeat=True)
    async with App.open(tmp_path / "chats.db", settings=PLAIN, provider=provider, work=False) as app:
        session = await app.session("ann", title="Budget", scenario="office", app="Excel", mode="plan")
        assert (session.record.title, session.record.app, session.record.mode) == ("Budget", "Excel", "plan")
        assert await text_of(session.ask("Hello")) == "Hello, Ann."
        assert "What now?" in str((await session.context("What now?")).messages)
        assert len(provider.contexts) == 1, "a context is not sent"
        assert [message.text for message in await session.messages()] == ["Hello", "Hello, Ann."]

        again = await app.session("ann", session.session_id)
        assert (await again.update(title="Plans")).title == "Plans"
        answer = (await session.messages())[-1]
        await session.collect(answer.message_id)
        assert (await again.messages())[-1].is_collected
        await session.collect(answer.message_id, on=False)
        assert not (await again.messages())[-1].is_collected

        running = await again.start("Once more")
        assert (await running.wait()).state == "complete"
        short, whole = await session.branch(2, title="Short"), await session.branch()
        assert [message.text for message in await short.messages()] == ["Hello", "Hello, Ann."]
        assert len(await whole.messages()) == 4
        assert short.record.parent_id == session.session_id
        await short.delete()
        with pytest.raises(NotFoundError):
            await app.session("ann", short.session_id)
        assert (await session.end()).ended is not None


async def test_a_session_object_compacts(tmp_path: Path) -> None:
    provider = ScriptedProvider([[{"text": "word " * 400}]], repeat=True)
    async with App.open(tmp_path / "chats.db", settings=PLAIN, provider=provider, work=False) as app:
        session = await app.session("ann")
        for number in range(3):
            await text_of(session.ask(f"Question {number}: {'some words ' * 200}"))
        folded = await session.compact()
        assert folded.after < folded.before


async def test_a_session_object_is_its_owners_alone(tmp_path: Path) -> None:
    async with App.open(tmp_path / "chats.db", settings=PLAIN, provider=ScriptedProvider(HELLO), work=False) as app:
        session = await app.session("ann")
        with pytest.raises(NotFoundError):
            await app.session("bob", session.session_id)
        for owner in ("@shared", "@requests"):
            with pytest.raises(OwnerError):
                await app.session(owner)
            with pytest.raises(OwnerError):
                await app.add_templates(owner, Template(name="x", content="y"))
        with pytest.raises(InputError, match="does not accept title"):
            await app.session("ann", session.session_id, title="Other")


async def test_the_calls_with_owner_and_session_id_work_as_before(tmp_path: Path) -> None:
    provider = ScriptedProvider(HELLO, repeat=True)
    async with App.open(tmp_path / "chats.db", settings=PLAIN, provider=provider, work=False) as app:
        await app.add_templates("ann", Template(name="city", content="We are in {{city}}."))
        session = await app.new_session("ann", scenario="common", mode="ask")
        values = {"city": "Kyoto"}
        assert await text_of(app.run("ann", session.session_id, "Hello", values=values, key="1")) == "Hello."
        running = await app.start("ann", session.session_id, "Hello", values=values)
        await running.wait()
        context = await app.context("ann", session.session_id, "Hello", values=values)
        assert all("We are in Kyoto." in each.system for each in (context, *provider.contexts))
        with pytest.raises(TypeError, match="valeus"):
            await app.context("ann", session.session_id, "Hello", valeus=values)  # pyright: ignore[reportCallIssue] -- on purpose


async def test_the_phase_of_one_turn_stands_behind_the_rules(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("Be brief.", encoding="utf-8")
    provider = ScriptedProvider(HELLO, repeat=True)
    settings = Settings(memory=False, workspace=str(tmp_path))
    async with App.open(tmp_path / "chats.db", settings=settings, provider=provider, work=False) as app:
        session = await app.session("ann")
        await text_of(session.ask("Hello", phase_prompt="Only plan."))
    sent = json.dumps(provider.contexts[0].messages)
    assert 0 < sent.index("Be brief.") < sent.index("Only plan.") < sent.index("Hello")


async def test_another_model_for_a_turn_is_sent_the_rules_again(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("Be brief.", encoding="utf-8")
    provider = ScriptedProvider(HELLO, repeat=True)
    settings = Settings(memory=False, workspace=str(tmp_path), model="one")
    async with App.open(tmp_path / "chats.db", settings=settings, provider=provider, work=False) as app:
        session = await app.session("ann")
        for model in ("one", "one", "two"):
            await text_of(session.ask("Hello", model=model))
    assert [options["model"] for options in provider.options] == ["one", "one", "two"]
    said = [str(context.messages[-1]["content"]).count("Be brief.") for context in provider.contexts]
    assert said == [0, 0, 1], "at first they are in the system message"


async def test_templates_and_skills_are_added_from_python(tmp_path: Path) -> None:
    skill = tmp_path / "read-tables"
    skill.mkdir()
    (skill / "SKILL.md").write_text("---\nname: read-tables\ndescription: Reads tables.\n---\nRow by row.\n")
    provider = ScriptedProvider(HELLO, repeat=True)
    async with App.open(tmp_path / "chats.db", settings=PLAIN, provider=provider, work=False) as app:
        await app.add_shared_templates(Template(name="house", content="For everybody.", scenario="office"))
        (first,) = await app.add_templates("ann", Template(name="tidy", content="Tidy up.", is_skill=True))
        (second,) = await app.add_templates("ann", Template(name="tidy", content="Tidy it.", is_skill=True))
        assert first.template_id == second.template_id, "it was replaced"
        await app.import_templates("ann", skill)
        ann = await (await app.session("ann", scenario="office", skill="read-tables")).context("Hello")
        bob = await (await app.session("bob", scenario="office")).context("Hello")
        assert all(words in ann.system for words in ("For everybody.", "Tidy it.", "Row by row."))
        assert "For everybody." in bob.system
        assert "Tidy" not in bob.system
        assert "tables" not in bob.system
        with pytest.raises(InputError, match="name is empty"):
            await app.add_templates("ann", Template(name="ok", content="kept?"), Template(content="no name"))
        with pytest.raises(InputError, match="cannot be seen"):
            await app.add_templates("ann", Template(name="hidden", content="a\u202eb"))
        assert [each.name for each in await app.store.templates.list("ann")] == ["read-tables", "tidy"]


async def test_tools_of_your_own_stand_beside_those_that_ship(tmp_path: Path) -> None:
    def weather(city: str) -> str:
        """The weather of a city today."""
        return f"sunny in {city}"

    (tmp_path / "notes.txt").write_text("The key is under the mat.", encoding="utf-8")
    calls = [
        {"call": "read_file", "arguments": {"path": "notes.txt"}},
        {"call": "weather", "arguments": {"city": "Paris"}},
    ]
    provider = ScriptedProvider([calls, [{"text": "Done."}]])
    settings = Settings(memory=False, workspace=str(tmp_path), mode="agent")
    tools = built_in_tools(settings, [Tool.of(weather)])
    async with App.open(tmp_path / "chats.db", settings=settings, provider=provider, tools=tools, work=False) as app:
        session = await app.session("ann")
        assert await text_of(session.ask("Look")) == "Done."
    sent = str(provider.contexts[1].messages)
    assert "under the mat" in sent
    assert "sunny in Paris" in sent


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("lamina.events", "Began Ended Notice Text ToolCallEvent ToolResult TurnEvent Usage"),
        ("lamina.tools", "Decision Outcome Tool ToolRegistry built_in_tools file_tools"),
        ("lamina.records", "Template NewSession TurnOptions Session StoredMessage"),
        ("lamina.providers.scripted", "ScriptedProvider"),
        ("lamina.app.session", "SessionHandle"),
    ],
)
def test_documented_import_paths_hold_and_load_no_other_package(module: str, names: str) -> None:
    page = (ROOT / "docs" / "guide" / "library.md").read_text(encoding="utf-8")
    assert f"`{module}`" in page
    assert [name for name in names.split() if f"`{name}`" not in page] == []
    code = (
        f"import sys; from {module} import {', '.join(names.split())}; print(*{{n.split('.')[0] for n in sys.modules}})"
    )
    done = subprocess.run([sys.executable, "-Ic", code], capture_output=True, text=True, check=True)
    known = sys.stdlib_module_names | {"lamina", "__main__", "_virtualenv", "_lamina", "sitecustomize"}
    foreign = {name for name in done.stdout.split() if name not in known and not name.startswith(("_", "distutils"))}
    assert not foreign
