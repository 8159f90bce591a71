"""What the commands say, in both languages, side by side."""

import json
import re
import unicodedata
from collections.abc import Callable

from lamina.cli.texts_chat import CHAT_TEXTS
from lamina.cli.texts_gateway import GATEWAY_TEXTS
from lamina.cli.texts_store import STORE_TEXTS
from lamina.cli.texts_telegram import TELEGRAM_TEXTS

DIRECTIONS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200b\u2060\ufeff"

FAMILIES = (
    "chat", "ask", "serve", "telegram", "sessions", "memory", "skills", "keys", "store", "worker", "trace", "doctor",
)  # fmt: skip
"""Commands over a store, each in a module of its name with a function `add_…`; most calls need none of them.
What each says is below, or in one of the `texts_…`: `name.help` is its line in the list."""

TEXTS: dict[str, tuple[str, str]] = {
    "about": (
        "lamina decides, byte for byte, what a language model sees, and can prove it.",
        "lamina 逐字节决定语言模型看到什么，并能事后证明。",
    ),
    "context.help": (
        "Assemble a context from files, or of a session, and show the messages and their receipt.",
        "从文件组装上下文，或组装存储中会话的上下文；显示消息与回执。",
    ),
    "context.examples": (
        "Examples:\n\n"
        '  lamina context "What is he like?" --rules rules.md --history chat.jsonl --budget 4000\n\n'
        "  lamina context --project examples/novel\n\n"
        '  lamina context "Hello" --history chat.json --for anthropic --json | jq .request\n\n'
        '  lamina context "And Tokyo?" --session last --values city=Kyoto\n\n'
        "A project folder may hold identity.md, rules.md, skill.md, memory.md (a fact a paragraph), context.md, "
        "tools.json, history.json or history.jsonl, and user.txt.",
        "示例：\n\n"
        '  lamina context "他的性格？" --rules rules.md --history chat.jsonl --budget 4000\n\n'
        "  lamina context --project examples/novel\n\n"
        '  lamina context "你好" --history chat.json --for anthropic --json | jq .request\n\n'
        '  lamina context "那东京呢？" --session last --values city=京都\n\n'
        "项目文件夹可包含 identity.md、rules.md、skill.md、memory.md（每段一条记忆）、context.md、"
        "tools.json、history.json 或 history.jsonl，以及 user.txt。",
    ),
    "opt.message": ("The user's message.", "用户消息。"),
    "opt.project": ("A folder with the files below under their usual names.", "按约定文件名存放下列文件的文件夹。"),
    "opt.identity": ("Identity; replaces the shipped one.", "身份；替换内置身份。"),
    "opt.rules": ("Rules of the user or the project.", "用户或项目规则。"),
    "opt.rules_of": (
        "A workspace whose instructions and rules are in force; with --session the folder you are in by default.",
        "工作区：采用其中生效的指令与规则；与 --session 同用时默认为当前文件夹。",
    ),
    "opt.skill": ("The system prompt of a skill.", "技能的系统提示词。"),
    "opt.memory": ("Memories, a paragraph each; fenced as data.", "记忆，每段一条；作为数据放入围栏。"),
    "opt.context": ("Context of the moment, such as a project's constraints.", "动态上下文，例如项目约束。"),
    "opt.tools": ("Tools: a JSON list in OpenAI's form.", "工具：OpenAI 格式的 JSON 列表。"),
    "opt.history": ("The chat so far: .json or .jsonl.", "已有对话：.json 或 .jsonl。"),
    "opt.mode": ("agent, plan or ask.", "agent、plan 或 ask。"),
    "opt.budget": ("Tokens that the request may have.", "请求的 token 预算。"),
    "opt.counter": (
        "seed, cjk, o200k, cl100k, qwen3, deepseek, … or the path of a tokenizer.json.",
        "seed、cjk、o200k、cl100k、qwen3、deepseek…… 或 tokenizer.json 的路径。",
    ),
    "opt.for": ("The request's grammar: openai, anthropic or gemini.", "请求格式：openai、anthropic 或 gemini。"),
    "opt.json": ("JSON: the request and its receipt.", "输出 JSON：请求与回执。"),
    "opt.payload": ("Only the request's bytes, as they would be sent.", "仅输出将要发送的请求字节。"),
    "opt.full": ("Show messages in full.", "完整显示消息。"),
    "opt.lang": ("What you read: en or zh.", "界面语言：en 或 zh。"),
    "opt.prompt_lang": ("The headings in the prompt: en or zh.", "提示词标题语言：en 或 zh。"),
    "opt.version": ("Show the version.", "显示版本。"),
    "config.help": ("Show every setting, its value and where it came from.", "显示每项设置、其值及来源。"),
    "rules.show": (
        "Show the files in force: size, tokens, hash, includes.",
        "显示生效的文件：大小、token、哈希。",
    ),
    "rules.check": ("Look for faults; the exit code is 1 when there are any.", "检查文件；发现问题时退出码为 1。"),
    "rules.approve": (
        "Approve a file with hidden characters as it is now, by its hash.",
        "批准含隐藏字符的文件的当前版本（按内容哈希记录）。",
    ),
    "rules.follow": (
        "Read messages from standard input, one a line, and show what each turn would inject.",
        "从标准输入逐行读取消息，显示每一轮会注入什么。",
    ),
    "opt.everywhere": ("Look at the AGENTS.md of every folder.", "检查所有文件夹中的 AGENTS.md。"),
    "opt.resume": (
        "The session is taken up again: everything is injected once more.",
        "恢复会话：全部内容重新注入一次。",
    ),
    "opt.channel": ("cli (default), telegram or gateway.", "cli（默认）、telegram 或 gateway。"),
    "opt.as_json": ("JSON, for scripts.", "输出 JSON，供脚本使用。"),
    "opt.workspace": ("The workspace; the current folder by default.", "工作区；默认为当前文件夹。"),
    "opt.folder": (
        "The working folder inside it, for nested AGENTS.md.",
        "工作区内的当前工作文件夹，用于查找嵌套的 AGENTS.md。",
    ),
    "opt.session": ("A file that keeps a session's injections.", "保存会话注入状态的文件。"),
    "last_injected": ("injected", "上次注入"),
    "changed_since": (", changed since", "，此后已变更"),
    "elsewhere": ("this session belongs to {path}", "此会话属于 {path}"),
    "instructions": ("instructions", "指令"),
    "rules": ("rules", "规则"),
    "turn": ("turn {turn}", "第 {turn} 轮"),
    "opt.path": ("The file, as `lamina rules check` names it.", "文件，如 `lamina rules check` 所示。"),
    "kind": ("kind", "类别"),
    "path": ("path", "路径"),
    "size": ("bytes", "字节"),
    "name": ("setting", "设置"),
    "value": ("value", "值"),
    "origin": ("from", "来源"),
    "default": ("default", "默认"),
    "no_rules": ("the workspace has no rules", "工作区没有规则"),
    "all_well": ("files: {count}, no faults", "{count} 个文件，没有问题"),
    "faults": ("faults: {count}", "{count} 处问题"),
    "note": ("note", "提示"),
    "counters": (
        "injections: {first} first, {repeated} repeated, {failed} failed; turns with stale rules: {stale_rule_turns}",
        "注入：首次 {first}，重复 {repeated}，失败 {failed}；规则过期的轮数：{stale_rule_turns}",
    ),
    "nothing_hidden": (
        "{path} holds nothing hidden: it needs no approval",
        "{path} 不含隐藏字符：无需批准",
    ),
    "approved": ("approved {hash}: {path}", "已批准 {hash}：{path}"),
    "rules_missing": ("{path} is not there, though a setting names it", "设置指定的 {path} 不存在"),
    "empty_rules": ("the rules file is empty: nothing is injected as rules", "规则文件为空：不会注入任何规则"),
    "colon": (": ", "："),
    "semicolon": ("; ", "；"),
    "error": ("error", "错误"),
    "listed": ("{command} lists those that are there", "{command} 可列出已有的"),
    "next": ("next", "建议"),
    "messages": ("Messages", "消息"),
    "receipt": ("Receipt", "回执"),
    "layer": ("layer", "层"),
    "tokens": ("tokens", "token"),
    "source": ("source", "来源"),
    "hash": ("hash", "哈希"),
    "why": ("reason", "原因"),
    "bytes": ("bytes", "字节"),
    "trust": ("trust", "信任"),
    "of_budget": ("{tokens:,} of {budget:,} tokens", "{tokens:,} / {budget:,} token"),
    "over.next": ("raise LAMINA_BUDGET, or shorten rules and instructions", "提高 LAMINA_BUDGET，或缩短规则与指令"),
    "over": ("over budget: the fixed part alone is too large", "超出预算：必须保留的部分已超出预算"),
    "free": ("free", "剩余"),
    "both": ("--json and --payload exclude each other", "--json 与 --payload 不能同时使用"),
    "warning": ("warning", "警告"),
    "dropped": (
        "{count} older messages left out ({tokens:,} tokens)",
        "省略较早的 {count} 条消息（{tokens:,} token）",
    ),
    "tiles": ("{segments} segments tile {size:,} bytes", "{segments} 个片段铺满 {size:,} 字节"),
    "more": ("… {chars:,} more characters (--full)", "…… 还有 {chars:,} 个字符（--full）"),
    "calls": ("calls", "调用"),
    "picture": ("[picture]", "[图片]"),
}


