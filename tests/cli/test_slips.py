"""What somebody mistypes or leaves out is said, with its name, before anything is sent or made."""

import re
import subprocess
import sys

import pytest

from lamina.cli.say import Say
from lamina.text.messages import Phrase
from tests.cli.process import Lamina


@pytest.fixture
def slips(lamina: Lamina) -> Lamina:
    lamina.script([{"text": "Well."}])
    return lamina


def test_rules_that_a_setting_names_and_that_are_not_there_are_said_wherever_people_talk(slips: Lamina) -> None:
    typo = {"LAMINA_RULES": ".lamina/ruels.md"}
    what = "warning: the workspace has no rules, .lamina/ruels.md does not exist: only the instructions are injected\n"
    asked = slips.run("ask", "Hello", **typo)
    assert (asked.returncode, asked.stdout, asked.stderr) == (0, "Well.\n", what)
    assert slips.run("chat", given="Hello\n", **typo).stderr.startswith(what)
    chinese = slips.run("ask", "你好", "--lang", "zh", **typo).stderr
    assert "工作区没有规则，.lamina/ruels.md 不存在：只注入指令" in chinese
    assert "! files      .lamina/ruels.md does not exist, but a setting names it" in slips.run("doctor", **typo).stdout
    asked = slips.run("ask", "Hello")
    assert asked.stderr == "warning: the workspace has no rules: only the instructions are injected\n"


