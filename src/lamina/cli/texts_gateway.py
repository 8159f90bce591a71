"""What `lamina serve` and `lamina keys` say, in both languages."""

GATEWAY_TEXTS: dict[str, tuple[str, str]] = {
    "serve.help": (
        "Serve the web page, the API and the OpenAI and Anthropic endpoints.",
        "启动网关：网页、API，以及 OpenAI 与 Anthropic 兼容接口。",
    ),
    "serve.examples": (
        "Examples:\n\n"
        "  lamina serve\n\n"
        "  lamina serve --listen 127.0.0.1:0 --no-open --log debug\n\n"
        "  lamina serve --listen 0.0.0.0:8765 --host-name chat.example.com\n\n"
        "On this machine alone it opens the page with a token of yours. Anybody else needs a key: lamina keys new, "
        "with a SQLite store before the gateway is started, since it has the store to itself.",
        "示例：\n\n"
        "  lamina serve\n\n"
        "  lamina serve --listen 127.0.0.1:0 --no-open --log debug\n\n"
        "  lamina serve --listen 0.0.0.0:8765 --host-name chat.example.com\n\n"
        "仅在本机监听时，会用你的令牌打开网页。其他人需要密钥：lamina keys new；"
        "使用 SQLite 存储时须在启动网关之前创建，因为运行中的网关独占存储。",
    ),
    "opt.listen": ("Address and port; 127.0.0.1:8765 by default.", "地址与端口；默认 127.0.0.1:8765。"),
    "opt.serve.workspace": (
        "The folder whose instructions and rules are in every chat; none by default.",
        "工作区：其中的指令与规则用于每次对话；默认没有。",
    ),
    "opt.no_open": ("Do not open a browser.", "不打开浏览器。"),
    "opt.log": ("Request lines on the error output: off, info or debug.", "错误输出上的请求日志：off、info 或 debug。"),
    "opt.host_name": ("A name under which people reach it; repeatable.", "人们访问所用的主机名；可重复。"),
    "opt.origin": (
        "A page of others that may call it with a key; repeatable.",
        "允许携带密钥调用的外部网页来源；可重复。",
    ),
    "serve.opening": ("opening the store", "正在打开存储"),
    "serve.model": ("loading the model", "正在加载模型"),
    "serve.url": ("page", "网页"),
    "serve.api": ("API", "接口"),
    "serve.store": ("store", "存储"),
    "serve.ready": ("Ctrl-C ends it", "按 Ctrl-C 结束"),
    "serve.ending": ("ending: what runs is interrupted and kept", "正在结束：运行中的轮次会中断并保留"),
    "serve.no_keys": (
        "{place} can be reached from other machines, and the store has no key",
        "{place} 可从其他机器访问，而存储中没有密钥",
    ),
    "serve.no_keys.next": (
        "make one first: lamina keys new; or listen on this machine alone: --listen 127.0.0.1:8765",
        "请先创建密钥：lamina keys new；或仅在本机监听：--listen 127.0.0.1:8765",
    ),
    "keys.help": ("Keys of the gateway: list, new, revoke.", "网关密钥：列出、新建、吊销。"),
    "keys.new": ("Make a key and show it, this once.", "新建密钥，仅显示这一次。"),
    "keys.new.examples": (
        "Examples:\n\n"
        "  lamina keys new --name laptop\n\n"
        "  lamina keys new --name bot --user bo --scope chat --rate 60 --tokens 1000000 --expires 30d\n\n"
        "A key is for one user. Scopes: chat (talk), read, write, metrics; without --scope chat, read and write.",
        "示例：\n\n"
        "  lamina keys new --name laptop\n\n"
        "  lamina keys new --name bot --user bo --scope chat --rate 60 --tokens 1000000 --expires 30d\n\n"
        "每个密钥属于一个用户。权限：chat（对话）、read、write、metrics；不指定时为 chat、read、write。",
    ),
    "keys.revoke": ("Revoke a key; it ends within five seconds.", "吊销密钥；五秒内失效。"),
    "opt.key_name": ("What it is for; key-1, key-2, … by default.", "用途；默认为 key-1、key-2……"),
    "opt.scope": ("chat, read, write or metrics; repeatable.", "chat、read、write 或 metrics；可重复。"),
    "opt.rate": ("Requests a minute; 0 for the gateway's limit.", "每分钟请求数；0 表示采用网关的限制。"),
    "opt.tokens": ("Tokens a day; 0 for the gateway's limit.", "每天 token 数；0 表示采用网关的限制。"),
    "opt.expires": ("How long it lives: 12h, 30d, 52w.", "有效期：12h、30d、52w。"),
    "arg.key": ("The key's id, or its beginning.", "密钥标识或其开头。"),
    "keys.none": ("{user} has no keys", "{user} 没有密钥"),
    "keys.made": (
        "key {id} of {user}, shown this once:",
        "{user} 的密钥 {id}，仅显示这一次：",
    ),
    "keys.revoked": ("revoked {id} ({name})", "已吊销 {id}（{name}）"),
    "keys.state.usable": ("usable", "可用"),
    "keys.state.revoked": ("revoked", "已吊销"),
    "keys.state.expired": ("expired", "已过期"),
    "col.scopes": ("may", "权限"),
    "col.limits": ("limits", "限额"),
    "keys.rate": ("{number:,}/min", "{number:,} 次/分"),
    "keys.tokens": ("{number:,} tokens/day", "{number:,} token/天"),
    "col.expires": ("until", "有效期至"),
    "col.used": ("last used", "上次使用"),
    "col.key_state": ("state", "状态"),
}