def texts(lang: str) -> dict[str, str]:
    """All texts in one language."""
    index = 1 if lang == "zh" else 0
    every = TEXTS | STORE_TEXTS | CHAT_TEXTS | GATEWAY_TEXTS | TELEGRAM_TEXTS
    return {"lang": lang, **{name: pair[index] for name, pair in every.items()}}


ZH_REASONS = {
    "always kept": "始终保留",
    "always kept, fenced": "始终保留，放入围栏",
    "fits the budget": "在预算之内",
    "the newest message": "最新消息",
    "the current turn": "当前轮次",
    "over the budget": "超出预算",
    "the history begins with a user message": "历史须以用户消息开头",
    "dropped": "省略",
    "operator": "运营者",
    "user": "用户",
    "model": "模型",
    "outside": "外部",
    "switched off by the setting `memory`": "已由设置项 `memory` 关闭",
    "added to the end": "追加在末尾",
    "it is new here": "此处新增",
    "it is gone from here": "此处已移除",
    "first request": "首个请求",
    "the window was cut": "窗口已删减",
    "the tools changed": "工具已改变",
    "the scenario changed": "场景已改变",
    "the last request cannot be built again": "无法重建上一个请求",
    "the form of the prompt changed": "提示词的格式已改变",
    "the session was compacted": "会话已压缩",
    "earlier steps of a turn were folded": "某一轮较早的步骤已折叠",
    "a memory was forgotten": "有记忆被遗忘",
    "a memory was edited": "有记忆被修改",
    "a memory was replaced": "有记忆被替换",
    "very many memories changed": "大量记忆已改变",
    "the profile changed": "个人资料已改变",
    "what is known of the session changed": "会话信息已改变",
    "a layer was switched off": "某一层已被关闭",
    "a summary is gone": "有摘要已移除",
    "a collected answer is gone": "有收藏的回答已移除",
    "new since the epoch began": "本纪元中新增",
    "no longer applies": "不再适用",
    "sent again, lest it fades": "再次发送，以免淡忘",
    "pinned": "已固定",
    "a standing wish": "长期要求",
    "words": "词语",
    "meaning": "语义",
    "day": "日期",
    "echo": "呼应",
    "short form": "简写",
    "title only": "仅标题",
    "left out": "省略",
}


