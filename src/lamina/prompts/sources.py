"""The sources of a chat's layers [0] to [4] and of its context, each from where it is stored.

A source gives layers and decides nothing about what fits. What belongs to an owner is asked for by that owner alone.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from lamina.errors import LaminaError, LayerError, NotFoundError, format_value
from lamina.memory.service import MemoryService, collected_layers, memory_layers, summary_layers
from lamina.ports import Source
from lamina.prompts.templates import MissingSlots, scenario_layers, scenario_rank, supports
from lamina.records import Template, Turn
from lamina.store.messages import Messages
from lamina.store.templates import Profile, Templates
from lamina.types import LAYERS, Layer, Trust

SHARED = "@operator"
"""The owner under which templates are kept that the operator gives to everybody. No user has such a name."""
MAX_TEMPLATES = 1_000
"""Templates of one owner that may be enabled at once."""
AROUND = 6
"""Messages before the newest whose words help to find memories."""

SourceAnswer = str | Layer | Sequence[Layer] | None
SourceFunction = Callable[[Turn], SourceAnswer | Awaitable[SourceAnswer]]
Services = Callable[[str], MemoryService]


class ScenarioSource:
    """[1]: the scenario's prompt and the skills for the host, the operator's and the owner's own."""

    name, optional = "scenario", False

    def __init__(self, templates: Templates, profile: Profile, *, missing: MissingSlots = "error") -> None:
        self._templates, self._profile = templates, profile
        self._missing: MissingSlots = missing

    async def layers(self, turn: Turn, /) -> Sequence[Layer]:
        session = turn.session
        own, known = await self._enabled(turn.owner), await self._profile.get(turn.owner)
        mine = {(t.is_skill, t.name, t.scenario) for t in own}
        others = [t for t in await self._enabled(SHARED) if (t.is_skill, t.name, t.scenario) not in mine]
        chosen_is_own = any(t.is_skill and t.name == session.skill and supports(t, session.app) for t in own)
        found: list[tuple[int, Layer]] = []
        for templates, owner in ((own, turn.owner), (others, None)):
            rank = scenario_rank(templates, session.scenario, session.app)
            layers = scenario_layers(
                templates,
                scenario=session.scenario,
                app=session.app,
                values={**known, **turn.values},
                missing=self._missing,
                chosen=session.skill if chosen_is_own == (owner is not None) else "",
                owner=owner,
            )
            found += [(rank, layer) for layer in layers]
        prompts = sorted((one for one in found if one[1].name == "scenario"), key=lambda one: one[0])
        skills = [layer for _, layer in found if layer.name == "skill"]
        return [*(layer for _, layer in prompts[:1]), *skills]

    async def _enabled(self, owner: str) -> Sequence[Template]:
        found = await self._templates.list(owner, enabled=True)
        if len(found) > MAX_TEMPLATES:
            raise LayerError("template.too_many", owner=format_value(owner), count=len(found), limit=MAX_TEMPLATES)
        return found


class ChosenSource:
    """The skill that a session chose: its text comes with the others. One that was deleted or switched off since then
    stops no turn, as its owner wanted it so; the receipt says that it is not there."""

    name, optional = "skill", True

    def __init__(self, templates: Templates) -> None:
        self._templates = templates

    async def layers(self, turn: Turn, /) -> Sequence[Layer]:
        chosen, app = turn.session.skill, turn.session.app
        for owner in (turn.owner, SHARED) if chosen else ():
            found = await self._templates.list(owner, enabled=True)
            if any(t.is_skill and t.name == chosen and supports(t, app) for t in found):
                return ()
        if chosen:
            raise NotFoundError("skill.not_enabled", name=format_value(chosen))
        return ()


class SessionSource:
    """[2]: what is known of the session and of its owner's profile."""

    name, optional = "session", False

    def __init__(self, profile: Profile) -> None:
        self._profile = profile

    async def layers(self, turn: Turn, /) -> Sequence[Layer]:
        profile = await self._profile.get(turn.owner)
        found = (("profile", profile), ("session", turn.session.meta))
        return [
            Layer("session", _lines(values), source, turn.owner, "outside", True) for source, values in found if values
        ]


