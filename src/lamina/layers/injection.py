"""When instructions and rules reach the model: on the first turn, again when they would fade, at once when they change.

A state machine in two steps: `prepare` decides and renders and changes nothing, `sent` moves the state after the send
succeeded, so a failed send leaves the injection due. It reads files only through `InstructionFiles` and has no clock.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, cast

from lamina.errors import InstructionsError, LayerError, SettingsError, shown
from lamina.layers.instructions import InstructionFiles, Loaded
from lamina.types import Lang, Layer

Source = Literal["instructions", "rules"]
Change = Literal["full", "replaces", "removed"]
UserInput = str | Sequence[Mapping[str, Any]]

SOURCES: tuple[Source, ...] = ("instructions", "rules")
LEVELS = (75, 50, 25)
"""Shares of the context, in percent; crossing one upwards brings everything again."""
SLACK = 10
"""How many points the use must fall below a level before crossing it again counts: figures waver."""
MOST = 2.0
"""More of a context than there is may be reported, but not a percentage taken for a share."""
MOVES = ("workspace changed", "model changed")
TURNS = 15
FAILURES = 3
MANY = 10**15
"""No session counts so far."""
JOIN = "\n\n"
WORDS: dict[Change, dict[Source, dict[str, str]]] = {
    "replaces": {
        "instructions": {"en": "These instructions replace the former ones:", "zh": "以下指令取代先前的指令："},
        "rules": {"en": "These rules replace the former ones:", "zh": "以下规则取代先前的规则："},
    },
    "removed": {
        "instructions": {"en": "The former instructions no longer apply.", "zh": "先前的指令不再适用。"},
        "rules": {"en": "The former rules no longer apply.", "zh": "先前的规则不再适用。"},
    },
}


@dataclass(frozen=True, slots=True)
class InjectionSettings:
    """`enabled=False` stops every later injection; the first one of a session stays (I8)."""

    enabled: bool = True
    turns: int = TURNS
    cadence: Mapping[str, int] = field(default_factory=dict[str, int])
    """Turns for a source of its own: `{"rules": 1}`."""
    lang: Lang = "en"

    def __post_init__(self) -> None:
        if self.lang not in ("en", "zh"):
            raise SettingsError(f"no words in the language {shown(self.lang)}", hint="en or zh")
        if not isinstance(self.enabled, bool) or not isinstance(self.cadence, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
            raise SettingsError(f"enabled is {shown(self.enabled)}, cadence is {shown(self.cadence)}", hint="True, {…}")
        for name in set(self.cadence) - set(SOURCES):
            raise SettingsError(f"no source named {shown(name)} has a cadence", hint=f"known: {', '.join(SOURCES)}")
        for name, turns in (("turns", self.turns), *self.cadence.items()):
            if isinstance(turns, bool) or not isinstance(turns, int) or turns < 1:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
                raise SettingsError(f"the cadence {name} is {shown(turns)}", hint="a whole number of at least 1")

    def every(self, source: Source) -> int:
        return self.cadence.get(source, self.turns)


@dataclass(slots=True)
class Counters:
    first: int = 0
    repeated: int = 0
    failed: int = 0
    stale_rule_turns: int = 0
    """Turns that were sent while the model saw other rules than the file holds; 0 unless re-injection is off."""
    failed_in_a_row: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """What the model saw last of a source, and on which turn."""

    hash: str
    turn: int


@dataclass(frozen=True, slots=True)
class InjectionState:
    """All that must survive a restart; `to_dict` and `from_dict` are its form in the store."""

    turn: int = 0
    workspace: str = ""
    model: str = ""
    seen: Mapping[str, Seen] = field(default_factory=dict[str, Seen])
    level: int = 0
    noted: tuple[str, ...] = ()
    """What happened since the last turn that brings everything again: compaction, resume."""

    counters: Mapping[str, int] = field(default_factory=lambda: asdict(Counters()), compare=False)

    @property
    def begun(self) -> bool:
        return bool(self.seen)

    def to_dict(self) -> dict[str, Any]:
        seen = {source: {"hash": was.hash, "turn": was.turn} for source, was in self.seen.items()}
        return {
            "turn": self.turn,
            "workspace": self.workspace,
            "model": self.model,
            "seen": seen,
            "level": self.level,
            "noted": list(self.noted),
            "counters": dict(self.counters),
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "InjectionState":
        try:
            seen = {source: Seen(str(was["hash"]), was["turn"]) for source, was in data["seen"].items()}
            turn, level, noted = data["turn"], data["level"], tuple(data["noted"])
            counters = asdict(Counters(**data.get("counters", {})))
            numbers = [turn, level, *(was.turn for was in seen.values()), *counters.values()]
            names = [data["workspace"], data["model"], *(was["hash"] for was in data["seen"].values())]
            honest = all(type(number) is int and 0 <= number < MANY for number in numbers) and level in (0, *LEVELS)
            honest = honest and all(isinstance(name, str) for name in names) and isinstance(data["noted"], list)
            late = any(was.turn > turn for was in seen.values())
            if not honest or late or not set(seen) <= set(SOURCES) or not set(noted) <= {"compaction", "resume"}:
                raise ValueError
            return InjectionState(turn, str(data["workspace"]), str(data["model"]), seen, level, noted, counters)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise LayerError(
                f"{shown(data)} is no state of an injection", hint="begin the session anew: reset()"
            ) from None


@dataclass(frozen=True, slots=True)
class Part:
    """One source as it is injected."""

    source: Source
    change: Change
    text: str
    hash: str

    def render(self, lang: Lang) -> str:
        if self.change == "full":
            return self.text
        words = WORDS[self.change][self.source][lang]
        return f"{words}{JOIN}{self.text}" if self.change == "replaces" else words


@dataclass(frozen=True, slots=True)
class PromptEnvelope:
    """One turn's prompt: `[instructions, rules?, phase prompt?, user input]`, joined or split by role (I3, I4)."""

    turn: int
    reasons: tuple[str, ...]
    parts: tuple[Part, ...]
    phase_prompt: str | None
    user_input: UserInput
    first: bool
    loaded: Loaded
    after: InjectionState = field(repr=False)
    lang: Lang = "en"

    @property
    def injection(self) -> str:
        """What is injected, without phase prompt and user input; empty when nothing is."""
        return JOIN.join(part.render(self.lang) for part in self.parts)

    @property
    def joined(self) -> UserInput:
        """Everything in the user's message, for providers without a system role."""
        return self._before_user([self.injection, self.phase_prompt])

    @property
    def system(self) -> str:
        """For providers with a system role: the first injection; empty on later turns, when nothing before may move."""
        return self.injection if self.first else ""

    @property
    def user(self) -> UserInput:
        """The user's message beside `system`: a later injection and the phase prompt stand in front of the words."""
        return self._before_user([None if self.first else self.injection, self.phase_prompt])

    @property
    def layers(self) -> list[Layer]:
        """Instructions and rules as they are on disk now, for an assembly that rebuilds its system message."""
        return self.loaded.layers()

    @property
    def repeat(self) -> list[Layer]:
        """Layers to show once more although nothing changed, for `Ledger.prepare(…, repeat=…)`; there they are tagged
        so that no user's words can pass for them. What changed or is gone the ledger tells by itself from `layers`."""
        again = {part.source for part in self.parts if part.change == "full" and not self.first}
        return [layer for layer in self.layers if layer.name in again]

    @property
    def line(self) -> str:
        """`[SystemPrompt] initial instructions:1a2b3c4d rules:5e6f7a8b`; empty when nothing is injected."""
        if not self.parts:
            return ""
        hashes = " ".join(f"{part.source}:{part.hash[:8] or 'removed'}" for part in self.parts)
        return f"[SystemPrompt] {', '.join(self.reasons)} {hashes}"

    def _before_user(self, texts: Sequence[str | None]) -> UserInput:
        text = JOIN.join(piece for piece in texts if piece and not piece.isspace())
        if isinstance(self.user_input, str):
            return JOIN.join(piece for piece in (text, self.user_input) if piece)
        return [{"type": "text", "text": text}, *self.user_input] if text else list(self.user_input)


