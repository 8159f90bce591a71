"""The errors that people meet most, in Chinese: by the sentence that the core says, with the values taken over.

The core speaks one language, as logs and programs read it too. What is not in the table stays as it was said.
"""

import re

KINDS = {
    "session": "会话", "turn": "轮次", "memory": "记忆", "template": "模板", "message": "消息", "job": "任务",
    "key": "密钥", "profile value": "资料项",
}  # fmt: skip
WORDS = {"kind": KINDS, "names": {"none": "无"}}
"""Words of ours among the values of a sentence."""
SENTENCES = {  # where two would fit, the narrower one stands first
    # the store
    "there is no store at {path}": "{path} 处没有存储",
    "there is no folder {path} for the store": "没有存放存储的文件夹 {path}",
    "the store {path} is in use by process {pid}": "存储 {path} 正被进程 {pid} 使用",
    "the store {path} is a folder": "存储 {path} 是一个文件夹",
    "another program holds the store {path} locked": "存储 {path} 被另一个程序锁定",
    "{path} is not a store, but some other file": "{path} 不是存储，而是其他文件",
    "{path} is not a store, but a database of another program": "{path} 不是存储，而是其他程序的数据库",
    "no space left for the store {path}; nothing of this was saved": "存储 {path} 所在磁盘已满；这些内容均未保存",
    "cannot reach PostgreSQL at {place}: {why}": "无法连接 {place} 的 PostgreSQL：{why}",
    # what is not there
    "no template {name} of your own": "你自己没有模板 {name}",
    "no {kind} {name}": "没有{kind} {name}",
    "more than one {kind} begins with {name}": "不止一个{kind}以 {name} 开头",
    "{name} is too short for the id of a {kind}": "{name} 太短，不足以确定{kind}",
    "there is no session yet": "还没有会话",
    "there is no turn yet": "还没有轮次",
    "no message {number} in session {name}": "会话 {name} 中没有消息 {number}",
    "no skill named {name} is enabled here": "这里没有启用名为 {name} 的技能",
    "the template {name} has a slot {slot} and there is no value for it": "模板 {name} 有插槽 {slot}，但没有它的值",
    "{where} has a slot {slot} and there is no value for it": "{where} 有插槽 {slot}，但没有它的值",
    "turn {name} sent no request": "轮次 {name} 没有发出请求",
    # what people are told during a turn
    "without {source}: no answer within {n} ms": "没有用上 {source}：{n} 毫秒内没有结果",
    "without {source}: {why}": "没有用上 {source}：{why}",
    "the answer was cut off at its limit of tokens ({setting})": "回答达到 token 上限，已被截断（{setting}）",
    # files and folders
    "{where} names {path}, which is not there": "{where} 所指的 {path} 不存在",
    "{where} names {path}, which is not a regular file": "{where} 所指的 {path} 不是普通文件",
    "{path} is not there": "{path} 不存在",
    "{path} is not a folder": "{path} 不是文件夹",
    "{path} is not a regular file": "{path} 不是普通文件",
    "{path} exists already": "{path} 已经存在",
    "the script {path} cannot be read: {why}": "无法读取脚本 {path}：{why}",
    "{path} cannot be read: {why}": "无法读取 {path}：{why}",
    "{path} cannot be written: {why}": "无法写入 {path}：{why}",
    "{path} is not UTF-8: {why}": "{path} 不是 UTF-8：{why}",
    "{path} is not TOML: {why}": "{path} 不是 TOML：{why}",
    # who answers
    "the settings name no model for {name}": "设置中没有为 {name} 指定模型",
    "the settings name no key for {name}": "设置中没有 {name} 的密钥",
    "the settings name no script": "设置中没有指定脚本",
    "there is no model {name} here: the embedded one answers": "这里没有模型 {name}：作答的是内置模型",
    "the embedded model is not installed": "没有安装内置模型",
    "the embedded model did not start: {why}": "内置模型未能启动：{why}",
    "this provider needs the package {name}": "这个供应商需要软件包 {name}",
    "{host} cannot be reached: {why}": "无法连接 {host}：{why}",
    "{host} cannot be reached": "无法连接 {host}",
    "{host} is no host": "{host} 不是有效的主机",
    "{host} did not take the connection within {n} seconds": "{host} 在 {n} 秒内没有接受连接",
    "{host} sent no byte within {n} seconds": "{host} 在 {n} 秒内没有任何回应",
    "{host} sent nothing more for {n} seconds": "{host} 已有 {n} 秒没有继续回应",
    "{host} hung up before it answered: {why}": "{host} 在回答之前断开了连接：{why}",
    "{host} answers something else than HTTP: {why}": "{host} 的回应不是 HTTP：{why}",
    "the connection to {host} was cut: {why}": "与 {host} 的连接中断：{why}",
    "{host} answered {code}: {words}": "{host} 返回 {code}：{words}",
    "{host} answered {code}": "{host} 返回 {code}",
    "the address of the provider is none": "供应商的地址无效",
    # budgets and limits
    "the request has about {n} tokens, and the model takes {most}": "请求约有 {n} token，而模型最多接受 {most}",
    "the turn has reached its limit of {n} steps": "本轮已达到 {n} 步的上限",
    "the turn has used {n} of {most} tokens": "本轮已用 {n} token，上限为 {most}",
    "there is nothing to fold: only the newest turns are left": "没有可压缩的内容：只剩最新的几轮",
    "compaction would free {n} of {most} tokens, less than {share}": "压缩只能腾出 {most} token 中的 {n}，不足 {share}",
    # settings and options
    "{where} is no setting": "没有 {where} 这一设置",
    "{where} may not be set here": "{where} 不能在此设置",
    "{where} must be a whole number of at least {n} and below 10^15, not {value}":
        "{where} 须为不小于 {n} 且小于 10^15 的整数，而不是 {value}",
    "{where} must be a whole number of at least {n}, not {value}": "{where} 须为不小于 {n} 的整数，而不是 {value}",
    "{where} must be a number of tokens, not {value}": "{where} 须为 token 数，而不是 {value}",
    "{where} must be true or false, not {value}": "{where} 须为 true 或 false，而不是 {value}",
    "{where} must be text, not {value}": "{where} 须为文本，而不是 {value}",
    "no mode named {value}": "没有名为 {value} 的模式",
    "{where} has no choice {value}": "{where} 没有 {value} 这一选项",
    "{where} cannot be {value}": "{where} 不能是 {value}",
    "{where} is empty": "{where} 为空",
    "memory is switched off": "记忆功能已关闭",
    "the user message is empty": "用户消息为空",
    "there is no user message": "没有用户消息",
    "there is nothing to search for": "没有要搜索的内容",
    "cannot listen at {place}: {why}": "无法监听 {place}：{why}",
    "{place} is no place to listen at": "{place} 不是可以监听的位置",
}  # fmt: skip
HINTS = {
    "check --store or LAMINA_STORE": "请检查 --store 或 LAMINA_STORE",
    "check --store or LAMINA_STORE; nothing was changed": "请检查 --store 或 LAMINA_STORE；没有改动任何内容",
    "make it first": "请先创建它",
    "leave that chat with Ctrl-D, or use its /sessions, /memory and /why":
        "请在那个聊天里按 Ctrl-D 退出，或使用其中的 /sessions、/memory 和 /why",
    "use its page or its API, or end it with Ctrl-C": "请使用它的页面或 API，或按 Ctrl-C 结束它",
    "wait for it or end it, or use PostgreSQL for more than one process":
        "请等它结束或结束它；多个进程请用 PostgreSQL",
    "name a file in it: {path}": "请指定其中的文件：{path}",
    "there are some in {path}: name that folder": "{path} 里有：请指定该文件夹",
    "check the path of the GGUF file": "请检查 GGUF 文件的路径",
    "end it and try again": "请结束它再试",
    "free some space: writing goes on by itself, and reading works meanwhile":
        "请腾出空间：写入会自动恢复，其间仍可读取",
    "check the address and the role": "请检查地址与角色",
    "it does not exist, or it is not yours": "它不存在，或者不属于你",
    "it is shared: add --shared": "它是共享的：请加 --shared",
    "give more characters of the id": "请多给几个 id 字符",
    "at least {n} characters of it": "至少给出 {n} 个字符",
    "begin one: lamina sessions new": "新建一个：lamina sessions new",
    "say something: lamina chat": "先说点什么：lamina chat",
    "it has {n}": "共有 {n} 条",
    "known: {names}": "已有：{names}",
    "it is for {apps}: --app {app}": "它用于 {apps}：--app {app}",
    "give it one: lamina memory profile {slot} VALUE, or the turn's `values`, which `retry` takes "
    "again; known: {names}; the setting missing_slots = keep lets it stay":
        "请给它一个值：lamina memory profile {slot} 值，或在请求的 `values` 里给出（`retry` 也接受）；已有：{names}；"
        "设置 missing_slots = keep 可让它保持原样",
    "it ended before one was sent": "它在发出请求之前就结束了",
    "check the path": "请检查路径",
    "check the path and its permissions": "请检查路径及其权限",
    "check its folder": "请检查所在文件夹",
    "name the workspace's folder": "请指定工作区的文件夹",
    "give a new name; nothing is overwritten": "请换一个名字；不会覆盖任何文件",
    "save it as UTF-8": "请以 UTF-8 保存",
    "mend it or move it away": "请修正它或把它移走",
    "set LAMINA_MODEL, or model = … in lamina.toml": "请设置 LAMINA_MODEL，或在 lamina.toml 中写 model = …",
    "set {name}_API_KEY or LAMINA_API_KEY; for a server of your own LAMINA_BASE_URL":
        "请设置 {name}_API_KEY 或 LAMINA_API_KEY；自己的服务器请设 LAMINA_BASE_URL",
    "LAMINA_SCRIPT=answers.json, see docs/providers.md": "LAMINA_SCRIPT=answers.json，见 docs/providers.md",
    "set LAMINA_PROVIDER to who has it, or name a .gguf file":
        "请把 LAMINA_PROVIDER 设为拥有该模型的供应商，或指定 .gguf 文件",
    "no key was sent: set LAMINA_API_KEY": "没有发送密钥：请设置 LAMINA_API_KEY",
    "check the key": "请检查密钥",
    "check the key and what it may use": "请检查密钥及其权限",
    "check the account's balance": "请检查账户余额",
    "check the address": "请检查地址",
    "check the address and the model's name; the address often ends in /v1": "请检查地址与模型名；地址通常以 /v1 结尾",
    "the request is too large: lower the budget": "请求太大：请降低预算",
    "the provider does not take this request; its words say why": "供应商不接受这个请求；原因见其原文",
    "its words say why": "原因见其原文",
    "it looks like https://host/v1, without a name, a key or a question mark in it":
        "形如 https://host/v1，不含用户名、密钥或问号",
    "is it running?": "它在运行吗？",
    "is this a model's endpoint?": "这是模型的接口吗？",
    "is the machine busy?": "机器是否繁忙？",
    "ask again": "请再问一次",
    "ask again later": "请稍后再问",
    "ask again, or raise the idle deadline": "请再问一次，或放宽等待时限",
    "it may be busy: ask again, or raise the deadline for the first byte": "它可能正忙：请再问一次，或放宽首字节的时限",
    "wait {n} seconds, then ask again": "请等待 {n} 秒后再问",
    "wait a little, then ask again": "请稍等再问",
    "shorten the message, the rules or the skills, or take a model with a larger window":
        "请缩短消息、规则或技能，或换用窗口更大的模型",
    "raise the budget (LAMINA_BUDGET), shorten rules, skills or the message, or begin a new session":
        "请提高预算（LAMINA_BUDGET），缩短规则、技能或消息，或新建会话",
    "say `go on`, or LAMINA_STEPS": "请说“继续”，或调高 LAMINA_STEPS",
    "did you mean {name}?": "你是指 {name} 吗？",
    "for example {value}": "例如 {value}",
    "write it in digits": "请用数字书写",
    "true or false": "true 或 false",
    "modes are {names}": "可选：{names}",
    "put it in quotation marks": "请加上引号",
    "one of {names}": "可选：{names}",
    "choose one of {names}": "可选：{names}",
    "an address, such as {value}": "一个地址，例如 {value}",
    "name it, or leave the option out": "请写明，或去掉该选项",
    "name a file, or take the setting away": "请指定文件，或去掉该设置",
    "the setting memory, LAMINA_MEMORY=on": "设置项 memory，即 LAMINA_MEMORY=on",
    "give at least one word": "请至少给出一个词",
    "give one: {command}": "请给出一条：{command}",
    "an address and a port: {place}": "地址和端口：{place}",
    "{place} for an IPv6 address": "IPv6 地址写作 {place}",
    "another program may have the port: --listen {place} takes a free one":
        "端口可能已被占用：--listen {place} 会选用空闲端口",
}  # fmt: skip


def _pattern(sentence: str) -> "re.Pattern[str]":
    pieces = re.split(r"\{(\w+)\}", sentence)
    made = [re.escape(piece) for piece in pieces]
    made[1::2] = [f"(?P<{name}>{'|'.join(KINDS) if name == 'kind' else '.+?'})" for name in pieces[1::2]]
    return re.compile("".join(made), re.DOTALL)


def error_in(lang: str, said: str) -> str:
    """A sentence or a hint of an error in the reader's language; what has no translation stays as it is."""
    if lang != "zh":
        return said
    every = {**SENTENCES, **HINTS}
    if said in every:
        return every[said]
    for sentence, chinese in every.items():
        if found := _pattern(sentence).fullmatch(said):
            values = found.groupdict()
            return chinese.format(**{name: WORDS.get(name, {}).get(value, value) for name, value in values.items()})
    return said
