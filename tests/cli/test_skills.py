"""`lamina skills` as a real process."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.process import Lamina

TERMINAL = "\x1b]0;owned\x07\x1b[31m"
TEMPLATES: list[dict[str, Any]] = [
    {"name": "tables", "content": "You work in Excel. {{user}}", "scenario": "excel", "supported_apps": ["Excel"]},
    {"name": "平时", "content": "简洁地回答。", "description": "默认"},
]


def write(lamina: Lamina, value: object, name: str = "t.json") -> str:
    (lamina.folder / name).write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return name


def skill(lamina: Lamina, name: str, text: str | None = None, folder: str = "skills") -> Path:
    path = lamina.folder / folder / name
    path.mkdir(parents=True)
    head = f"---\nname: {name}\ndescription: How to {name}.\n---\nStep by step.\n"
    (path / "SKILL.md").write_text(head if text is None else text, encoding="utf-8")
    return path


def test_templates_are_imported_listed_and_shown(lamina: Lamina) -> None:
    lamina("sessions", "new")
    assert "no templates or skills" in lamina("skills")
    assert "imported: 2" in lamina("skills", "import", write(lamina, TEMPLATES))
    rows = {row["name"]: row for row in lamina.json("skills")}
    assert (rows["tables"]["scenario"], rows["tables"]["supported_apps"]) == ("excel", ["Excel"])
    assert (rows["平时"]["is_skill"], rows["平时"]["enabled"], rows["平时"]["shared"]) == (False, True, False)
    assert "You work in Excel. {{user}}" in lamina("skills", "show", "tables")
    assert lamina.json("skills", "show", rows["平时"]["template_id"])["content"] == "简洁地回答。"
    text = lamina("skills")
    assert "Excel" in text
    assert "json" in text


def test_importing_again_replaces_and_never_doubles(lamina: Lamina) -> None:
    lamina("skills", "import", write(lamina, TEMPLATES))
    before = {row["name"]: row["template_id"] for row in lamina.json("skills")}
    changed = [{**TEMPLATES[0], "content": "New."}]
    lamina("skills", "import", write(lamina, changed))
    assert {row["name"]: row["template_id"] for row in lamina.json("skills")} == before
    assert lamina.json("skills", "show", "tables")["content"] == "New."


def test_skills_come_from_a_folder_or_from_the_folders_in_it(lamina: Lamina) -> None:
    one = skill(lamina, "read-tables")
    skill(lamina, "draw-charts")
    assert "imported: 1" in lamina("skills", "import", str(one))
    assert "imported: 2" in lamina("skills", "import", "skills")
    assert [(row["name"], row["is_skill"]) for row in lamina.json("skills")] == [
        ("draw-charts", True), ("read-tables", True),
    ]  # fmt: skip
    assert "Step by step." in lamina("skills", "show", "read-tables")


def test_all_or_nothing(lamina: Lamina) -> None:
    error = lamina.error("skills", "import", write(lamina, [*TEMPLATES, {"name": "", "content": 7}]))
    assert "nothing was imported" in error
    skill(lamina, "good-one")
    skill(lamina, "bad-one", "no head")
    assert "nothing was imported" in lamina.error("skills", "import", "skills")
    assert "twice" in lamina.error("skills", "import", write(lamina, [TEMPLATES[0], TEMPLATES[0]]))
    assert lamina.json("skills") == []


def test_a_check_names_all_faults_and_stores_nothing(lamina: Lamina) -> None:
    wrong = [
        {"name": "", "content": 7, "supported_apps": "Excel", "colour": "red", "priority": "high"}, 5, TEMPLATES[0],
        {"content": "x"}, {"name": "odd", "content": "evil \u202e text"},
    ]  # fmt: skip
    done = lamina.run("skills", "check", write(lamina, wrong))
    assert (done.returncode, done.stderr) == (1, "")
    for part in ("name is empty", "content is 7", "supported_apps", "'colour'", "priority is 'high'",
                 "templates[1] is 5", "templates[3]: name",
                 "templates[4]: content contains characters that cannot be seen"):  # fmt: skip
        assert part in done.stdout, part
    assert "faults: 8" in done.stdout
    faults = json.loads(lamina.run("skills", "check", "t.json", "--json").stdout)["faults"]
    assert len(faults) == 8
    assert "2, no faults" in lamina("skills", "check", write(lamina, TEMPLATES))
    assert not (lamina.folder / "chats.db").exists()


def test_a_check_of_folders_names_the_faults_of_each(lamina: Lamina) -> None:
    skill(lamina, "good-one")
    skill(lamina, "two-faults", "---\nname: Other\nmetadata: {supported_apps: 5}\n---\ntext")
    skill(lamina, "no-head", "text")
    skill(lamina, "hidden", "---\nname: hidden\ndescription: d\n---\nevil \u202e text")
    skill(lamina, "not-yaml", "---\nname: [\n---\ntext")
    done = lamina.run("skills", "check", "skills")
    assert done.returncode == 1
    for part in ("names the skill 'Other'", "has the description None", "supported_apps is 5",
                 "no-head/SKILL.md has no", "hidden/SKILL.md contains characters",
                 "not-yaml/SKILL.md is not YAML", "faults: 6"):  # fmt: skip
        assert part in done.stdout, part


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "[" * 100_000, "nonsense", "7", '[{"name": "\\ud800", "content": "x"}]']
)
def test_a_wrong_file_is_an_error_of_two_lines(lamina: Lamina, text: str) -> None:
    name = write(lamina, text)
    assert lamina.error("skills", "import", name)
    checked = lamina.run("skills", "check", name)
    assert checked.returncode in (1, 2)
    assert "Traceback" not in checked.stderr


def test_places_that_are_not_there_are_named(lamina: Lamina) -> None:
    (lamina.folder / "empty").mkdir()
    assert "no SKILL.md" in lamina.error("skills", "import", "empty")
    assert "does not exist" in lamina.error("skills", "import", "nowhere")
    outside = lamina.folder / "secret.md"
    outside.write_text("---\nname: leak\ndescription: d\n---\ntreasure")
    (lamina.folder / "skills" / "leak").mkdir(parents=True)
    (lamina.folder / "skills" / "leak" / "SKILL.md").symlink_to(outside)
    assert "treasure" not in lamina.error("skills", "import", "skills")
    assert lamina.json("skills") == []


def test_they_are_switched_and_deleted_by_name(lamina: Lamina) -> None:
    lamina("skills", "import", write(lamina, TEMPLATES))
    assert "disabled tables" in lamina("skills", "disable", "tables")
    assert [row["enabled"] for row in lamina.json("skills") if row["name"] == "tables"] == [False]
    lamina("skills", "enable", "tables")
    assert all(row["enabled"] for row in lamina.json("skills"))
    assert "no terminal to ask" in lamina.error("skills", "delete", "平时")
    lamina("skills", "delete", "平时", "--yes")
    assert [row["name"] for row in lamina.json("skills")] == ["tables"]
    assert "no template 'chart'" in lamina.error("skills", "enable", "chart")
    lamina("skills", "import", write(lamina, [{**TEMPLATES[0], "scenario": "word"}]))
    assert "more than one template" in lamina.error("skills", "delete", "tables", "--yes")
    assert len(lamina.json("skills")) == 2


def test_shared_ones_are_everybodys_and_only_changed_with_the_flag(lamina: Lamina) -> None:
    lamina("skills", "import", write(lamina, TEMPLATES), "--shared")
    for user in ("ann", "bob"):
        assert {row["shared"] for row in lamina.json("skills", "--user", user)} == {True}
        assert "You work in Excel" in lamina("skills", "show", "tables", "--user", user)
    assert "add --shared" in lamina.error("skills", "disable", "tables")
    assert "add --shared" in lamina.error("skills", "delete", "tables", "--yes")
    lamina("skills", "disable", "tables", "--shared")
    lamina("skills", "delete", "平时", "--shared", "--yes")
    assert [(row["name"], row["enabled"]) for row in lamina.json("skills")] == [("tables", False)]


def test_fault_I1_the_templates_of_somebody_else_are_not_found(lamina: Lamina) -> None:
    lamina("skills", "import", write(lamina, TEMPLATES))
    for command in (["show", "tables"], ["disable", "tables"], ["delete", "tables", "--yes"]):
        assert "not yours" in lamina.error("skills", *command, "--user", "bob")
    assert lamina.json("skills", "--user", "bob") == []
    lamina("skills", "import", "t.json", "--user", "bob")
    lamina("skills", "delete", "tables", "--yes", "--user", "bob")
    assert len(lamina.json("skills")) == 2


def test_a_terminal_never_obeys_a_template_and_hidden_text_is_refused(lamina: Lamina) -> None:
    name = write(lamina, [{"name": f"x{TERMINAL}", "content": "c"}])
    refused = lamina.error("skills", "import", name)
    checked = lamina.run("skills", "check", name).stdout
    assert "characters that cannot be seen" in refused
    assert not set(refused + checked) & set("\x1b\x07")


def test_slots_that_have_no_value_yet_are_told_with_what_helps_and_are_no_fault(lamina: Lamina) -> None:
    name = write(lamina, [TEMPLATES[0], {**TEMPLATES[1], "content": "{{city}} {{ city }}", "enabled": False}])
    told = "warning: tables has the slot {{user}}, and turns need a value for it: lamina memory profile user VALUE\n"
    done = lamina.run("skills", "check", name)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", f"{told}templates: 2, no faults\n")
    assert lamina.json("skills", "check", name)["warnings"] == [told.strip()]
    assert told in lamina("skills", "import", name)
    lamina("memory", "profile", "user", "Ann")
    assert "warning" not in lamina("skills", "import", name)
    assert told in lamina("skills", "import", name, "--shared"), "others may have none"
    assert lamina.run("skills", "check", name, LAMINA_MISSING_SLOTS="keep").stdout == "templates: 2, no faults\n"
    assert "警告：tables 有插槽 {{user}}" in lamina("skills", "check", name, "--lang", "zh")


def test_it_speaks_chinese(lamina: Lamina) -> None:
    assert "已导入：2 个" in lamina("skills", "import", write(lamina, TEMPLATES), "--lang", "zh")
    assert "模板" in lamina("skills", LANG="zh_CN.UTF-8")
    assert "已停用 平时" in lamina("skills", "disable", "平时", "--lang", "zh")
    assert "没有问题" in lamina("skills", "check", "t.json", "--lang", "zh")