class SystemPromptManager:
    """Called in one place before every send, whichever the channel (I1): `prepare`, send, `sent`."""

    def __init__(
        self,
        files: InstructionFiles,
        *,
        settings: InjectionSettings | Mapping[str, Any] | None = None,
        model: str = "",
        state: InjectionState | Mapping[str, Any] | None = None,
        log: logging.Logger | None = None,
    ) -> None:
        settings = _settings(settings) if isinstance(settings, Mapping) else settings
        state = InjectionState.from_dict(state) if isinstance(state, Mapping) else state
        for given, kind in ((files, InstructionFiles), (settings, InjectionSettings), (state, InjectionState)):
            if given is not None and not isinstance(given, kind):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
                raise LayerError(f"{shown(given)} is no {kind.__name__}", hint=f"build one: {kind.__name__}(…)")
        self.settings = settings or InjectionSettings()
        self.counters = Counters(**state.counters) if state else Counters()
        self._files, self._model = files, model
        self._state = state or InjectionState()
        self._log = log or logging.getLogger("lamina.injection")
        self._prepared: PromptEnvelope | None = None
        self._warned = False
        self._since: tuple[str, ...] = ()
        """What was noted after the last envelope had been prepared: it stays due."""

    @property
    def state(self) -> InjectionState:
        """What to keep with the session."""
        return replace(self._state, counters=asdict(self.counters))

    def prepare(
        self, user_input: UserInput, *, phase_prompt: str | None = None, context_use: float | None = None
    ) -> PromptEnvelope:
        """What this turn sends. `context_use` is the share of the model's window that the provider reported last."""
        level = _level(context_use, self._state.level)
        _check_input(user_input, phase_prompt)
        loaded = self._load()
        turn = self._state.turn + 1
        now = _now(loaded)
        first = not self._state.begun or bool(self._moved())
        reasons, parts = self._first(now) if first else self._later(now, turn, level)
        seen = {source: was for source, was in self._state.seen.items() if not first and source in now}
        seen |= {part.source: Seen(part.hash, turn) for part in parts if part.change != "removed"}
        if not first and not self.settings.enabled:
            seen = dict(self._state.seen)
        after = InjectionState(turn, self._files.workspace.root, self._model, seen, level)
        if not first and not self.settings.enabled:  # what was missed while switched off stays due
            after = replace(after, level=min(level, self._state.level), noted=self._state.noted)
        self._since = ()
        self._prepared = PromptEnvelope(
            turn, reasons, parts, phase_prompt, user_input, not self._state.begun, loaded, after, self.settings.lang
        )
        return self._prepared

    def sent(self, envelope: PromptEnvelope) -> None:
        """The send succeeded: now, and only now, the state moves (I7)."""
        if envelope is None or envelope is not self._prepared:  # pyright: ignore[reportUnnecessaryComparison] -- callers without a type checker
            raise LayerError("this is not the envelope that was prepared last", hint="prepare, send, sent")
        self._state = replace(envelope.after, noted=tuple(dict.fromkeys((*envelope.after.noted, *self._since))))
        self._prepared = None
        if envelope.parts:
            begins = envelope.first or bool(set(envelope.reasons) & set(MOVES))
            self.counters.first += begins
            self.counters.repeated += not begins
            self._log.info("%s", envelope.line)
        visible, on_disk = envelope.after.seen.get("rules"), _now(envelope.loaded).get("rules", ("", ""))[1]
        self.counters.stale_rule_turns += (visible.hash if visible else "") != on_disk

    def reset(self) -> None:
        """A new session: the next injection is the first."""
        self._state, self._prepared = InjectionState(), None
        self.counters.failed_in_a_row, self._warned = 0, False

    def switch(self, *, files: InstructionFiles | None = None, model: str | None = None) -> None:
        """Another workspace or another model: the next injection is a first one."""
        if not isinstance(files, InstructionFiles | None) or not isinstance(model, str | None):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
            raise LayerError(f"files={shown(files)}, model={shown(model)}", hint="InstructionFiles(…), a name")
        self._files = files or self._files
        self._model = self._model if model is None else model
        self._prepared = None
        self.counters.failed_in_a_row, self._warned = 0, False

    def note(self, reason: Literal["compaction", "resume"]) -> None:
        """The model may have lost what it was told: bring everything with the next turn."""
        if reason not in ("compaction", "resume"):
            raise LayerError(f"{shown(reason)} cannot be noted", hint="compaction or resume")
        self._since += (reason,)
        if reason not in self._state.noted:
            self._state = replace(self._state, noted=(*self._state.noted, reason))

    def _load(self) -> Loaded:
        try:
            loaded = self._files.load()
        except InstructionsError as error:
            self.counters.failed += 1
            self.counters.failed_in_a_row += 1
            row = self.counters.failed_in_a_row
            if row % FAILURES == 0:
                self._log.error("[SystemPrompt] %d failed reads in a row, check %s: %s", row, error.path, error)
            raise
        self.counters.failed_in_a_row = 0
        if not loaded.rules_text and not self._warned:
            what = "rules file is empty" if loaded.rules else "workspace has no rules"
            self._log.warning("[SystemPrompt] the %s: only the instructions are injected", what)
        self._warned = not loaded.rules_text
        return loaded

    def _moved(self) -> tuple[str, ...]:
        """Why a session that has begun begins again."""
        was, now = (self._state.workspace, self._state.model), (self._files.workspace.root, self._model)
        return tuple(reason for reason, a, b in zip(MOVES, was, now, strict=True) if a != b)

    def _first(self, now: Mapping[Source, tuple[str, str]]) -> tuple[tuple[str, ...], tuple[Part, ...]]:
        """Everything; after a move, what differs from what was said before replaces it: it has the last word."""
        reasons = self._moved() if self._state.begun else ("initial",)
        seen = self._state.seen
        parts: list[Part] = []
        for source in SOURCES:
            was, texts = seen.get(source), now.get(source)
            if texts is not None:
                parts.append(Part(source, "replaces" if was and was.hash != texts[1] else "full", *texts))
            elif was is not None:
                parts.append(Part(source, "removed", "", ""))
        return reasons, tuple(parts)

    def _due(self, source: Source, turn: int) -> bool:
        was = self._state.seen.get(source)
        return was is not None and turn - was.turn >= self.settings.every(source)

    def _later(
        self, now: Mapping[Source, tuple[str, str]], turn: int, level: int
    ) -> tuple[tuple[str, ...], tuple[Part, ...]]:
        """At most one injection a turn, with all its reasons."""
        if not self.settings.enabled:
            return (), ()
        reasons = [*self._state.noted]
        if level > self._state.level:
            reasons.append(f"context at {level} %")
        everything = bool(reasons)
        shared: list[Source] = [source for source in SOURCES if source not in self.settings.cadence]
        together = any(self._due(source, turn) for source in shared if source in now)  # one cadence, one injection
        parts: list[Part] = []
        for source in SOURCES:
            was, texts = self._state.seen.get(source), now.get(source)
            if texts is None and was is not None:
                reasons.append(f"{source} removed")
                parts.append(Part(source, "removed", "", ""))
            elif texts is not None and (was is None or was.hash != texts[1]):
                reasons.append(f"{source} changed" if was else f"{source} added")
                parts.append(Part(source, "replaces" if was else "full", *texts))
            elif texts is not None and was is not None:
                due = together if source in shared else self._due(source, turn)
                if due:
                    reason = f"every {self.settings.every(source)} turns"
                    reasons += [reason] if reason not in reasons else []
                if due or everything:
                    parts.append(Part(source, "full", *texts))
        return tuple(reasons), tuple(parts)


