"""The peer libraries behind one small face, for the benchmark and the fuzzer: convert, trim, convert back.

Only the trim is to be timed: it is the library's own call, set as its documentation recommends, with lamina's
seed estimate as its counter wherever it takes one; what it cannot do stands in `note`. Nothing here mends a
result or swallows an error. Libraries are loaded by name when `load` asks for them, so this file needs none of
them to be read or type-checked. `python -m bench.peers` prints what they do here.
"""

import asyncio
import inspect
import logging
import os
import random
import sys
import time
import warnings
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any, cast

from bench.handwritten import Chat, Message, estimate


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to fit a chat with one library.

    Call `prepare` anew before every `trim`: some libraries write into the messages they are given.
    `trim` raises what the library raises. `tools` is False where tool calls and ids have no place in its messages.
    """

    name: str
    version: str
    note: str
    counts: bool
    prepare: Callable[[Chat], Any]
    trim: Callable[[Any, int], Any]
    restore: Callable[[Any], Chat]
    tools: bool = True


def text_of(content: object) -> str:
    """The text of a message's content: a string, nothing, or a list of text parts."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = cast(list[dict[str, str]], content) if isinstance(content, list) else [{"type": type(content).__name__}]
    for part in parts:
        if part["type"] != "text":
            raise TypeError(f"content of type {part['type']!r}: only text is carried to the peers")
    return "".join(part["text"] for part in parts)


def _systems(chat: Chat) -> int:
    """How many system messages the chat opens with."""
    return next((index for index, message in enumerate(chat) if message["role"] != "system"), len(chat))


def _call(identity: str, name: str, arguments: str) -> Message:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def _assistant(text: str, calls: list[Message]) -> Message:
    return {"role": "assistant", "content": text or None, "tool_calls": calls}


def _langchain(name: str, note: str, counter: str | None = None, start_on: str | None = "human") -> Peer:
    library = import_module("langchain_core.messages")

    def count(messages: list[Any]) -> int:
        return sum(estimate(text_of(message.content)) for message in messages)

    options = {"strategy": "last", "token_counter": counter or count, "start_on": start_on, "include_system": True}

    def trim(messages: Any, budget: int) -> Any:
        return library.trim_messages(messages, max_tokens=budget, **options)

    there, back = library.convert_to_messages, library.convert_to_openai_messages
    return Peer(name, version("langchain-core"), note, counts=True, prepare=there, trim=trim, restore=back)


def _litellm(name: str) -> Peer:
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or the import asks the network for prices
    library = import_module("litellm.utils")
    logging.getLogger("LiteLLM").setLevel(logging.CRITICAL)  # it logs the errors that it swallows, with traceback

    def trim(messages: Any, budget: int) -> Any:
        return library.trim_messages(messages, model="gpt-4o", max_tokens=budget)

    trim([{"role": "user", "content": "load the tokenizer now, not in the first timed call"}], 1000)
    note = (
        "takes no counter: its own o200k for gpt-4o, shipped with it, 4 tokens more a message; shortens the oldest "
        "message it keeps to 'head..tail'; tries every older message unless 3 tokens or fewer are left, so its time "
        "is a matter of luck (×30); returns the input untrimmed when an error occurs, as with content null"
    )
    return Peer(name, version("litellm"), note, counts=True, prepare=list, trim=trim, restore=list)


def _llama_messages(chat: Chat) -> tuple[list[Any], list[Any]]:
    """The system messages, which LlamaIndex's chat engines keep outside of the memory, and the others."""
    types = import_module("llama_index.core.base.llms.types")

    def block(call: Message) -> Any:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        return types.ToolCallBlock(tool_call_id=call["id"], tool_name=name, tool_kwargs=arguments)

    def convert(message: Message) -> Any:
        calls = [block(call) for call in message.get("tool_calls") or ()]
        text = text_of(message["content"])
        blocks = [types.TextBlock(text=text), *calls] if text or not calls else calls
        more = {"tool_call_id": message["tool_call_id"]} if message["role"] == "tool" else {}
        return types.ChatMessage(role=message["role"], blocks=blocks, additional_kwargs=more)

    converted = [convert(message) for message in chat]
    return converted[: _systems(chat)], converted[_systems(chat) :]


