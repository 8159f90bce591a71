"""What `lamina telegram` says, in both languages, side by side."""

TELEGRAM_TEXTS: dict[str, tuple[str, str]] = {
    "opt.telegram.webhook": (
        "Take updates at this https address instead of asking for them.",
        "通过此 https 地址接收更新，而不是轮询。",
    ),
    "opt.telegram.listen": (
        "Where the webhook's server listens; TLS stands in front of it.",
        "webhook 服务器的监听地址；TLS 由其前面的代理处理。",
    ),
    "opt.telegram.verbose": ("Log what happens, not only what goes wrong.", "记录所有事件，而不仅是错误。"),
    "telegram.help": ("Run the Telegram bot.", "运行 Telegram 机器人。"),
    "telegram.examples": (
        "Examples:\n\n"
        "  LAMINA_TELEGRAM_TOKEN=123:abc LAMINA_TELEGRAM_ALLOW=123456789 lamina telegram\n\n"
        "  lamina telegram --webhook https://bot.example.com/telegram --listen 127.0.0.1:8443\n\n"
        "  LAMINA_TELEGRAM_USERS=123456789=ann lamina telegram --workspace ~/novel\n\n"
        "The token is @BotFather's and is taken from the environment alone. Only people whose numeric id is in "
        "LAMINA_TELEGRAM_ALLOW are answered; the bot tells others theirs. LAMINA_TELEGRAM_USERS gives a person the "
        "chats and memories of a user of lamina. Every other setting may have a value of its own for the bot: "
        "LAMINA_TELEGRAM_MODEL, LAMINA_TELEGRAM_TOOLS …\n\n"
        "Ctrl-C ends it: what runs is interrupted and kept, what waits is taken at the next start.",
        "示例：\n\n"
        "  LAMINA_TELEGRAM_TOKEN=123:abc LAMINA_TELEGRAM_ALLOW=123456789 lamina telegram\n\n"
        "  lamina telegram --webhook https://bot.example.com/telegram --listen 127.0.0.1:8443\n\n"
        "  LAMINA_TELEGRAM_USERS=123456789=ann lamina telegram --workspace ~/novel\n\n"
        "令牌由 @BotFather 提供，只从环境变量读取。只回答编号在 LAMINA_TELEGRAM_ALLOW 中的人，"
        "其他人会得知自己的编号。LAMINA_TELEGRAM_USERS 将某人与 lamina 用户的对话和记忆关联。"
        "其他设置也可为机器人单独指定：LAMINA_TELEGRAM_MODEL、LAMINA_TELEGRAM_TOOLS……\n\n"
        "Ctrl-C 结束：正在生成的回答中断并保留，等待中的消息在下次启动时处理。",
    ),
    "telegram.runs.polling": (
        "@{name} answers {count} people (long polling). Ctrl-C ends it.",
        "@{name} 正在运行（长轮询），名单中有 {count} 人。按 Ctrl-C 结束。",
    ),
    "telegram.runs.webhook": (
        "@{name} answers {count} people (webhook, {listen}). Ctrl-C ends it.",
        "@{name} 正在运行（webhook，{listen}），名单中有 {count} 人。按 Ctrl-C 结束。",
    ),
    "telegram.stopped": ("Stopped.", "已停止。"),
}
