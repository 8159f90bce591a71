"""A state machine against a ten-line model: whatever happens, at every send the model sees the rules on disk."""

import json
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from lamina.errors import InstructionsError
from lamina.prompts.injection import SOURCES, InjectionSettings, InjectionState, PromptEnvelope, SystemPromptManager
from lamina.prompts.instructions import InstructionFiles

CADENCE = 4


class Injections(RuleBasedStateMachine):
    """The product beside the reference; files are real."""

    manager_class = SystemPromptManager

    def __init__(self) -> None:
        super().__init__()
        self.folders = [Path(tempfile.mkdtemp()) for _ in range(2)]
        for number, folder in enumerate(self.folders):
            (folder / ".lamina").mkdir()
            (folder / "i.md").write_text(f"instructions {number}")
        self.at, self.model, self.enabled, self.edits = 0, "m", True, 0
        # the reference: what the model was told and when, and whether all of it is due
        self.told: dict[str, tuple[str, int]] = {}
        self.turn, self.noted = 0, False
        self.sent_from: tuple[int, str] | None = None
        self.visible: dict[str, str] = {}
        self.manager = self.build(None)

    def build(self, state: InjectionState | None) -> SystemPromptManager:
        options = InjectionSettings(enabled=self.enabled, turns=CADENCE)
        return self.manager_class(self.files(), settings=options, model=self.model, state=state)

    def files(self) -> InstructionFiles:
        return InstructionFiles(self.folders[self.at], instructions="i.md")

    @property
    def rules_file(self) -> Path:
        return self.folders[self.at] / ".lamina" / "rules.md"

    def on_disk(self) -> dict[str, str]:
        found = {"instructions": (self.folders[self.at] / "i.md").read_text()}
        return found | ({"rules": self.rules_file.read_text()} if self.rules_file.is_file() else {})

    @property
    def is_first(self) -> bool:
        """A session begins, or begins again elsewhere; while it is off, another model is no reason."""
        if self.sent_from is None or self.sent_from[0] != self.at:
            return True
        return self.enabled and self.sent_from[1] != self.model

    def due(self) -> set[str]:
        now = self.on_disk()
        if self.is_first:
            return set(now) | (set(self.told) - set(now))
        if not self.enabled:
            return set()
        changed = {s for s in SOURCES if now.get(s) != self.told.get(s, (None, 0))[0]}
        known = [s for s in now if s in self.told]
        fading = self.noted or any(self.turn + 1 - self.told[s][1] >= CADENCE for s in known)
        faded = set(known) if fading else set[str]()
        return changed | faded

    @rule(ok=st.booleans())
    def send(self, ok: bool) -> None:
        if self.rules_file.is_dir():
            with pytest.raises(InstructionsError):
                self.manager.prepare("hi")
            return
        envelope = self.manager.prepare("hi")
        due, now, first = self.due(), self.on_disk(), self.is_first
        assert {part.source for part in envelope.parts} == due
        assert bool(envelope.triggers) == bool(due)
        if ok:
            self.manager.sent(envelope)
            self.see(envelope)
            if first or self.enabled:
                self.sent_from = (self.at, self.model)
                self.told = {s: self.told[s] for s in self.told if s in now}
                self.told |= {s: (now[s], self.turn + 1) for s in due if s in now}
            self.noted = self.noted and not first and not self.enabled
            self.turn += 1
            if self.enabled:
                assert self.visible == now, "the model must see what is on disk"

    def see(self, envelope: PromptEnvelope) -> None:
        """What a model knows after reading this turn."""
        for part in envelope.parts:
            if part.change == "removed":
                self.visible.pop(part.source, None)
            else:
                assert part.text in str(envelope.joined)
                self.visible[part.source] = part.text

    @rule()
    def edit_rules(self) -> None:
        self.edits += 1
        if self.rules_file.is_dir():
            self.rules_file.rmdir()
        self.rules_file.write_text(f"rules {self.edits}")

    @rule()
    def delete_rules(self) -> None:
        if self.rules_file.is_dir():
            self.rules_file.rmdir()
        self.rules_file.unlink(missing_ok=True)

    @rule()
    def make_unreadable(self) -> None:
        self.delete_rules()
        self.rules_file.mkdir()

    @rule()
    def reset(self) -> None:
        self.manager.reset()
        self.sent_from, self.told, self.visible, self.turn, self.noted = None, {}, {}, 0, False

    @rule()
    def switch_workspace(self) -> None:
        self.at = 1 - self.at
        self.manager.switch(files=self.files())

    @rule(model=st.sampled_from(["m", "n"]))
    def switch_model(self, model: str) -> None:
        self.model = model
        self.manager.switch(model=model)

    @rule(reason=st.sampled_from(["compaction", "resume"]))
    def lose(self, reason: str) -> None:
        self.manager.note(reason)  # pyright: ignore[reportArgumentType] -- one of the two
        self.noted = True

    @rule()
    def restart(self) -> None:
        stored = json.dumps(self.manager.state.to_dict())
        self.manager = self.build(InjectionState.from_dict(json.loads(stored)))

    @rule()
    def toggle(self) -> None:
        self.enabled = not self.enabled
        self.manager.settings = InjectionSettings(enabled=self.enabled, turns=CADENCE)

    def teardown(self) -> None:
        for folder in self.folders:
            shutil.rmtree(folder)


TestInjections = Injections.TestCase
TestInjections.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class Forgetful(SystemPromptManager):
    """The planted bug, one of the original's: the state moves before the send has succeeded."""

    def prepare(self, *arguments: object, **options: object) -> PromptEnvelope:  # pyright: ignore[reportIncompatibleMethodOverride] -- a bug on purpose
        envelope = super().prepare(*arguments, **options)  # pyright: ignore[reportArgumentType] -- passed on
        self._state = envelope.after
        return envelope


def test_the_state_machine_catches_a_state_that_moves_too_early() -> None:
    class Broken(Injections):
        manager_class = Forgetful

    broken = Broken()
    try:
        broken.send(ok=False)
        with pytest.raises(AssertionError):
            broken.send(ok=True)
    finally:
        broken.teardown()
