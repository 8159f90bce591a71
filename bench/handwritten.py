"""The yardstick: what an experienced developer writes by hand, in front of any SDK, without a library.

Newest to oldest, stop when the budget is full. It takes text content only and knows nothing of tool calls,
so it can part a call from its result; the fuzzer shows how often. Imports nothing from lamina, on purpose.
"""

from collections.abc import Sequence
from typing import Any

Message = dict[str, Any]
Chat = list[Message]


def estimate(text: str) -> int:
    """Tokens of a text: a quarter of its UTF-8 bytes, rounded up; 0 for "" and so at least 1 for anything else."""
    return -(-len(text.encode()) // 4)


def _assembled(system: str, kept: Sequence[Message], user: str) -> Chat:
    return [{"role": "system", "content": system}, *kept, {"role": "user", "content": user}]


def _suffix(history: Sequence[Message], room: float) -> Sequence[Message]:
    """The longest run of newest messages that fits into `room` tokens."""
    start = len(history)
    for message in reversed(history):
        room -= estimate(message["content"] or "")
        if room < 0:
            break
        start -= 1
    return history[start:]


def fit(system: str, history: Sequence[Message], user: str, budget: float) -> Chat:
    """System and user always; of the history, the newest messages that fit."""
    return _assembled(system, _suffix(history, budget - estimate(system) - estimate(user)), user)


def fit_half(system: str, history: Sequence[Message], user: str, budget: float) -> Chat:
    """Leave the history alone while it fits; once over budget, cut so that everything takes half of it.

    The cut keeps the prefix still for many turns, but only if the caller goes on from what was kept:
    the next call's history is `result[1:]` and the answer, not the whole chat again.
    """
    fixed = estimate(system) + estimate(user)
    kept = _suffix(history, budget - fixed)
    if len(kept) < len(history):
        kept = _suffix(history, budget / 2 - fixed)
    return _assembled(system, kept, user)
