"""When instructions and rules reach the model: on the first turn, repeated so the model keeps following them, and at
once when they change.

A state machine in two steps: `prepare` decides and renders and changes nothing, `sent` moves the state after the send
succeeded, so a failed send leaves the injection due. It reads files only through `InstructionFiles` and has no clock.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple, cast

from lamina.errors import InstructionsError, LayerError, SettingsError, format_value
from lamina.prompts.instructions import InstructionFiles, LoadedInstructions, file_of
from lamina.text.messages import Phrase
from lamina.types import Lang, Layer, Notice, Trigger

SourceName = Literal["instructions", "rules"]
PartChange = Literal["full", "replaces", "removed"]
UserInput = str | Sequence[Mapping[str, Any]]

SOURCES: tuple[SourceName, ...] = ("instructions", "rules")
LEVELS = (75, 50, 25)
"""Shares of the context, in percent; crossing one upwards brings everything again."""
SLACK_POINTS = 10
"""How far the use must fall below a level before crossing it again counts: reported figures vary a little."""
MAX_CONTEXT_USE = 2.0
"""A provider may report more than the whole context; a larger value is a percentage taken for a share."""
MOVES: tuple[Trigger, ...] = ("workspace", "model")
DEFAULT_TURNS = 15
FAILURES_PER_NOTICE = 3
MAX_COUNT = 10**15
"""A stored state with a larger number is damaged: no session counts that far."""
JOIN = "\n\n"
WORDS: dict[PartChange, dict[SourceName, dict[str, str]]] = {
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
    """`enabled=False` stops every later injection: a session keeps the texts that were injected last (I8)."""

    enabled: bool = True
    turns: int = DEFAULT_TURNS
    cadence: Mapping[str, int] = field(default_factory=dict[str, int])
    """Turns for a source of its own: `{"rules": 1}`."""
    lang: Lang = "en"

    def __post_init__(self) -> None:
        if self.lang not in ("en", "zh"):
            raise SettingsError("injection.unknown_language", value=format_value(self.lang))
        if not isinstance(self.enabled, bool) or not isinstance(self.cadence, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
            raise SettingsError(
                "injection.bad_types", enabled=format_value(self.enabled), cadence=format_value(self.cadence)
            )
        for name in set(self.cadence) - set(SOURCES):
            raise SettingsError("injection.unknown_source", name=format_value(name), known=SOURCES)
        for name, turns in (("turns", self.turns), *self.cadence.items()):
            if isinstance(turns, bool) or not isinstance(turns, int) or turns < 1:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
                raise SettingsError("injection.bad_cadence", name=name, value=format_value(turns))

    def every(self, source: SourceName) -> int:
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
class SeenSource:
    """What the model saw last of a source, and on which turn."""

    hash: str
    turn: int


class InjectedFile(NamedTuple):
    """A file as it was injected; its text is kept by its hash."""

    kind: SourceName
    path: str
    hash: str


@dataclass(frozen=True, slots=True)
class InjectionState:
    """All that must survive a restart; `to_dict` and `from_dict` are its form in the store."""

    turn: int = 0
    workspace: str = ""
    model: str = ""
    seen: Mapping[str, SeenSource] = field(default_factory=dict[str, SeenSource])
    level: int = 0
    noted: tuple[str, ...] = ()
    """What happened since the last turn that brings everything again: compaction, resume."""
    kept: tuple[InjectedFile, ...] = ()
    """The files that were injected last."""
    warned: bool = False
    """A notice that there are no rules was given in this session."""

    counters: Mapping[str, int] = field(default_factory=lambda: asdict(Counters()), compare=False)

    @property
    def has_begun(self) -> bool:
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
            "kept": [list(file) for file in self.kept],
            "warned": self.warned,
            "counters": dict(self.counters),
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "InjectionState":
        try:
            seen = {source: SeenSource(str(was["hash"]), was["turn"]) for source, was in data["seen"].items()}
            turn, level, noted = data["turn"], data["level"], tuple(data["noted"])
            counters = asdict(Counters(**data.get("counters", {})))
            numbers = [turn, level, *(was.turn for was in seen.values()), *counters.values()]
            names = [data["workspace"], data["model"], *(was["hash"] for was in data["seen"].values())]
            plain = all(type(number) is int and 0 <= number < MAX_COUNT for number in numbers)
            plain = plain and all(isinstance(name, str) for name in names) and isinstance(data["noted"], list)
            in_range = level in (0, *LEVELS) and all(was.turn <= turn for was in seen.values())
            kept, warned = _read_kept_files(data.get("kept", [])), data.get("warned", False)
            known = set(seen) <= set(SOURCES) and set(noted) <= {"compaction", "resume"}
            if not (plain and in_range and known and type(warned) is bool):
                raise ValueError
            names = (str(data["workspace"]), str(data["model"]))
            return InjectionState(turn, *names, seen, level, noted, kept, warned, counters)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise LayerError("injection.bad_state", value=format_value(data)) from None


@dataclass(frozen=True, slots=True)
class InjectedPart:
    """One source as it is injected."""

    source: SourceName
    change: PartChange
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
    triggers: tuple[Trigger, ...]
    parts: tuple[InjectedPart, ...]
    phase_prompt: str | None
    user_input: UserInput
    first: bool
    loaded: LoadedInstructions
    """What is on disk."""
    in_force: LoadedInstructions
    """What the session sees: the same, unless re-injection is off."""
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
        """The user's message beside `system`: a later injection and the phase prompt come before the words."""
        return self._before_user([None if self.first else self.injection, self.phase_prompt])

    @property
    def layers(self) -> list[Layer]:
        """The instructions and rules in force, for an assembly that rebuilds its system message."""
        return self.in_force.layers()

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
        return f"[SystemPrompt] {','.join(self.triggers)} {hashes}"

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
        settings = _read_settings(settings) if isinstance(settings, Mapping) else settings
        state = InjectionState.from_dict(state) if isinstance(state, Mapping) else state
        for given, kind in ((files, InstructionFiles), (settings, InjectionSettings), (state, InjectionState)):
            if given is not None and not isinstance(given, kind):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
                raise LayerError("injection.wrong_type", value=format_value(given), wanted=kind.__name__)
        self.settings = settings or InjectionSettings()
        self.counters = Counters(**state.counters) if state else Counters()
        self._files, self._model = files, model
        self._state = state or InjectionState()
        self._log = log or logging.getLogger("lamina.injection")
        self._prepared: PromptEnvelope | None = None
        self.notices: tuple[Notice, ...] = ()
        """What the last `prepare` has to say to people."""
        self._texts: dict[str, str] = {}
        self._since: tuple[str, ...] = ()
        """What was noted after the last envelope had been prepared: it stays due."""

    @property
    def state(self) -> InjectionState:
        """What to keep with the session."""
        return replace(self._state, counters=asdict(self.counters))

    @property
    def wanted(self) -> list[str]:
        """Hashes of the texts that `prepare` needs, as the session must not see those on disk; none when it may."""
        return [] if self.settings.enabled else [file.hash for file in self._state.kept]

    def prepare(
        self,
        user_input: UserInput,
        *,
        phase_prompt: str | None = None,
        context_use: float | None = None,
        texts: Mapping[str, str] | None = None,
        dry: bool = False,
    ) -> PromptEnvelope:
        """What this turn sends. `context_use` is the share of the model's window that the provider reported last,
        `texts` those that are `wanted`. A `dry` run is for looking only: nothing is logged or counted."""
        level = _reached_level(context_use, self._state.level)
        _check_input(user_input, phase_prompt)
        self.notices = ()
        loaded = self._load(dry)
        turn, off = self._state.turn + 1, not self.settings.enabled
        moved = self._find_moves()
        first = not self._state.has_begun or bool(moved)
        in_force = loaded if first or not off else self._restore_injected(texts or {}) or loaded
        now = _current_texts(in_force)
        triggers, parts = self._first_injection(now, moved) if first else self._later_injection(now, turn, level)
        seen = {source: was for source, was in self._state.seen.items() if not first and source in now}
        seen |= {part.source: SeenSource(part.hash, turn) for part in parts if part.change != "removed"}
        kept = tuple(InjectedFile(file.kind, file.path, file.hash) for file in in_force.files)
        after = InjectionState(turn, self._files.place, self._model, seen, level, (), kept, self._state.warned)
        if not first and off:  # what was missed while switched off stays due
            was = self._state
            kept, level = was.kept or kept, min(level, was.level)
            after = replace(after, seen=was.seen, level=level, noted=was.noted, kept=kept, model=was.model)
        self._since = ()
        self._prepared = PromptEnvelope(
            turn, triggers, parts, phase_prompt, user_input, not self._state.has_begun, loaded, in_force, after,
            self.settings.lang,
        )  # fmt: skip
        return self._prepared

    def _restore_injected(self, texts: Mapping[str, str]) -> LoadedInstructions | None:
        """The files that were injected last; None where their texts are not known."""
        known, kept = {**self._texts, **texts}, self._state.kept
        if not kept or any(file.hash not in known for file in kept):
            return None
        read = [file_of(file.kind, file.path, known[file.hash]) for file in kept]
        return LoadedInstructions(read[0], tuple(read[1:]))

    def sent(self, envelope: PromptEnvelope) -> None:
        """The send succeeded: now, and only now, the state moves (I7)."""
        if envelope is None or envelope is not self._prepared:  # pyright: ignore[reportUnnecessaryComparison] -- callers without a type checker
            raise LayerError("injection.not_last_envelope")
        self._state = replace(envelope.after, noted=tuple(dict.fromkeys((*envelope.after.noted, *self._since))))
        self._prepared, self._texts = None, envelope.in_force.texts
        if envelope.parts:
            begins = envelope.first or bool(set(envelope.triggers) & set(MOVES))
            self.counters.first += begins
            self.counters.repeated += not begins
            self._log.info("%s", envelope.line)
        visible, on_disk = envelope.after.seen.get("rules"), _current_texts(envelope.loaded).get("rules", ("", ""))[1]
        self.counters.stale_rule_turns += (visible.hash if visible else "") != on_disk

    def reset(self) -> None:
        """A new session: the next injection is the first."""
        self._state, self._prepared = InjectionState(), None
        self.counters.failed_in_a_row = 0

    def switch(self, *, files: InstructionFiles | None = None, model: str | None = None) -> None:
        """Another workspace or another model: the next injection is a first one."""
        if not isinstance(files, InstructionFiles | None) or not isinstance(model, str | None):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
            raise LayerError("injection.bad_switch", files=format_value(files), model=format_value(model))
        self._files = files or self._files
        self._model = self._model if model is None else model
        self._prepared = None
        if files:
            self._state = replace(self._state, warned=False)
        self.counters.failed_in_a_row = 0

    def note(self, reason: Literal["compaction", "resume"]) -> None:
        """The model may no longer see its instructions: repeat everything with the next turn."""
        if reason not in ("compaction", "resume"):
            raise LayerError("injection.unknown_reason", value=format_value(reason))
        self._since += (reason,)
        if reason not in self._state.noted:
            self._state = replace(self._state, noted=(*self._state.noted, reason))

    def _load(self, dry: bool) -> LoadedInstructions:
        try:
            loaded = self._files.load()
        except InstructionsError as error:
            if not dry:
                self._count_failure(error)
            raise
        if dry:
            return loaded
        self.counters.failed_in_a_row = 0
        if not loaded.rules_text and not self._state.warned:
            why = self._why_no_rules(loaded)
            self._log.warning("[SystemPrompt] %s", why)
            self.notices += (Notice("rules", why),)
            self._state = replace(self._state, warned=True)
        return loaded

    def _why_no_rules(self, loaded: LoadedInstructions) -> Phrase:
        if loaded.rules:
            return Phrase("injection.rules_empty")
        if not self._files.place:
            return Phrase("injection.no_workspace")
        named = self._files.named_rules
        return Phrase("injection.named_rules_missing", path=named) if named else Phrase("injection.no_rules")

    def _count_failure(self, error: InstructionsError) -> None:
        self.counters.failed += 1
        self.counters.failed_in_a_row += 1
        row = self.counters.failed_in_a_row
        if row % FAILURES_PER_NOTICE == 0:
            notice = Phrase("injection.failed_reads", count=row, path=error.path)
            self._log.error("[SystemPrompt] %s: %s", notice, error)
            self.notices += (Notice("reads", notice),)

    def _find_moves(self) -> tuple[Trigger, ...]:
        """Why a session starts over. While re-injection is off, another model is not a reason."""
        if not self.settings.enabled and self._state.workspace == self._files.place:
            return ()
        was, now = (self._state.workspace, self._state.model), (self._files.place, self._model)
        return tuple(trigger for trigger, a, b in zip(MOVES, was, now, strict=True) if a != b)

    def _first_injection(
        self, now: Mapping[SourceName, tuple[str, str]], moved: tuple[Trigger, ...]
    ) -> tuple[tuple[Trigger, ...], tuple[InjectedPart, ...]]:
        """Everything; after a move, what differs from the earlier text replaces it, so the newest text counts."""
        triggers: tuple[Trigger, ...] = moved if self._state.has_begun else ("initial",)
        seen = self._state.seen
        parts: list[InjectedPart] = []
        for source in SOURCES:
            was, texts = seen.get(source), now.get(source)
            if texts is not None:
                parts.append(InjectedPart(source, "replaces" if was and was.hash != texts[1] else "full", *texts))
            elif was is not None:
                parts.append(InjectedPart(source, "removed", "", ""))
        return triggers, tuple(parts)

    def _is_due(self, source: SourceName, turn: int) -> bool:
        was = self._state.seen.get(source)
        return was is not None and turn - was.turn >= self.settings.every(source)

    def _later_injection(
        self, now: Mapping[SourceName, tuple[str, str]], turn: int, level: int
    ) -> tuple[tuple[Trigger, ...], tuple[InjectedPart, ...]]:
        """At most one injection a turn, with all that triggers it."""
        if not self.settings.enabled:
            return (), ()
        triggers = cast("list[Trigger]", [*self._state.noted])
        if level > self._state.level:
            triggers.append("window")
        everything = bool(triggers)
        shared: list[SourceName] = [source for source in SOURCES if source not in self.settings.cadence]
        together = any(self._is_due(source, turn) for source in shared if source in now)  # one cadence, one injection
        parts: list[InjectedPart] = []
        for source in SOURCES:
            was, texts = self._state.seen.get(source), now.get(source)
            if texts is None and was is not None:
                triggers.append("change")
                parts.append(InjectedPart(source, "removed", "", ""))
            elif texts is not None and (was is None or was.hash != texts[1]):
                triggers.append("change")
                parts.append(InjectedPart(source, "replaces" if was else "full", *texts))
            elif texts is not None and was is not None:
                due = together if source in shared else self._is_due(source, turn)
                if due:
                    triggers.append("cadence")
                if due or everything:
                    parts.append(InjectedPart(source, "full", *texts))
        return tuple(dict.fromkeys(triggers)), tuple(parts)


