// What a receipt says in fixed English words, in the reader's language. What is not known here stays as it was written.
import { el, visible } from "./dom.js";
import { lang } from "./texts.js";

const WORDS = {
  "always kept": "始终保留",
  "always kept, fenced": "始终保留，放入围栏",
  "fits the budget": "在预算之内",
  "the newest message": "最新消息",
  "the current turn": "当前轮次",
  "over the budget": "超出预算",
  "the history begins with a user message": "历史须以用户消息开头",
  "added to the end": "追加在末尾",
  "it is new here": "此处新增",
  "it is gone from here": "此处已移除",
  "switched off by the setting `memory`": "已由设置项 memory 关闭",
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
  "a layer was switched off": "某一层已被关闭",
  "what is known of the session changed": "会话信息已改变",
  "a summary is gone": "有摘要已移除",
  "a collected answer is gone": "有收藏的回答已移除",
  "new since the epoch began": "本纪元中新增",
  "no longer applies": "不再适用",
  "sent again, lest it fades": "再次发送，以免淡忘",
  pinned: "已置顶",
  "a standing wish": "长期要求",
  words: "词语",
  meaning: "语义",
  day: "日期",
  echo: "呼应",
  "short form": "简写",
  "title only": "仅标题",
  "left out": "省略",
  kept: "保留",
  cut: "截断",
  dropped: "丢弃",
  degraded: "降级",
  operator: "运营者",
  user: "用户",
  model: "模型",
  outside: "外部",
};
const PATTERNS = [
  [/^(words|meaning|day|echo) (\d\.\d\d)$/, (_, name, share) => `${WORDS[name]} ${share}`],
  [/^(short form|title only|left out): (.+)$/, (_, name, why) => `${WORDS[name]}：${worded(why)}`],
  [/^(\w+) may take (\d+%) of the budget$/, (_, layer, share) => `${layer} 最多占预算的 ${share}`],
  [/^no skill named (.+) is enabled here$/, (_, name) => `没有启用名为 ${name} 的技能`],
  [/^skipped: no answer within (\d+) ms$/, (_, n) => `已跳过：${n} 毫秒内没有结果`],
  [/^cut to (\d+%) of the budget$/, (_, share) => `已删减到预算的 ${share}`],
  [/^over the budget; the first (\d+) were not read$/, (_, n) => `超出预算；最早的 ${n} 条没有读取`],
  [/^its text changed from (\w+) to (\w+)$/, (_, old, now) => `文本已改变：${old} → ${now}`],
  [/^the window was cut: (\d+) more messages dropped$/, (_, n) => `窗口已删减：又丢弃了 ${n} 条消息`],
  [/^there was room again: (\d+) older messages are back$/, (_, n) => `又有空间了：恢复了较早的 ${n} 条消息`],
  [/^replaces (\w+)$/, (_, old) => `替换 ${old}`],
  [/^epoch (\d+) began: (.+)$/, (_, n, why) => `第 ${n} 纪元开始：${worded(why)}`],
  [/^it stands where (.+) stood$/, (_, other) => `原来这里是 ${other}`],
  [/^the requests are of different grammars, (\w+) and (\w+)$/, (_, one, other) => `两个请求的格式不同：${one} 与 ${other}`],
];

// What the gateway says of an error, where its type has the same words each time: what happened, and what next.
const ERRORS = {
  not_found: ["这里没有该内容", "请检查地址中的 id"],
  running: ["本轮仍在进行；请求会在结束时保存", "请稍后重试"],
  lost: ["本轮发送的内容没有保存：负责回答的进程在本轮结束之前退出，回执随之丢失", "已生成的文字仍保留在会话中"],
};

export function explained({ message = "", hint = "", type = "" }) {
  return lang() === "zh" && Object.hasOwn(ERRORS, type) ? ERRORS[type] : [message, hint];
}

function known(text) {
  if (Object.hasOwn(WORDS, text)) return WORDS[text];
  for (const [pattern, say] of PATTERNS) if (pattern.test(text)) return text.replace(pattern, say);
  return "";
}

export function worded(text) {
  if (lang() !== "zh" || !text) return text;
  const whole = known(text);
  if (whole) return whole;
  const parts = text.split(", ").map(known);
  return parts.every(Boolean) ? parts.join("，") : text;
}

export function reason(text) {
  const said = worded(text);
  return el("span", { lang: said === text && lang() === "zh" ? "en" : null }, visible(said));
}