class MemorySource:
    """[3]: what was found for the words of the turn."""

    name, optional = "memory", True

    def __init__(self, services: Services, history: Messages, *, top_n: int) -> None:
        self._services, self._history, self._top_n = services, history, top_n

    async def layers(self, turn: Turn, /) -> Sequence[Layer]:
        context = await self._around(turn)
        found = await self._services(turn.owner).get_relevant_memories(turn.words, self._top_n, context=context)
        return memory_layers(found, turn.owner)

    async def _around(self, turn: Turn) -> Sequence[str]:
        """The words before these."""
        if turn.given.history is not None:
            newest = turn.given.history[-AROUND:]
            return [str(one["content"]) for one in newest if one["role"] != "tool" and isinstance(one["content"], str)]
        around = await self._history.list(
            turn.owner, turn.session.session_id, before=turn.before, limit=AROUND, newest=True
        )
        return [row.text for row in around if row.role in ("user", "assistant") and row.text]


class CollectedSource:
    """Answers that the owner collected, the newest ones."""

    name, optional = "collected", True

    def __init__(self, history: Messages, *, limit: int) -> None:
        self._history, self._limit = history, limit

    async def layers(self, turn: Turn, /) -> Sequence[Layer]:
        rows = await self._history.collected(turn.owner, limit=self._limit)
        elsewhere = [row for row in rows if row.session_id != turn.session.session_id]
        return collected_layers(elsewhere, turn.owner)


class SummarySource:
    """[4]: what other sessions were about, never the current one."""

    name, optional = "summary", True

    def __init__(self, services: Services, *, limit: int) -> None:
        self._services, self._limit = services, limit

    async def layers(self, turn: Turn, /) -> Sequence[Layer]:
        service = self._services(turn.owner)
        found = await service.get_recent_session_summaries(self._limit, without=turn.session.session_id)
        return summary_layers(found, turn.owner)


def chat_sources(
    templates: Templates,
    profile: Profile,
    history: Messages,
    services: Services,
    *,
    missing: MissingSlots,
    memories: int,
    collected: int,
    summaries: int,
) -> list[Source]:
    """Those of every chat. In which order they are asked does not matter: each layer has its place."""
    return [
        ScenarioSource(templates, profile, missing=missing),
        ChosenSource(templates),
        SessionSource(profile),
        MemorySource(services, history, top_n=memories),
        CollectedSource(history, limit=collected),
        SummarySource(services, limit=summaries),
    ]


class FunctionSource:
    """A registered function: it gives text, a layer, several, or nothing."""

    def __init__(self, function: SourceFunction, called: str, *, layer: str, trust: Trust, optional: bool) -> None:
        if layer not in LAYERS:
            raise LayerError("source.unknown_layer", name=format_value(layer), known=LAYERS)
        self.name, self.optional = layer, optional
        self.called = called
        self._function = function
        self._trust: Trust = trust

    async def layers(self, turn: Turn, /) -> Sequence[Layer]:
        (found,) = await asyncio.gather(self._ask(turn), return_exceptions=True)
        if isinstance(found, LaminaError) or (isinstance(found, BaseException) and not isinstance(found, Exception)):
            raise found
        if isinstance(found, Exception):
            values = {"source": self.called, "error": type(found).__name__, "problem": str(found)}
            raise LayerError("source.failed", **values) from found
        if found is None:
            return ()
        if isinstance(found, str):
            return (Layer(self.name, found, f"source:{self.called}", None, self._trust, True),)
        if not isinstance(found, Layer | list | tuple):
            raise self._unusable(found)
        layers = (found,) if isinstance(found, Layer) else tuple(found)
        for layer in layers:
            if not isinstance(layer, Layer):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
                raise self._unusable(layer)
        return layers

    def _unusable(self, value: object) -> LayerError:
        return LayerError("source.unusable_value", source=self.called, value=format_value(value))

    async def _ask(self, turn: Turn) -> SourceAnswer:
        answer = self._function(turn)
        return await answer if inspect.isawaitable(answer) else answer


def _lines(values: Mapping[str, Any]) -> str:
    return "\n".join(f"{name}: {value}" for name, value in sorted(values.items()))
