"""Which messages are sent: the longest legal run of history that fits (seed 001).

One walk from the newest message to the oldest; it stops where the budget does, so it costs what is kept,
not what there is. A history may be cut only before a message at which no tool call is open.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

from lamina.assembly.checks import check_message
from lamina.assembly.tokens import (
    check_budget,
    check_counter,
    content_tokens,
    estimate_message_tokens,
    per_message,
    per_request,
    text_tokens,
)
from lamina.errors import MessageError, format_value
from lamina.ports import Count
from lamina.text.unicode import utf8_size
from lamina.types import AnyMessage, Dropped, Message, ToolOutput

StartOn = Literal["user"] | None


class Messages(list[Message]):
    """The fitted messages: a plain list for any SDK, which also says what it cost and what was left out."""

    __slots__ = ("_dropped", "budget", "dropped_count", "over_budget", "tokens")

    def __init__(
        self,
        messages: Sequence[Message],
        *,
        tokens: int,
        budget: float,
        dropped: tuple[int, Callable[[], int]],
        factor: float = 1.0,
    ) -> None:
        super().__init__(messages)
        self.tokens = tokens
        self.budget = budget
        self.over_budget = tokens * factor > budget
        """True when what always stays exceeds the budget by itself."""
        self.dropped_count, self._dropped = dropped

    @property
    def dropped(self) -> Dropped:
        """How many messages were left out, and their tokens, which are counted only when they are asked for."""
        return Dropped(self.dropped_count, self._dropped())


def tokens_before(history: Sequence[AnyMessage], end: int, count: Count) -> int:
    """Tokens of `history[:end]`, every message checked."""
    if len(history) < end:
        raise MessageError("history.changed", expected=end, count=len(history))
    each, tokens = per_message(count), 0
    for index in range(end):
        message = history[index]
        check_message(message, f"history[{index}]")
        tokens += content_tokens(message, count) + each
    return tokens


def build_llm_messages(
    *,
    system_prompt: str,
    history: Sequence[AnyMessage],
    current_user_message: str | Sequence[Mapping[str, Any]],
    max_token_budget: float,
    count_tokens: Count = estimate_message_tokens,
    start_on: StartOn = None,
) -> Messages:
    """`[system, *history, current]` within a budget, as copies of what is handed in (seed 001).

    System and current always stay; of the history the longest legal suffix that fits (M3, M4, M7).
    """
    budget = check_budget(max_token_budget)
    check_counter(count_tokens)
    check_start_on(start_on)
    if not isinstance(system_prompt, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise MessageError(
            "text.not_text", where="system_prompt", type=type(system_prompt).__name__, value=format_value(system_prompt)
        )
    system = cast(Message, {"role": "system", "content": system_prompt})
    current = cast(Message, {"role": "user", "content": current_user_message})
    fixed = per_request(count_tokens) + 2 * per_message(count_tokens)
    fixed += text_tokens(system_prompt, count_tokens, "system_prompt")
    if isinstance(current_user_message, str):
        fixed += text_tokens(current_user_message, count_tokens, "current_user_message")
    else:
        check_message(current, "current_user_message")
        fixed += content_tokens(current, count_tokens)
    history = check_history(history)
    start, used = longest_suffix(history, budget - fixed, count_tokens, start_on)
    return Messages(
        [system, *map(_own_message, history[start:]), _own_message(current)],
        tokens=fixed + used,
        budget=budget,
        dropped=(start, lambda: tokens_before(history, start, count_tokens)),
    )


def _own_message(message: AnyMessage) -> Message:
    """A copy: changing it, or a part or a call in it, never changes what the caller handed in."""
    is_plain = len(message) == 2 and isinstance(message["content"], str)  # nearly all are
    return cast(Message, dict(message) if is_plain else _copy_nested(message))


def _copy_nested(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _copy_nested(each) for name, each in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple):
        copied = [_copy_nested(each) for each in cast("Sequence[object]", value)]
        return copied if isinstance(value, list) else tuple(copied)
    return value


def check_start_on(start_on: object) -> None:
    if start_on not in (None, "user"):
        raise MessageError("history.bad_start_on", value=format_value(start_on))


def check_history(history: object) -> Sequence[AnyMessage]:
    """A history as something that can be counted and cut: a list or tuple as it is, other sequences as a list."""
    if isinstance(history, list | tuple):
        return cast(Sequence[AnyMessage], history)
    if isinstance(history, str | bytes | Mapping) or not isinstance(history, Sequence):
        found = cast(object, history)
        raise MessageError("history.not_list", type=type(found).__name__, value=format_value(found))
    return list(cast(Sequence[AnyMessage], history))


def longest_suffix(
    history: Sequence[AnyMessage], room: float, count: Count, start_on: StartOn = None,
    costs: Sequence[int] | None = None,
) -> tuple[int, int]:  # fmt: skip
    """Where the longest legal suffix of `history` that costs at most `room` begins, and what it costs. With `costs`
    each message has been checked and counted before."""
    history = check_history(history)
    seed_count = count is estimate_message_tokens
    each = per_message(count)
    start, kept, used = len(history), 0, 0
    pending: list[str] = []  # results seen whose call has not come yet, newest first
    for index in range(len(history) - 1, -1, -1):
        message = history[index]
        try:
            role, content = message["role"], message["content"]
            if type(content) is str and len(message) == 2 and (role == "user" or role == "assistant") and not pending:
                if costs is not None:
                    used += costs[index]
                elif seed_count:  # the seed's estimate written out: one call less for each message
                    used += ((len(content) if content.isascii() else utf8_size(content)) + 3) // 4
                else:
                    used += text_tokens(content, count) + each
            else:
                if costs is None:
                    check_message(message, f"history[{index}]")
                if isinstance(content, ToolOutput):  # `assemble`, `Window` and `Ledger` have rendered it by now
                    raise MessageError("history.unfenced_result", where=f"history[{index}]")
                _match_calls(message, pending, index)
                used += costs[index] if costs is not None else content_tokens(message, count) + each
        except (KeyError, TypeError, UnicodeEncodeError, MessageError) as error:
            raise located(error, message, index) from None
        if used > room:
            break
        if not pending and (start_on is None or role == start_on):
            start, kept = index, used
    else:
        if pending:
            raise MessageError(
                "history.result_without_call",
                where="history[0]",
                call=format_value(pending[-1]),
                hint="history.keep_call",
            )
    return start, kept


def located(error: Exception, message: object, index: int) -> Exception:
    """An error from inside the walk, with the place in the history named."""
    where = f"history[{index}]"
    try:
        check_message(message, where)
    except MessageError as found:
        return found
    return error


def _match_calls(message: AnyMessage, pending: list[str], index: int) -> None:
    """Going back in time: a tool result waits for its call; a message with calls must meet exactly its results."""
    if message["role"] == "tool":
        pending.append(message["tool_call_id"])
        return
    calls, results = [call["id"] for call in message.get("tool_calls") or ()], set(pending)
    missing = [call for call in calls if call not in results]
    if missing:
        raise MessageError("history.call_without_result", where=f"history[{index}]", call=format_value(missing[0]))
    orphans = results.difference(calls)
    if orphans:
        first = next(result for result in reversed(pending) if result in orphans)
        raise MessageError("history.result_without_call", where=f"history[{index + 1}]", call=format_value(first))
    if len(pending) > len(calls):
        twice = next(result for result in pending if pending.count(result) > 1)
        raise MessageError("history.second_result", where=f"history[{index + 1}]", call=format_value(twice))
    pending.clear()
