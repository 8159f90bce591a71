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
from lamina.errors import MessageError, shown
from lamina.ports import Count
from lamina.types import AnyMessage, Dropped, Message

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
        raise MessageError(
            f"the history had at least {end} messages when it was fitted and has {len(history)} now",
            hint="ask for `dropped` before you change the history",
        )
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
    """`[system, *history, current]` within a budget (seed 001).

    System and current always stay; of the history the longest legal suffix that fits (M3, M4, M7).
    """
    budget = check_budget(max_token_budget)
    check_counter(count_tokens)
    check_start_on(start_on)
    if not isinstance(system_prompt, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise MessageError(f"system_prompt must be a string, not {type(system_prompt).__name__}")
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
    kept = cast(Sequence[Message], history[start:])
    return Messages(
        [system, *kept, current],
        tokens=fixed + used,
        budget=budget,
        dropped=(start, lambda: tokens_before(history, start, count_tokens)),
    )


def check_start_on(start_on: object) -> None:
    if start_on not in (None, "user"):
        raise MessageError(f"start_on must be None or 'user', not {shown(start_on)}")


def check_history(history: object) -> Sequence[AnyMessage]:
    """A history as something that can be counted and cut: a list or tuple as it is, other sequences as a list."""
    if isinstance(history, list | tuple):
        return cast(Sequence[AnyMessage], history)
    if isinstance(history, str | bytes | Mapping) or not isinstance(history, Sequence):
        found = cast(object, history)
        raise MessageError(f"history must be a list of messages, not {type(found).__name__}: {shown(found)}")
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
                    used += (len(content if content.isascii() else content.encode()) + 3) // 4
                else:
                    used += text_tokens(content, count) + each
            else:
                if costs is None:
                    check_message(message, f"history[{index}]")
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
                f"history[0] … holds the tool result {shown(pending[-1])} without the call it answers",
                hint="keep the assistant message with its tool_calls, or leave the result out",
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
        raise MessageError(
            f"history[{index}] calls tool {shown(missing[0])} and no result follows it",
            hint="add a tool message with that tool_call_id right after it, if need be one that says 'interrupted'",
        )
    orphans = results.difference(calls)
    if orphans:
        first = next(result for result in reversed(pending) if result in orphans)
        raise MessageError(
            f"history[{index + 1}] … holds the tool result {shown(first)} without the call it answers",
            hint="a tool message follows the assistant message whose tool_calls name its tool_call_id",
        )
    if len(pending) > len(calls):
        twice = next(result for result in pending if pending.count(result) > 1)
        raise MessageError(
            f"history[{index + 1}] … answers the tool call {shown(twice)} twice", hint="keep one result a call"
        )
    pending.clear()