def _now(loaded: Loaded) -> dict[Source, tuple[str, str]]:
    """Text and hash of each source that has something to say, in order."""
    texts: dict[Source, tuple[str, str]] = {"instructions": (loaded.instructions.text, loaded.instructions.hash)}
    if loaded.rules_text:
        texts["rules"] = (loaded.rules_text, loaded.rules_hash)
    return texts


def _settings(values: Mapping[str, Any]) -> InjectionSettings:
    try:
        return InjectionSettings(**values)
    except TypeError:
        known = "enabled, turns, cadence and lang"
        raise SettingsError(
            f"{shown(dict(values))} are no settings of an injection", hint=f"there are {known}"
        ) from None


def _check_input(user_input: object, phase_prompt: object) -> None:
    parts = isinstance(user_input, list | tuple) and all(
        isinstance(part, Mapping) for part in cast(Sequence[object], user_input)
    )
    if not user_input or not (isinstance(user_input, str) or parts):
        raise LayerError(
            f"user_input is {shown(cast(object, user_input))}", hint="text, or a list of text and picture parts"
        )
    if phase_prompt is not None and not isinstance(phase_prompt, str):
        raise LayerError(f"phase_prompt is {shown(phase_prompt)}", hint="text, or None")


def _level(use: object, before: int) -> int:
    """The highest of the levels that the context's use has reached; it falls only with a clear fall of the use."""
    if use is None:
        return before
    if isinstance(use, bool) or not isinstance(use, int | float) or not 0 <= use <= MOST:
        raise LayerError(f"context_use is {shown(use)}", hint="the share of the window in use, such as 0.4")
    share = 100 * cast(float, use)
    reached = next((level for level in LEVELS if share >= level), 0)
    return before if reached < before and share > before - SLACK else reached
