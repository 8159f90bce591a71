"""What the bot itself says, in both languages, side by side. Markdown, as the answers are."""

COMMANDS: dict[str, tuple[str, str]] = {
    "new": ("Begin a new session", "新建会话"),
    "stop": ("Stop the answer that is being written", "停止正在生成的回答"),
    "collect": ("Collect the last answer, or the one you reply to", "收藏最近的回答，或所回复的回答"),
    "uncollect": ("No longer collect it", "取消收藏"),
    "memory": ("What is remembered of you", "查看关于你的记忆"),
    "context": ("What the model saw last, layer by layer", "模型最近一次看到的内容（按层）"),
    "mode": ("agent, plan or ask", "切换模式：agent、plan 或 ask"),
    "help": ("What this bot can do", "使用说明"),
}
"""The menu, in this order."""
TEXTS: dict[str, tuple[str, str]] = {
    "hello": (
        "Hello! Write to me, or send a picture with a question. /help shows what else there is.",
        "你好！直接给我发消息，或发送图片并附上问题。/help 查看更多功能。",
    ),
    "help": (
        "I understand text and pictures (PNG, JPEG, GIF, WebP; up to {size} MB). An album is one question.\n\n"
        "{commands}\n\n"
        "`/memory add …` remembers a fact, `/memory forget 2` forgets the second one of the list.\n"
        "In groups I answer when I am mentioned or replied to, and to commands. What each person says in each chat "
        "and topic is a conversation of its own.",
        "我能理解文字与图片（PNG、JPEG、GIF、WebP，不超过 {size} MB）。一组图片算作一个问题。\n\n"
        "{commands}\n\n"
        "`/memory add …` 添加一条记忆，`/memory forget 2` 忘记列表中的第二条。\n"
        "在群组中，只有提到我、回复我或使用命令时我才会回答。每个人在每个聊天与话题中的对话各自独立。",
    ),
    "refused": (
        "This bot is private. Your id is `{id}`; whoever runs it can let you in.",
        "这是私人机器人。你的编号是 `{id}`，可请运行者将你加入名单。",
    ),
    "other": (
        "I understand text and pictures only (PNG, JPEG, GIF, WebP). Please write it.",
        "我只能理解文字与图片（PNG、JPEG、GIF、WebP），请用文字告诉我。",
    ),
    "too_large": (
        "The picture is too large: at most {size} MB. Please send it smaller, or as a photo.",
        "图片过大：不能超过 {size} MB。请压缩后再发，或以照片方式发送。",
    ),
    "no_picture": (
        "This is no picture that I can read (PNG, JPEG, GIF or WebP).",
        "这不是我能读取的图片（PNG、JPEG、GIF 或 WebP）。",
    ),
    "fetch": (
        "The picture could not be fetched from Telegram. Please send it again.",
        "无法从 Telegram 获取该图片，请重新发送。",
    ),
    "wait": (
        "You are quicker than I am: {count} of your messages are still waiting. Please wait a little, then send the "
        "rest again.",
        "消息太快了：还有 {count} 条在等待处理。请稍候再重新发送其余消息。",
    ),
    "shed": (
        "I am very busy and could not take this message. Please send it again in a while.",
        "目前非常繁忙，未能处理此消息。请稍后重新发送。",
    ),
    "new": ("A new session. What I remember of you stays.", "已新建会话。关于你的记忆仍然保留。"),
    "mode": ("The mode is `{mode}`. {what}", "当前模式：`{mode}`。{what}"),
    "mode.ask": ("It answers without tools.", "只回答，不使用工具。"),
    "mode.plan": ("It reads and plans; it changes nothing.", "只读取与规划，不做任何更改。"),
    "mode.agent": (
        "It may use tools; what would need a yes is refused, since nobody can be asked here.",
        "可以使用工具；需要确认的操作一律拒绝，因为此处无法确认。",
    ),
    "mode.none": (
        "There are no tools here; who runs the bot can offer them (LAMINA_TELEGRAM_TOOLS).",
        "此处没有工具；运行者可通过 LAMINA_TELEGRAM_TOOLS 提供。",
    ),
    "mode.unknown": (
        "There is no mode {mode}. Choose `/mode agent`, `/mode plan` or `/mode ask`.",
        "没有模式 {mode}。请选择 `/mode agent`、`/mode plan` 或 `/mode ask`。",
    ),
    "collected": ("★ Collected: {text}", "★ 已收藏：{text}"),
    "uncollected": ("☆ No longer collected: {text}", "☆ 已取消收藏：{text}"),
    "no_answer": ("There is no answer here yet.", "这里还没有回答。"),
    "unknown_answer": (
        "I do not find the answer that you reply to. Reply to one of mine.",
        "找不到所回复的回答。请回复我的某条回答。",
    ),
    "memories": ("What I remember ({count}):", "我记得（{count} 条）："),
    "memories.none": ("I remember nothing of you yet.", "我还没有关于你的记忆。"),
    "memories.off": ("Memory is switched off here.", "此处已关闭记忆。"),
    "remembered": ("Remembered: {text}", "已记住：{text}"),
    "forgotten": ("Forgotten.", "已忘记。"),
    "memory.usage": (
        "`/memory` lists, `/memory add …` remembers, `/memory forget 2` forgets the second of the list.",
        "`/memory` 查看列表，`/memory add …` 添加，`/memory forget 2` 忘记列表中的第二条。",
    ),
    "memory.number": (
        "There is no number {number} in the list that you saw last. `/memory` shows it again.",
        "最近的列表中没有编号 {number}。`/memory` 可再次查看。",
    ),
    "context": ("{tokens} of {budget} tokens ({counter})", "{budget} 中已用 {tokens} 个 token（{counter}）"),
    "context.none": ("Nothing was sent to the model here yet.", "此处还没有向模型发送过内容。"),
    "context.cut": ("left out: {tokens} tokens", "未放入：{tokens} 个 token"),
    "idle": ("Nothing is being written just now.", "当前没有正在生成的回答。"),
    "unknown": ("I do not know /{name}. See /help.", "没有命令 /{name}。参见 /help。"),
    "ended.stopped": ("⏹ Stopped. What came is kept.", "⏹ 已停止。已有内容已保留。"),
    "ended.interrupted": (
        "⏹ Interrupted: the bot was stopped. What came is kept; ask again for the rest.",
        "⏹ 已中断：机器人已停止。已有内容已保留；可再次提问。",
    ),
    "ended.broken": ("⚠ It broke off: {error}. What came is kept.", "⚠ 已中断：{error}。已有内容已保留。"),
    "ended.failed": ("⚠ It failed: {error}", "⚠ 失败：{error}"),
    "ended.empty": ("The model said nothing.", "模型没有回答。"),
    "using": ("⚙ {name} …", "⚙ {name} ……"),
    "error": ("⚠ {error}", "⚠ {error}"),
}


def say(lang: str, name: str, /, **values: object) -> str:
    """One text in one language, with what it needs filled in."""
    return TEXTS[name][lang == "zh"].format(**values)


def menu(lang: str) -> dict[str, str]:
    return {name: both[lang == "zh"] for name, both in COMMANDS.items()}
