"""What `lamina chat`, `ask`, `trace` and `doctor` say, in both languages, side by side."""

CHAT_TEXTS: dict[str, tuple[str, str]] = {
    # options and arguments
    "opt.model": ("Which model answers.", "由哪个模型回答。"),
    "opt.chat.resume": (
        "Go on with a session: its id, at least 4 characters of it, or `last`.",
        "继续会话：标识、其开头至少 4 个字符，或 `last`。",
    ),
    "opt.chat.workspace": (
        "The folder whose rules and files count; the one you are in by default.",
        "工作区：采用其中的规则与文件；默认为当前文件夹。",
    ),
    "opt.ask.session": (
        "A session: its id, the beginning of it, `last`, or `new` (default).",
        "会话：标识、其开头、`last` 或 `new`（默认）。",
    ),
    "opt.ask.json": ("One JSON object, when the answer is complete.", "回答结束后输出一个 JSON 对象。"),
    "opt.request": ("Which request of the turn, from 1; the last by default.", "该轮的第几个请求；默认为最后一个。"),
    "opt.out": ("Write the bytes to a new file.", "将字节写入新文件。"),
    "opt.send": ("Send these bytes again and show both answers.", "再次发送这些字节，并列显示两个回答。"),
    "opt.online": (
        "Also ask providers elsewhere: this sends a tiny request.",
        "也询问外部服务：会发送一个极小的请求。",
    ),
    "arg.question": ("The question; the standard input stands below it.", "问题；标准输入的内容附在其后。"),
    "arg.turn": (
        "A turn: its id, at least 4 characters of it, or `last`; `last~1` is the one before it in its session.",
        "轮次：标识、其开头至少 4 个字符，或 `last`；`last~1` 为同一会话中的前一轮。",
    ),
    # what the commands are
    "chat.help": ("Talk with the model in the terminal.", "在终端中与模型对话。"),
    "chat.examples": (
        "Examples:\n\n"
        "  lamina chat\n\n"
        "  lamina chat --resume last --mode plan\n\n"
        "  lamina chat --workspace ~/novel --model qwen3\n\n"
        "  printf 'Hello\\nAnd again\\n' | lamina chat\n\n"
        "New sessions are in the mode `ask`, without tools. Files and commands come with `--mode agent`, with "
        "`/mode agent` in the chat, or with LAMINA_MODE=agent for all of them.\n\n"
        "In the chat /help shows the commands, Alt-Enter or Ctrl-J makes a new line, Ctrl-C interrupts an answer and "
        "keeps it, Ctrl-D leaves.",
        "示例：\n\n"
        "  lamina chat\n\n"
        "  lamina chat --resume last --mode plan\n\n"
        "  lamina chat --workspace ~/novel --model qwen3\n\n"
        "  printf '你好\\n再说一遍\\n' | lamina chat\n\n"
        "新会话默认为 `ask` 模式，不使用工具。要使用文件与命令：`--mode agent`、对话中 `/mode agent`，"
        "或设置 LAMINA_MODE=agent。\n\n"
        "对话中：/help 显示命令，Alt-Enter 或 Ctrl-J 换行，Ctrl-C 中断并保留回答，Ctrl-D 离开。",
    ),
    "ask.help": ("Ask one question; for pipes.", "提一个问题；可用于管道。"),
    "ask.examples": (
        "Examples:\n\n"
        '  lamina ask "What is a prompt cache?"\n\n'
        '  git diff | lamina ask "Write a commit message"\n\n'
        '  lamina ask "And in one sentence?" --session last\n\n'
        '  lamina ask "Hello" --json | jq -r .answer\n\n'
        "Where nobody can be asked, tools that need a yes are refused. The exit code is 0 for a complete answer, 1 for "
        "one that failed or was interrupted, 2 for bad input, 130 after Ctrl-C.",
        "示例：\n\n"
        '  lamina ask "什么是提示缓存？"\n\n'
        '  git diff | lamina ask "写一条提交说明"\n\n'
        '  lamina ask "用一句话说？" --session last\n\n'
        '  lamina ask "你好" --json | jq -r .answer\n\n'
        "无法询问确认时，需要确认的工具一律拒绝。退出码：完整回答 0，失败或中断 1，输入有误 2，Ctrl-C 130。",
    ),
    "trace.help": ("What past turns sent: show, diff, replay.", "过去各轮发送了什么：查看、比较、重放。"),
    "trace.show": ("Show a turn's requests and where each byte came from.", "显示一轮的请求及每个字节的来源。"),
    "trace.diff": (
        "Show where the requests of two turns part, and why; of one turn, its first and last.",
        "显示两轮请求从何处开始不同及原因；同一轮则比较首尾请求。",
    ),
    "trace.replay": (
        "Rebuild a request byte for byte, check its hash, and print it.",
        "逐字节重建请求，校验哈希并输出。",
    ),
    "trace.show.examples": (
        "Examples:\n\n  lamina trace show last\n\n  lamina trace show 3fa9 --request 1 --payload | jq .messages",
        "示例：\n\n  lamina trace show last\n\n  lamina trace show 3fa9 --request 1 --payload | jq .messages",
    ),
    "trace.diff.examples": (
        "Examples:\n\n  lamina trace diff 3fa9 last\n\n  lamina trace diff last last",
        "示例：\n\n  lamina trace diff 3fa9 last\n\n  lamina trace diff last last",
    ),
    "trace.replay.examples": (
        "Examples:\n\n  lamina trace replay last --out request.json\n\n  lamina trace replay last --send",
        "示例：\n\n  lamina trace replay last --out request.json\n\n  lamina trace replay last --send",
    ),
    "doctor.help": (
        "Check settings, store, provider, files and terminal, and say what to do.",
        "检查设置、存储、模型服务、文件与终端，并给出建议。",
    ),
    "doctor.examples": (
        "Examples:\n\n  lamina doctor\n\n  lamina doctor --online --json\n\nThe exit code is 0 when nothing is ✗.",
        "示例：\n\n  lamina doctor\n\n  lamina doctor --online --json\n\n没有 ✗ 时退出码为 0。",
    ),
    # columns
    "state.complete": ("complete", "完成"),
    "col.began": ("began", "开始"),
    "col.answer": ("answer", "回答"),
    "col.usage": ("usage", "用量"),
    "usage.prompt": ("prompt", "输入"),
    "usage.cached": ("cached", "缓存"),
    "usage.completion": ("completion", "输出"),
    "comma": (", ", "，"),
    "col.requests": ("requests", "请求"),
    # the chat
    "chat.opening": ("opening…", "正在打开……"),
    "chat.hello": (
        "/help shows the commands · Alt-Enter makes a new line · Ctrl-D leaves",
        "/help 显示命令 · Alt-Enter 换行 · Ctrl-D 离开",
    ),
    "chat.no_tools": (
        "mode ask: it only talks; /mode agent gives it files and commands",
        "ask 模式：仅对话；/mode agent 可使用文件与命令",
    ),
    "chat.keys": ("/help", "/help"),
    "chat.new": ("new", "新会话"),
    "chat.ctrl_c": ("Ctrl-C interrupts", "Ctrl-C 中断"),
    "chat.ctrl_d": ("Ctrl-D leaves", "Ctrl-D 离开"),
    "chat.thinking": ("thinking", "思考中"),
    "chat.stopping": ("stopping", "正在停止"),
    "chat.whole_seconds": ("{seconds} s", "{seconds} 秒"),
    "chat.seconds": ("{seconds:.1f} s", "{seconds:.1f} 秒"),
    "chat.tokens_in": ("{count:,} tokens in{cached}", "输入 {count:,} token{cached}"),
    "chat.tokens_out": ("{count:,} out", "输出 {count:,}"),
    "chat.cached": (" ({share:.0%} cached)", "（{share:.0%} 来自缓存）"),
    "chat.folded": ("{count} more lines · /tools", "还有 {count} 行 · /tools"),
    "chat.done": ("done", "完成"),
    "chat.failed": ("failed", "失败"),
    "chat.refused": ("refused", "已拒绝"),
    "chat.blocked": ("blocked", "已阻止"),
    "chat.ended.complete": ("complete", "完成"),
    "chat.ended.failed": ("the turn failed", "本轮失败"),
    "chat.ended.interrupted": ("the answer was interrupted; what came is kept", "回答中断；已收到的内容已保存"),
    "chat.was.interrupted": ("interrupted: this is what came", "已中断：以上为已收到的内容"),
    "chat.was.failed": ("the turn failed", "本轮失败"),
    "chat.no_result": ("no result", "没有结果"),
    "chat.stopped": ("⏸ interrupted; what came is kept", "⏸ 已中断；已收到的内容已保存"),
    "chat.wants": ("{name} wants to run:", "{name} 请求运行："),
    "chat.run_it": ("Run it? [y/N]", "运行吗？[y/N]"),
    "chat.bye": ("come back with: lamina chat --resume {id}", "继续此会话：lamina chat --resume {id}"),
    "chat.nothing": ("there was nothing to answer: no lines came in", "没有需要回答的内容：未收到任何行"),
    "chat.fresh": (
        "a new session begins with your next message; memories stay",
        "下一条消息将开始新会话；记忆保留",
    ),
    "chat.count": ("{count} messages", "{count} 条消息"),
    "chat.no_turn": ("nothing was said in this session yet", "此会话还没有任何对话"),
    "chat.no_turn.next": ("say something first", "请先说点什么"),
    "chat.which": ("which session?", "哪个会话？"),
    "chat.which.next": (
        "/resume ID, /resume last, or Tab behind /resume",
        "/resume 标识、/resume last，或在其后按 Tab",
    ),
    "chat.no_skills": (
        "there are no skills yet; lamina skills import brings some",
        "还没有技能；用 lamina skills import 导入",
    ),
    "chat.no_calls": ("no tool was called in the last turn", "上一轮没有调用工具"),
    "chat.context.last": ("What the model saw last", "模型上一次看到的内容"),
    "chat.context.next": ("What the model would see now", "模型此刻会看到的内容"),
    "chat.nothing_cut": ("nothing was left out", "没有省略任何内容"),
    "chat.cut": ("Left out or shortened:", "省略或缩短："),
    "chat.why": ("Turn {turn}, request {number} of {count}", "轮次 {turn}，第 {number}/{count} 个请求"),
    "chat.requests": ("the turn has {count} requests, counted from 1", "该轮共有 {count} 个请求，从 1 数起"),
    "chat.compacting": ("compacting…", "正在压缩……"),
    "chat.compacted": (
        "the history is now {after} tokens instead of {before} (summary by {by}); all of it is kept in the store",
        "历史由 {before} 压缩为 {after} token（摘要：{by}）；原文仍保存在存储中",
    ),
    "chat.model": (
        "{model} ({provider}), window {window}; /model NAME takes another",
        "{model}（{provider}），窗口 {window}；/model 名称 可切换",
    ),
    "chat.model_now": ("{model} ({provider}) answers now", "现在由 {model}（{provider}）回答"),
    "chat.unknown": ("there is no command {name}", "没有命令 {name}"),
    "chat.did_you_mean": ("did you mean /{name}?", "是想输入 /{name} 吗？"),
    "chat.see_help": ("/help shows all", "/help 显示全部"),
    "chat.help_keys": (
        "Alt-Enter or Ctrl-J makes a new line, ↑ and ↓ bring back earlier messages, Tab completes.\n"
        "Ctrl-C interrupts an answer and keeps it; at the prompt it clears. Ctrl-D leaves.",
        "Alt-Enter 或 Ctrl-J 换行，↑ ↓ 调出之前的消息，Tab 补全。\nCtrl-C 中断并保留回答；输入时清空。Ctrl-D 离开。",
    ),
    "mode.agent": (
        "works with files and commands; asks before what is dangerous",
        "可使用文件与命令；危险操作前会询问",
    ),
    "mode.plan": ("looks and plans, changes nothing", "查看并规划，不做更改"),
    "mode.ask": ("only talks", "仅对话"),
    "slash.new": ("begin a new session", "开始新会话"),
    "slash.new.arg": ("", ""),
    "slash.sessions": ("your latest sessions", "最近的会话"),
    "slash.sessions.arg": ("", ""),
    "slash.resume": ("go on with another session", "继续另一个会话"),
    "slash.resume.arg": (" ID", " 标识"),
    "slash.mode": ("agent, plan or ask", "agent、plan 或 ask"),
    "slash.mode.arg": (" [MODE]", " [模式]"),
    "slash.skill": ("skills, or choose one; none takes it away", "查看或选择技能；none 取消"),
    "slash.skill.arg": (" [NAME]", " [名称]"),
    "slash.rules": ("the instructions and rules in force", "生效的指令与规则"),
    "slash.rules.arg": ("", ""),
    "slash.memory": ("what is remembered of you, or found for words", "关于你的记忆，或按词查找"),
    "slash.memory.arg": (" [WORDS]", " [词]"),
    "slash.context": ("a bar for each layer, what was cut and why", "各层用量、省略了什么及原因"),
    "slash.context.arg": (" [WORDS]", " [词]"),
    "slash.why": ("where each byte of the last request came from", "上一个请求每个字节的来源"),
    "slash.why.arg": (" [N]", " [序号]"),
    "slash.tools": ("what the tools of the last turn said, in full", "上一轮工具的完整输出"),
    "slash.tools.arg": ("", ""),
    "slash.collect": ("collect the last answer for other sessions", "收藏上一个回答，供其他会话引用"),
    "slash.collect.arg": ("", ""),
    "slash.compact": ("fold the older history into a summary", "将较早的历史压缩为摘要"),
    "slash.compact.arg": ("", ""),
    "slash.model": ("which model answers, or take another", "查看或切换模型"),
    "slash.model.arg": (" [NAME]", " [名称]"),
    "slash.help": ("this list", "显示此列表"),
    "slash.help.arg": ("", ""),
    "slash.quit": ("leave; the session stays", "离开；会话保留"),
    "slash.quit.arg": ("", ""),
    # ask and pipes
    "ask.nothing": ("there is no question", "没有问题"),
    "talk.refused": (
        "refused, since nobody can be asked: {name} {shows}",
        "无法询问确认，已拒绝：{name} {shows}",
    ),
    "talk.called": ("· {name}: {state}, {seconds} s", "· {name}：{state}，{seconds} 秒"),
    # traces
    "trace.written": ("{size} bytes written to {path}, sha256 {hash}", "已写入 {path}：{size} 字节，sha256 {hash}"),
    "trace.sends": (
        "sending {size} bytes again, sha256 {hash}, to {model}; nothing is stored",
        "再次发送 {size} 字节（sha256 {hash}）给 {model}；不会保存",
    ),
    "trace.stored": ("stored answer", "已存回答"),
    "trace.again": ("answer this time", "本次回答"),
    "trace.cached": ("cached", "来自缓存"),
    "trace.prefix": (
        "predicted prefix {predicted:,} tokens, server cached {cached:,}",
        "预计前缀 {predicted:,} token，服务器命中缓存 {cached:,}",
    ),
    "trace.same": ("the answers are the same", "两个回答相同"),
    "trace.other": ("the answers differ", "两个回答不同"),
    "diff.same": ("the requests are the same, byte for byte", "两个请求逐字节相同"),
    "diff.grows": (
        "the second only adds to the first, from byte {byte} on, in {layer} ({source})",
        "第二个请求只在第一个之后追加：从字节 {byte} 起，{layer}（{source}）",
    ),
    "diff.differs": ("they part at byte {byte}, in {layer} ({source})", "从字节 {byte} 开始不同，{layer}（{source}）"),
    "diff.shared": ("{shared:,} tokens shared, {after:,} follow", "共享 {shared:,} token，其后 {after:,}"),
    "diff.before": ("before", "之前"),
    "diff.after": ("after", "之后"),
    "diff.change": ("change", "变化"),
    # doctor
    "doctor.lamina": ("lamina", "lamina"),
    "doctor.settings": ("settings", "设置"),
    "doctor.store": ("store", "存储"),
    "doctor.provider": ("provider", "模型服务"),
    "doctor.embedder": ("embedder", "向量"),
    "doctor.files": ("files", "文件"),
    "doctor.terminal": ("terminal", "终端"),
    "doctor.extras": ("extras", "可选组件"),
    "doctor.well": ("all is well: lamina chat", "一切正常：lamina chat"),
    "doctor.busy": (
        "well, but the store is in use: other commands need it free",
        "其他正常，但存储正被使用：其他命令需等它空出",
    ),
    "doctor.bad": ("to be mended: {count}", "需要处理：{count} 项"),
    "doctor.unchecked": (
        "store, provider, embedder and files were not looked at",
        "未检查存储、模型服务、向量与文件",
    ),
    "doctor.file": ("{file} sets {count}", "{file} 设置了 {count} 项"),
    "doctor.no_file": ("no {file} here", "此处没有 {file}"),
    "doctor.no_variables": ("no LAMINA_… variables", "没有 LAMINA_… 变量"),
    "doctor.user": ("user", "用户"),
    "doctor.coding": ("the locale's encoding is {coding}", "区域编码为 {coding}"),
    "doctor.no_terminal": ("none: plain text", "无终端：纯文本"),
    "doctor.screen": ("{width} × {height}, {coding}", "{width} × {height}，{coding}"),
    "doctor.wider": ("make it 60 columns wide or more", "建议至少 60 列宽"),
    "doctor.complete": ("complete", "完整"),
    "doctor.missing": ("{extra} lacks {names}", "{extra} 缺少 {names}"),
    "doctor.no_store": ("none yet at {where}; the first chat makes it", "{where} 尚不存在；首次对话时创建"),
    "doctor.store_facts": (
        "{where} · version {version} · users {owners} · your messages {messages:,}",
        "{where} · 版本 {version} · 用户 {owners} · 你的消息 {messages:,}",
    ),
    "doctor.verify": ("lamina store verify looks for damage", "lamina store verify 检查损坏"),
    "doctor.not_asked": ("not asked", "未询问"),
    "doctor.answered": ("answers, {seconds:.1f} s", "有应答，{seconds:.1f} 秒"),
    "doctor.memory_off": ("memory is switched off", "记忆已关闭"),
    "doctor.no_embedder": ("none: memories are found by their words alone", "无：只按词查找记忆"),
}