def test_the_gateway_says_at_its_start_that_rules_are_missing(slips: Lamina) -> None:
    environ = slips.environ(LAMINA_RULES="ruels.md", LAMINA_WORKSPACE=".")
    with subprocess.Popen(
        [sys.executable, "-m", "lamina", "serve", "--listen", "127.0.0.1:0", "--no-open"], cwd=slips.folder, text=True,
        env=environ, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout
        process.stdout.readline()  # it runs
        process.terminate()
        _, told = process.communicate()
    assert told.startswith("warning: ruels.md does not exist, but a setting names it\n")


READING = [
    ("sessions",), ("sessions", "show", "last"), ("sessions", "search", "x"), ("sessions", "end", "last"), ("memory",),
    ("memory", "search", "x"), ("memory", "profile"), ("keys",), ("skills",), ("trace", "show", "last"),
    ("context", "Hello", "--session", "last"), ("worker", "--once"), ("ask", "Hello", "--session", "last"),
    ("chat", "--resume", "last"),
]  # fmt: skip


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_a_store_that_was_named_and_is_not_there_is_said_and_not_made(lamina: Lamina, command: tuple[str, ...]) -> None:
    told = "error: there is no store at 'typo.db'\nnext: check --store or LAMINA_STORE\n"
    assert lamina.error(*command, code=4, LAMINA_STORE="typo.db") == told
    assert lamina.error(*command, "--store", "typo.db", code=4) == told
    assert not list(lamina.folder.glob("*.db"))


def test_what_has_something_to_keep_makes_the_store_that_was_named(lamina: Lamina) -> None:
    for number, command in enumerate(
        [("sessions", "new"), ("memory", "add", "x"), ("memory", "profile", "a", "b"), ("keys", "new", "--name", "n")]
    ):
        lamina(*command, "--store", f"{number}.db")
        assert (lamina.folder / f"{number}.db").exists()


def test_in_the_usual_place_there_is_nothing_yet_and_the_place_is_named(lamina: Lamina) -> None:
    usual = {"LAMINA_STORE": "", "XDG_DATA_HOME": str(lamina.folder / "data")}
    place = str(lamina.folder / "data" / "lamina" / "lamina.db")
    for command, says in {
        "sessions": "ann has no sessions", "memory": "nothing is remembered about you (the user ann)",
        "keys": "ann has no keys",
        "skills": "ann has no templates or skills",
    }.items():  # fmt: skip
        assert lamina(command, **usual) == f"{says} in {place}\n"
    assert lamina("sessions", "--lang", "zh", **usual) == f"ann 没有会话（存储：{place}）\n"
    assert lamina.json("sessions", **usual) == []


def test_the_help_says_which_workspace_counts_by_default(lamina: Lamina) -> None:
    def said(command: str) -> str:
        return " ".join(lamina(command, "--help", COLUMNS="300").split())

    assert "rules are used in every chat; none by default" in said("serve")
    assert "the current folder by default" in said("telegram"), "as the bot does: see docs/guide/telegram.md"


@pytest.mark.parametrize("name", ["IDENTITY", "CONTEXT", "INSTRUCTIONS", "MCP"])
def test_a_file_that_a_setting_names_and_that_is_not_there_is_said_before_a_session_is_made(
    slips: Lamina, name: str
) -> None:
    gone = {f"LAMINA_{name}": "nofile.md"}
    next_step = "restore the file, or remove the setting" if name == "INSTRUCTIONS" else "check the path\n"
    told = f"error: LAMINA_{name} names 'nofile.md', which does not exist\nnext: {next_step}"
    for done in (slips.run("ask", "Hello", **gone), slips.run("chat", given="Hello\n", **gone)):
        assert (done.returncode, done.stderr[: len(told)]) == (2, told)
    assert not (slips.folder / "chats.db").exists()
    checked = slips.run("doctor", **gone)
    assert checked.returncode == 1
    assert "✗ files" in checked.stdout
    assert "nofile.md" in checked.stdout


def test_a_file_that_the_settings_file_names_and_that_is_not_there_is_said_with_its_place(slips: Lamina) -> None:
    (slips.folder / "lamina.toml").write_text('[cli]\nidentity = "nofile.md"\n', encoding="utf-8")
    assert slips.error("ask", "Hello").startswith("error: lamina.toml [cli]: identity names '")


def test_the_embedded_model_answers_for_no_other(lamina: Lamina) -> None:
    told = lamina.error("ask", "Hello", "--model", "gpt-5")
    assert told.startswith("error: there is no model 'gpt-5' here: the embedded one answers\nnext: set LAMINA_PROVIDER")
    assert lamina.error("serve", "--model", "gpt-5", "--listen", "127.0.0.1:0") == told
    assert lamina.error("ask", "Hello", LAMINA_MODEL="gpt-5") == told, "however it is named"
    assert lamina.error("chat", LAMINA_MODEL="gpt-5") == told
    assert lamina.error("serve", "--listen", "127.0.0.1:0", LAMINA_MODEL="gpt-5") == told
    assert not (lamina.folder / "chats.db").exists()
    assert "✗ provider   there is no model 'gpt-5' here" in lamina.run("doctor", LAMINA_MODEL="gpt-5").stdout
    with lamina.terminal("chat") as terminal:
        terminal.ready()
        terminal.say("/model gpt-5", "there is no model 'gpt-5' here")
        terminal.say("/model", "SmolLM2")


@pytest.mark.parametrize(
    ("command", "lists"),
    [
        (("sessions", "show", "abcd"), "lamina sessions"), (("ask", "Hi", "--session", "abcd"), "lamina sessions"),
        (("context", "Hi", "--session", "abcd"), "lamina sessions"), (("memory", "show", "abcd"), "lamina memory"),
        (("keys", "revoke", "abcd"), "lamina keys"), (("skills", "show", "abcd"), "lamina skills"),
        (("store", "retry", "abcd"), "lamina store jobs"),
        (("trace", "show", "abcd"), "lamina sessions show ID --json"),
    ],
)  # fmt: skip
def test_what_is_not_there_comes_with_the_command_that_lists_what_is(
    slips: Lamina, command: tuple[str, ...], lists: str
) -> None:
    slips("sessions", "new")
    said = slips.error(*command)
    assert said.endswith(f"next: it does not exist, or it is not yours; {lists} lists what exists\n")


def test_a_store_below_the_home_folder_and_an_address_that_is_none(lamina: Lamina) -> None:
    home = {"HOME": str(lamina.folder)}
    lamina("sessions", "new", LAMINA_STORE="~/mine.db", **home)
    lamina("sessions", "new", "--store", "~/other.db", **home)
    lamina("sessions", "new", "--store", "sqlite:///~/third.db", **home)
    assert {path.name for path in lamina.folder.glob("*.db")} == {"mine.db", "other.db", "third.db"}
    for wrong in (
        "postgres:/x:secret@h/y",
        "postgresql:x:secret@h/y",
        "postgres//x:secret@h/y",
        " postgres://x:secret@h",
    ):
        said = lamina.error("sessions", LAMINA_STORE=wrong)
        assert said.startswith("error: LAMINA_STORE is not an address: ")
        assert said.endswith("\nnext: it looks like postgresql://user:password@host:5432/name\n"), "and no password"
        assert lamina.error("sessions", "new", "--store", wrong).startswith("error: --store is not an address: ")
    assert not list(lamina.folder.glob("postgres*"))


SAID_IN_CHINESE: list[tuple[tuple[str, ...], dict[str, str], str, str]] = [
    (("sessions", "--store", "typo.db"), {}, "'typo.db' 处没有存储", "请检查 --store 或 LAMINA_STORE"),
    (("sessions", "show", "abcd"), {}, "没有会话 'abcd'", "它不存在，或者不属于你；lamina sessions 可列出已有的"),
    (("memory", "show", "abcd"), {}, "没有记忆 'abcd'", "它不存在，或者不属于你；lamina memory 可列出已有的"),
    (("trace", "show", "abcd"), {}, "没有轮次 'abcd'", "它不存在，或者不属于你；lamina sessions show ID --json 可"),
    (("skills", "show", "abcd"), {}, "没有模板 'abcd'", "它不存在，或者不属于你；lamina skills 可列出已有的"),
    (("sessions", "new", "--skill", "abcd"), {}, "这里没有启用名为 'abcd' 的技能", "还没有启用任何技能"),
    (("sessions", "import", "no.json"), {}, "'no.json' 不存在", "请检查路径"),
    (("ask", "Hi"), {"LAMINA_IDENTITY": "no.md"}, "LAMINA_IDENTITY 所指的 'no.md' 不存在", "请检查路径"),
    (("ask", "Hi", "--workspace", "no"), {}, "工作区 'no' 不存在", "请指定已有的文件夹"),
    (("ask", "Hi"), {"LAMINA_PROVIDER": "openai"}, "没有为 openai 设置模型", "请设置 LAMINA_MODEL，或在 "),
    (("ask", "Hi"), {"LAMINA_PROVIDER": "openai", "LAMINA_MODEL": "m", "OPENAI_API_KEY": ""},
     "没有为 openai 设置密钥", "请设置 OPENAI_API_KEY 或 LAMINA_API_KEY"),
    (("ask", "Hi"), {"LAMINA_PROVIDER": "", "LAMINA_MODEL": "gpt-5"}, "这里没有模型 'gpt-5'：作答的是内置模型",
     "请把 LAMINA_PROVIDER 设为"),
    (("ask", "Hi"), {"LAMINA_PROVIDER": "openai", "LAMINA_MODEL": "m", "LAMINA_BASE_URL": "http://127.0.0.1:9/v1"},
     "无法连接 127.0.0.1", "它在运行吗？LAMINA_BASE_URL 是它的地址吗？"),
    (("ask", "Hi"), {"LAMINA_SCRIPT": "denied.json"}, "脚本返回 401", "请"),
    (("config",), {"LAMINA_BUDGET": "much"}, "LAMINA_BUDGET 须为不小于 0 的整数，而不是 'much'", "例如 8000"),
    (("config",), {"LAMINA_MEMRY": "on"}, "没有 LAMINA_MEMRY 这一设置", "你是指 LAMINA_MEMORY 吗？"),
    (("context", "Hi", "--budget", "much"), {}, "--budget 须为 token 数，而不是 'much'", "例如 8000"),
    (("context", "Hi", "--mode", "loud"), {}, "没有名为 'loud' 的模式", "可选：agent"),
    (("sessions", "new", "--mode", "loud"), {}, "--mode 没有 'loud' 这一选项", "可选：agent、plan、ask"),
    (("serve", "--listen", "foo"), {}, "'foo' 不是可以监听的地址", "请给出地址和端口：127.0.0.1:8765"),
    (("memory", "search", "x"), {"LAMINA_MEMORY": "off"}, "记忆功能已关闭", "请打开设置项 memory"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "environ", "what", "hint"), SAID_IN_CHINESE)
def test_the_commonest_slips_are_said_in_chinese_where_everything_is(
    slips: Lamina, command: tuple[str, ...], environ: dict[str, str], what: str, hint: str
) -> None:
    (slips.folder / "denied.json").write_text('[[{"fault": "status", "code": 401}]]', encoding="utf-8")
    slips("sessions", "new")
    said = slips.run(*command, LAMINA_LANG="zh", **environ)
    assert said.returncode
    first, second = said.stderr.splitlines()[-2:]  # before them a warning where the workspace has no rules
    assert first.startswith(f"错误：{what}")
    assert second.startswith(f"建议：{hint}")
    told = slips.run(*command, LAMINA_LANG="en", **environ).stderr
    assert not re.search("[\u4e00-\u9fff]", told), "and in English nothing changes"


def test_a_store_in_use_is_said_in_chinese_and_so_is_what_the_doctor_finds(lamina: Lamina) -> None:
    lamina.script([{"text": "Well."}])
    with lamina.terminal("chat") as terminal:
        terminal.ready()
        said = lamina.run("sessions", "--lang", "zh").stderr
    assert said.startswith("错误：存储 ")
    assert " (lamina chat) 使用\n建议：请在那个聊天里按 Ctrl-D 退出" in said
    found = lamina.run("doctor", "--lang", "zh", LAMINA_PROVIDER="openai").stdout
    assert "没有为 openai 设置模型" in found


def test_a_slot_without_a_value_and_a_mode_that_is_none_are_said_in_chinese_only(slips: Lamina) -> None:
    (slips.folder / "t.json").write_text('[{"name": "guide", "content": "In {{city}}."}]', encoding="utf-8")
    slips("skills", "import", "t.json")
    slips("sessions", "new")
    said = slips.error("context", "Hi", "--session", "last", "--lang", "zh")
    assert "错误：模板 guide 有插槽 {{city}}，但没有它的值" in said
    assert "lamina memory profile city 值，或在请求的 `values` 里给出（`retry` 也接受）；已有：无；设置 " in said
    with slips.terminal("chat", environ={"LAMINA_LANG": "zh"}) as terminal:
        terminal.ready()
        assert "/mode 没有 'foo' 这一选项" in terminal.say("/mode foo", "可选：agent")


def test_an_error_that_has_no_chinese_is_said_as_it_is() -> None:
    assert Say("zh").render("the moon fell down") == "the moon fell down"
    assert Say("en").render(Phrase("the moon fell down")) == "the moon fell down"
    assert Say("zh").render("memory.off") == "记忆功能已关闭"