def _from_llama(messages: list[Any]) -> Chat:
    chat: Chat = []
    for message in messages:
        blocks = [block for block in message.blocks if block.block_type == "tool_call"]
        calls = [_call(block.tool_call_id, block.tool_name, block.tool_kwargs) for block in blocks]
        plain = {"role": message.role.value, "content": message.content or "", **message.additional_kwargs}
        chat.append(_assistant(message.content, calls) if calls else plain)
    return chat


def _tokens(text: str) -> list[int]:
    """For libraries that want the tokens themselves and take their number."""
    return [0] * estimate(text)


def _llama_buffer(name: str) -> Peer:
    memory = import_module("llama_index.core.memory")

    def trim(prepared: tuple[list[Any], list[Any]], budget: int) -> list[Any]:
        system, rest = prepared
        used = len(_tokens(" ".join(message.content or "" for message in system)))
        buffer = memory.ChatMemoryBuffer.from_defaults(chat_history=rest, token_limit=budget, tokenizer_fn=_tokens)
        return system + buffer.get(initial_token_count=used)

    note = (
        "ChatMemoryBuffer, as SimpleChatEngine calls it (deprecated in favour of Memory); counts the joined text, "
        "a tool call as 1 token ('None'); raises when the system message alone is over the budget"
    )
    there, back = _llama_messages, _from_llama
    return Peer(name, version("llama-index-core"), note, counts=True, prepare=there, trim=trim, restore=back)


def _llama_memory(name: str) -> Peer:
    memory = import_module("llama_index.core.memory")
    engines = import_module("sqlalchemy.ext.asyncio")

    async def fit(rest: list[Any], room: int) -> list[Any]:
        engine = engines.create_async_engine("sqlite+aiosqlite:///:memory:")  # its default store, closed by us
        try:
            kept = memory.Memory.from_defaults(
                token_limit=room, chat_history_token_ratio=1.0, tokenizer_fn=_tokens, async_engine=engine
            )
            await kept.aput_messages(rest)
            return await kept.aget()
        finally:
            await engine.dispose()

    def trim(prepared: tuple[list[Any], list[Any]], budget: int) -> list[Any]:
        system, rest = prepared
        used = sum(estimate(message.content or "") for message in system)
        return system + asyncio.run(fit(rest, budget - used))

    note = (
        "Memory over its default in-memory SQLite, the writing of the messages included; no place for a system "
        "message, so its tokens come off the limit here; flushes up to 3,000 tokens at once; a tool call counts 0"
    )
    there, back = _llama_messages, _from_llama
    return Peer(name, version("llama-index-core"), note, counts=True, prepare=there, trim=trim, restore=back)


def _agent_framework(name: str) -> Peer:
    library = import_module("agent_framework")
    tokenizer = SimpleNamespace(count_tokens=estimate)

    def convert(message: Message) -> Any:
        text = text_of(message["content"])
        if message["role"] == "tool":
            contents = [library.Content.from_function_result(message["tool_call_id"], result=text)]
        else:
            calls = [(call["id"], call["function"]) for call in message.get("tool_calls") or ()]
            contents = [library.Content.from_text(text)] if text or not calls else []
            create = library.Content.from_function_call
            contents += [create(identity, made["name"], arguments=made["arguments"]) for identity, made in calls]
        return library.Message(message["role"], contents)

    def trim(messages: Any, budget: int) -> Any:
        strategy = library.TruncationStrategy(max_n=budget, compact_to=budget, tokenizer=tokenizer)
        return _driven(library.apply_compaction(messages, strategy=strategy, tokenizer=tokenizer))

    def restore(messages: list[Any]) -> Chat:
        chat: Chat = []
        for message in messages:
            calls = [_call(c.call_id, c.name, c.arguments) for c in message.contents if c.type == "function_call"]
            results = [c for c in message.contents if c.type == "function_result"]
            chat += [{"role": "tool", "content": c.result, "tool_call_id": c.call_id} for c in results]
            if not results:
                plain = {"role": message.role, "content": message.text}
                chat.append(_assistant(message.text, calls) if calls else plain)
        return chat

    def prepare(chat: Chat) -> list[Any]:
        return [convert(message) for message in chat]

    note = (
        "TruncationStrategy; its counter is given each message as JSON, so the envelope is counted too (about 28 "
        "tokens a message) and fewer messages fit; system messages and the last group stay even over the budget"
    )
    return Peer(name, version("agent-framework-core"), note, counts=True, prepare=prepare, trim=trim, restore=restore)


