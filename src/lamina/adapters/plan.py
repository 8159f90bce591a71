"""What every hook does, whatever the framework: layers and a budget in, their own messages and a receipt out.

A framework's message is turned into lamina's form to be counted and cut; what is kept is handed back as the very
object it was, so its ids, usage and signatures stay. Knows no framework.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from lamina.adapters.forms import text_of
from lamina.assembly.budget import Budget, StartOn
from lamina.assembly.pieces import PromptStyle
from lamina.assembly.request import assemble
from lamina.assembly.tokens import estimate_message_tokens
from lamina.errors import LayerError, MessageError, format_value
from lamina.ports import Count
from lamina.types import AnyTool, Context, Lang, Layer, Message, Share

Origin = TypeVar("Origin")
Gather = Callable[[Sequence[Message]], Sequence[Layer]]
"""Gives the layers for one request; it gets the chat so far, in lamina's form, to look memories up by."""


class Piece(NamedTuple, Generic[Origin]):
    """A message in lamina's form, and what of the framework's it was made of."""

    message: Message
    origin: Origin


class Kept(NamedTuple, Generic[Origin]):
    """A message that will be sent. Where it is `changed`, as every result of a tool is by its fence, it has the text of
    the message and everything else of its origin."""

    message: Message
    origin: Origin
    changed: bool


def _nobody(_context: Context) -> None:
    """Without `tell` the receipt is for nobody."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a hook adds, how much room there is, and who gets the receipts.

    `layers` are values, or a function that gives them for each request. `tell` gets every context, in the thread
    or task of its request. `tools` are schemas that the framework sends but does not show its hook.
    `keep_thinking` lets thinking blocks and signatures, for which lamina's messages have no place, stay with their
    message: sent or cut with it, and neither counted nor in the receipt. Without it they are refused.
    """

    layers: Sequence[Layer] | Gather
    budget: float
    tell: Callable[[Context], object] = _nobody
    tools: Sequence[AnyTool] = ()
    keep_thinking: bool = False
    count: Count = estimate_message_tokens
    start_on: StartOn = "user"
    owner: str | None = None
    mark: str = field(default_factory=lambda: secrets.token_hex(4))
    """From which fences get their tags; a plan makes its own. Pass the one that you keep with the session where the
    provider's cache should outlive the plan."""
    lang: Lang = "en"
    shares: Mapping[str, Share] | None = field(default=None)

    def __post_init__(self) -> None:
        if isinstance(self.layers, str):  # a sequence too, of letters
            raise LayerError("layer.bad_plan", value=format_value(self.layers))

    def fit(
        self, pieces: Sequence[Piece[Origin]], *, source: str, system: str = "", tools: Sequence[AnyTool] = ()
    ) -> tuple[Context, list[Kept[Origin]]]:
        """The context, and of `pieces` those that it holds. The framework's own system text becomes a layer."""
        opening = _system_count(pieces)
        spoken = pieces[opening:]
        history = [piece.message for piece in spoken]
        texts = [system, *(text_of(piece.message["content"]) for piece in pieces[:opening])]
        own = [Layer("instructions", text, source) for text in texts]
        given = self.layers(history) if callable(self.layers) else self.layers
        context = assemble(
            [*own, *given],
            history,
            None,
            budget=Budget(self.budget, self.count, self.shares, start_on=self.start_on),
            style=PromptStyle(self.mark, self.owner, self.lang),
            tools=[*tools, *self.tools],
        )
        self.tell(context)
        return context, _kept(spoken, context)


def _system_count(pieces: Sequence[Piece[Origin]]) -> int:
    """How many system messages open the chat; one in the middle has no place."""
    roles = [piece.message["role"] for piece in pieces]
    opening = next((number for number, role in enumerate(roles) if role != "system"), len(roles))
    if "system" in roles[opening:]:
        place = roles.index("system", opening)
        raise MessageError("adapter.system_in_middle", where=f"messages[{place}]")
    return opening


def _kept(spoken: Sequence[Piece[Origin]], context: Context) -> list[Kept[Origin]]:
    said = [message for message in context.messages if message["role"] != "system"]
    first = len(spoken) - len(said)
    return [
        Kept(message, piece.origin, message != piece.message)
        for message, piece in zip(said, spoken[first:], strict=True)
    ]