def _current_texts(loaded: LoadedInstructions) -> dict[SourceName, tuple[str, str]]:
    """Text and hash of each source that has something to say, in order."""
    texts: dict[SourceName, tuple[str, str]] = {"instructions": (loaded.instructions.text, loaded.instructions.hash)}
    if loaded.rules_text:
        texts["rules"] = (loaded.rules_text, loaded.rules_hash)
    return texts


def _read_kept_files(rows: Sequence[Any]) -> tuple[InjectedFile, ...]:
    """The files of a stored state: instructions, then rules."""
    files = tuple(InjectedFile(*row) for row in rows)
    kinds = [file.kind for file in files]
    if kinds not in ([], ["instructions", *["rules"] * (len(files) - 1)]):
        raise ValueError
    texts: list[object] = [text for file in files for text in file]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError
    return files


def _read_settings(values: Mapping[str, Any]) -> InjectionSettings:
    try:
        return InjectionSettings(**values)
    except TypeError:
        raise SettingsError("injection.unknown_settings", value=format_value(dict(values))) from None


def _check_input(user_input: object, phase_prompt: object) -> None:
    parts = isinstance(user_input, list | tuple) and all(
        isinstance(part, Mapping) for part in cast(Sequence[object], user_input)
    )
    if not user_input or not (isinstance(user_input, str) or parts):
        raise LayerError("injection.bad_user_input", value=format_value(cast(object, user_input)))
    if phase_prompt is not None and not isinstance(phase_prompt, str):
        raise LayerError("injection.bad_phase_prompt", value=format_value(phase_prompt))


def _reached_level(use: object, before: int) -> int:
    """The highest of the levels that the context's use has reached; it falls only with a clear fall of the use."""
    if use is None:
        return before
    if isinstance(use, bool) or not isinstance(use, int | float) or not 0 <= use <= MAX_CONTEXT_USE:
        raise LayerError("injection.bad_context_use", value=format_value(use))
    share = 100 * cast(float, use)
    reached = next((level for level in LEVELS if share >= level), 0)
    return before if reached < before and share > before - SLACK_POINTS else reached