def _driven(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits, so that starting an event loop is not billed to its library."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    work.close()
    raise RuntimeError("the coroutine waits for something: run it in an event loop")


def _haystack(name: str) -> Peer:
    os.environ.setdefault("HAYSTACK_TELEMETRY_ENABLED", "False")
    message_type = import_module("haystack.dataclasses").ChatMessage
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ExperimentalWarning: the note says it
        compactor = import_module("haystack.hooks.compaction").SlidingWindowCompactor(omission_note=None)

    def count(messages: list[Any], tools: object = None) -> int:
        texts = (text for message in messages for text in message.texts)
        results = (text_of(result.result) for message in messages for result in message.tool_call_results)
        return sum(map(estimate, texts)) + sum(map(estimate, results))

    counter = SimpleNamespace(count=count)

    def trim(messages: Any, budget: int) -> Any:
        return compactor.compact(messages, target_tokens=budget, token_counter=counter) or messages

    def prepare(chat: Chat) -> list[Any]:
        return [message_type.from_openai_dict_format(message) for message in chat]

    def restore(messages: list[Any]) -> Chat:
        # with calls and no text it leaves the content out
        return [{"content": None, **message.to_openai_dict_format()} for message in messages]

    note = (
        "SlidingWindowCompactor (experimental), without the note that it would add beyond the target; drops whole "
        "user turns; system, the last user message and the newest step after it stay even over the budget"
    )
    return Peer(name, version("haystack-ai"), note, counts=True, prepare=prepare, trim=trim, restore=restore)


_POEM = """
{% for message in messages %}
- name: message_{{ loop.index }}
  role: {{ message.role }}
  truncation_priority: {{ message.priority }}
  content: |
    {{ escape_special_characters(message.text) }}
{% endfor %}
"""


def _prompt_poet(name: str) -> Peer:
    path = list(sys.path)
    prompt_type = import_module("prompt_poet").Prompt
    sys.path[:] = path  # it puts its own folder first, where `examples` and `tokenizer` would hide ours
    # `tokenizer` until 0.0.37, which is what pip finds beside a current tiktoken; `encode_func` in newer ones
    current = "encode_func" in inspect.signature(prompt_type).parameters
    counter = {"encode_func": _tokens} if current else {"tokenizer": SimpleNamespace(tokenize=_tokens)}

    def prepare(chat: Chat) -> list[dict[str, Any]]:
        fixed = {*range(_systems(chat)), len(chat) - 1}
        return [
            {"role": message["role"], "text": text_of(message["content"]), "priority": int(index not in fixed)}
            for index, message in enumerate(chat)
        ]

    def trim(messages: Any, budget: int) -> Any:
        options = {"raw_template": _POEM, "token_limit": budget, "truncation_step": 1}
        prompt = prompt_type({"messages": messages}, **options, **counter)
        prompt.tokenize()
        prompt.truncate()
        return prompt

    def restore(prompt: Any) -> Chat:
        return [{"role": part.role, "content": part.content} for part in prompt.parts]

    note = (
        "Prompt, tokenize, truncate, the rendering of its Jinja and YAML template included; no tool calls or ids; "
        "strips white space and turns a literal backslash-n into a newline; raises when the fixed parts do not fit"
    )
    peer = Peer(name, version("prompt-poet"), note, counts=True, prepare=prepare, trim=trim, restore=restore)
    return replace(peer, tools=False)


_SHOWN = "trim_messages as its documentation shows it, start_on='human'"
_UNSET = "start_on left at its default, as in langchain #33245"
_APPROXIMATE = "its fast path, token_counter='approximate': characters / 4, and 3 tokens and the role more a message"

_FACTORIES: dict[str, Callable[[str], Peer]] = {
    "langchain-core": partial(_langchain, note=_SHOWN),
    "langchain-core (no start_on)": partial(_langchain, note=_UNSET, start_on=None),
    "langchain-core (approximate)": partial(_langchain, note=_APPROXIMATE, counter="approximate"),
    "litellm": _litellm,
    "llama-index-core": _llama_buffer,
    "llama-index-core (Memory)": _llama_memory,
    "agent-framework-core": _agent_framework,
    "haystack-ai": _haystack,
    "prompt-poet": _prompt_poet,
}


PACKAGES = ("langchain-core", "litellm", "llama-index-core", "agent-framework-core", "haystack-ai", "prompt-poet")


def load(names: Iterable[str] | None = None) -> list[Peer]:
    """The named peers, or all of them, in the order asked for; a library that is not installed is an ImportError."""
    wanted = list(_FACTORIES if names is None else names)
    for name in wanted:
        if name not in _FACTORIES:
            raise ValueError(f"no peer named {name!r}; known: {', '.join(_FACTORIES)}")
    return [_FACTORIES[name](name) for name in wanted]


def _plain(size: int, seed: int) -> Chat:
    """A chat of `size` messages, 40 to 200 tokens each, between a system message and a question."""
    chance, words = random.Random(seed), "the budget of a chat is spent by what stands in it "
    texts = [words * chance.randint(3, 16) for _ in range(size)]
    history = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    return [{"role": "system", "content": "Be brief."}, *history, {"role": "user", "content": "And now?"}]


def _agentic(rounds: int) -> Chat:
    """Questions that are each answered after two parallel tool calls with longish results."""
    chat: Chat = [{"role": "system", "content": "Be brief."}]
    for i in range(rounds):
        calls = [_call(f"call_{i}{side}", "look_up", '{"city": "Berlin"}') for side in "ab"]
        chat += [{"role": "user", "content": f"What about city {i}?"}, _assistant("", calls)]
        chat += [{"role": "tool", "content": "rain " * 40, "tool_call_id": call["id"]} for call in calls]
        chat += [{"role": "assistant", "content": "It rains."}]
    return [*chat, {"role": "user", "content": "And now?"}]


def _faults(chat: Chat, budget: int) -> str:
    """What is wrong with a trimmed chat, in a few words, or "ok"."""
    first = next((message["role"] for message in chat if message["role"] != "system"), "")
    owed, split = set[str](), False
    for message in chat:
        if message["role"] == "tool":
            split |= message.get("tool_call_id") not in owed
            owed.discard(message.get("tool_call_id", ""))
        else:
            split |= bool(owed)
            owed = {call["id"] for call in message.get("tool_calls") or ()}
    found = ["opens with orphan"] * (first == "tool") + ["splits a pair"] * (split or bool(owed))
    found += ["question lost"] * (chat[-1:] != [{"role": "user", "content": "And now?"}])
    found += ["over budget"] * (sum(estimate(text_of(message["content"])) for message in chat) > budget)
    return ", ".join(found) or "ok"


def _timed(peer: Peer, size: int, seed: int = 0) -> tuple[float, int]:
    prepared = peer.prepare(_plain(size, seed))
    start = time.process_time()
    kept = peer.trim(prepared, 8_000)
    return time.process_time() - start, len(peer.restore(kept))


def _trimmed(peer: Peer, chat: Chat, budget: int) -> str:
    if not peer.tools:
        return "holds no tool calls"
    try:
        return _faults(peer.restore(peer.trim(peer.prepare(chat), budget)), budget)
    except Exception as error:  # whatever a library raises is the result
        return f"raises {type(error).__name__}"


def main(budgets: Sequence[int] = (5, 60, 120, 170, 220, 280)) -> None:
    peers = load()
    print("peer | version | 100 messages: CPU s of 5 chats, sorted | 1,000 messages", "--- | --- | --- | ---", sep="\n")
    for peer in peers:
        _timed(peer, 10)  # first calls import and load
        small = sorted(_timed(peer, 100, seed) for seed in range(5))
        large = sorted(_timed(peer, 1_000, seed) for seed in range(5)) if small[-1][0] <= 5 else []
        cells = (", ".join(f"{spent:.4f} ({kept})" for spent, kept in runs) or "skipped" for runs in (small, large))
        print(peer.name, peer.version, *cells, sep=" | ")
    print("\npeer", *(f"budget {budget}" for budget in budgets), sep=" | ")
    print("---", *("---" for _ in budgets), sep=" | ")
    for peer in peers:
        print(peer.name, *(_trimmed(peer, _agentic(4), budget) for budget in budgets), sep=" | ")


if __name__ == "__main__":
    main()