ZH_PATTERNS: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (r"(words|meaning|day|echo) (\d\.\d\d)", lambda m: f"{ZH_REASONS[m[1]]} {m[2]}"),
    (r"(short form|title only|left out): (.+)", lambda m: f"{ZH_REASONS[m[1]]}：{reason_in('zh', m[2])}"),
    (r"(\w+) may take (\d+%) of the budget", lambda m: f"{m[1]} 最多占预算的 {m[2]}"),
    (r"epoch (\d+) began: (.+)", lambda m: f"第 {m[1]} 纪元开始：{reason_in('zh', m[2])}"),
    (r"replaces (\w+)", lambda m: f"替换 {m[1]}"),
    (r"no skill named (.+) is enabled here", lambda m: f"没有启用名为 {m[1]} 的技能"),
    (r"skipped: no answer within (\d+) ms", lambda m: f"已跳过：{m[1]} 毫秒内没有结果"),
)


def reason_in(lang: str, reason: str) -> str:
    """A reason or trust in the reader's language; what has no translation stays as it is."""
    if lang != "zh":
        return reason
    if reason in ZH_REASONS:
        return ZH_REASONS[reason]
    parts = [ZH_REASONS.get(part) or _by_pattern(part) for part in reason.split(", ")]
    return "，".join(parts) if all(parts) else reason


def _by_pattern(reason: str) -> str:
    found = ((re.fullmatch(pattern, reason), said) for pattern, said in ZH_PATTERNS)
    return next((said(match) for match, said in found if match), "")


def visible(text: str) -> str:
    """Control, direction and tag characters as people can see them: a terminal must not obey text from outside."""
    return "".join(f"⟨U+{ord(c):04X}⟩" if hidden(c) else c for c in text)


def escaped(text: str) -> str:
    """JSON whose control, direction and tag characters are escaped: the same value, and nothing for a terminal."""
    return "".join(json.dumps(c)[1:-1] if hidden(c) else c for c in text)


def hidden(c: str) -> bool:
    """Does a terminal obey this character, or show nothing where something is?"""
    if c in "\n\t" or (c.isascii() and c.isprintable()):
        return False
    if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or c in DIRECTIONS:
        return True
    return "\U000e0000" <= c <= "\U000e01ef"
