"""Assembly for those who use it as a library: plain numbers in place of `Budget`, and a mark where none is given.

A mark tells lamina's own tags from text that imitates them, so none is built in. Assembly itself is pure and takes the
mark that it is given; a `Window` and a `Ledger` get one each, `assemble` gets one for each owner as long as the process
lives. To have the same bytes in another process, pass your own.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from lamina.assembly import ledger, request, window
from lamina.assembly.budget import Budget, StartOn
from lamina.assembly.fences import session_mark
from lamina.assembly.history import check_message
from lamina.assembly.pieces import PromptStyle
from lamina.assembly.request import Words
from lamina.assembly.tokens import estimate_message_tokens
from lamina.ports import Count
from lamina.text.messages import Phrase
from lamina.types import AnyMessage, AnyTool, Context, Form, Lang, Layer, Layout, Share


@cache
def _process_secret() -> bytes:
    return os.urandom(16)


def check_user(user: Words | None) -> None:
    """Refuse what no provider would take; assembly itself trusts messages that its callers have checked."""
    if user is not None:
        check_message({"role": "user", "content": user}, "user")


def new_mark() -> str:
    return os.urandom(4).hex()


def assemble(
    layers: Sequence[Layer] = (),
    *,
    history: Sequence[AnyMessage] = (),
    user: Words | None = None,
    budget: float,
    count: Count = estimate_message_tokens,
    tools: Sequence[AnyTool] = (),
    start_on: StartOn = "user",
    owner: str | None = None,
    mark: str | None = None,
    lang: Lang = "en",
    form: Form = "plain",
    shares: Mapping[str, Share] | None = None,
    skipped: Mapping[str, str | Phrase] | None = None,
    older: int = 0,
    repeat: Sequence[Layer] = (),
) -> Context:
    """Everything that one request holds, within `budget`, and the receipt for it. `mark` makes the tags of fences.

    The system message and the current turn always stay: `user`, or, without it, the history from its last user message
    on. Of the rest the longest legal suffix that fits is kept. With `shares`, layers that take more than theirs give
    way; `skipped` are layers that are not there, and why; `older` counts messages that were not even read; `repeat` are
    layers that are sent in front of the user's words.
    """
    check_user(user)
    # The mark is the same for all requests of an owner, so that a provider's cache holds.
    mark = session_mark(_process_secret(), str(owner or "")) if mark is None else mark
    return request.assemble(
        layers,
        history,
        user,
        budget=Budget(budget, count, shares, start_on=start_on),
        style=PromptStyle(mark, owner, lang, form),
        tools=tools,
        skipped=skipped,
        older=older,
        repeat=repeat,
    )


class Window(window.Window):
    __doc__ = window.Window.__doc__

    def __init__(
        self,
        *,
        budget: float,
        system: str | Sequence[Layer] = (),
        tools: Sequence[AnyTool] = (),
        history: Iterable[AnyMessage] = (),
        count: Count = estimate_message_tokens,
        low_water: float | None = None,
        start_on: StartOn = None,
        owner: str | None = None,
        mark: str | None = None,
        lang: Lang = "en",
    ) -> None:
        style = PromptStyle(new_mark() if mark is None else mark, owner, lang)
        limits = Budget(budget, count, low_water=low_water, start_on=start_on)
        super().__init__(limits, style, system=system, tools=tools, history=history)


class Ledger(ledger.Ledger):
    __doc__ = ledger.Ledger.__doc__

    def __init__(
        self,
        *,
        budget: float,
        layout: Layout = "strict",
        low_water: float | None = None,
        history: Iterable[AnyMessage] = (),
        count: Count = estimate_message_tokens,
        start_on: StartOn = "user",
        owner: str | None = None,
        mark: str | None = None,
        lang: Lang = "en",
        form: Form = "plain",
        shares: Mapping[str, Share] | None = None,
        older: int = 0,
    ) -> None:
        style = PromptStyle(new_mark() if mark is None else mark, owner, lang, form)
        limits = Budget(budget, count, shares, low_water, start_on)
        super().__init__(limits, style, layout=layout, history=history, older=older)

    def prepare(
        self,
        layers: Sequence[Layer] = (),
        *,
        user: Words | None = None,
        tools: Sequence[AnyTool] = (),
        repeat: Sequence[Layer] = (),
        skipped: Mapping[str, str | Phrase] | None = None,
    ) -> Context:
        check_user(user)
        return super().prepare(layers, user=user, tools=tools, repeat=repeat, skipped=skipped)
