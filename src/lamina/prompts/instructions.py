"""Instruction files: what a team wrote down, whole, as it is on disk now, and from nowhere else (I2, I9, I12).

This room hides where instructions and rules come from and what they include. It decides nothing about when a text is
sent; that is `injection`. A file that is there and cannot be used is an error, never an absent or empty layer.
"""

import os
import posixpath
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from lamina.errors import InstructionsError, format_value
from lamina.prompts.approvals import Approvals
from lamina.prompts.workspace import (
    MAX_BYTES,
    AnyPath,
    FileKey,
    FileText,
    Folders,
    Missing,
    Trail,
    Workspace,
    below,
    key_of,
    parts,
    trail,
)
from lamina.text.messages import Phrase
from lamina.types import Layer, text_hash

InstructionKind = Literal["instructions", "rules"]

MAX_DEPTH = 5
MAX_FILES = 250
MAX_PLACES = 5
VERSION_CONTROL = (".git", ".hg", ".svn")
RULES, NESTED = ".lamina/rules.md", "AGENTS.md"
SHIPPED = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data")

_INCLUDE = re.compile(r"^@(\S+)[ \t\r]*$", re.MULTILINE)
_NEARLY = re.compile(r"[ \t]{0,3}@[^\s@]")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")


@dataclass(frozen=True, slots=True)
class InstructionFile:
    """A file with its includes in their places; `hash` and `size` are those of the text that results."""

    kind: InstructionKind
    path: str
    text: str
    hash: str
    size: int
    included: tuple[str, ...] = ()


def file_of(kind: InstructionKind, path: str, text: str, included: tuple[str, ...] = ()) -> InstructionFile:
    return InstructionFile(kind, path, text, text_hash(text), len(text.encode()), included)


@dataclass(frozen=True, slots=True)
class LoadedInstructions:
    """The instructions, and the rules in force, the nearest last. Without rules `rules_hash` is empty."""

    instructions: InstructionFile
    rules: tuple[InstructionFile, ...]
    rules_text: str = field(init=False)
    rules_hash: str = field(init=False)

    def __post_init__(self) -> None:
        text = "\n\n".join(file.text for file in self.rules if file.text and not file.text.isspace())
        object.__setattr__(self, "rules_text", text)
        object.__setattr__(self, "rules_hash", text_hash(text) if self.rules else "")

    @property
    def files(self) -> tuple[InstructionFile, ...]:
        return (self.instructions, *self.rules)

    @property
    def texts(self) -> dict[str, str]:
        """The texts of the files by their hashes."""
        return {file.hash: file.text for file in self.files}

    def layers(self, owner: str | None = None) -> list[Layer]:
        """One layer a file, so that the receipt shows each of them. Rules come with the workspace: they are to be
        followed, and are fenced."""
        first = Layer(self.instructions.kind, self.instructions.text, self.instructions.path, owner)
        return [first, *(Layer(file.kind, file.text, file.path, owner, "user") for file in self.rules)]


class CheckReport(NamedTuple):
    """What a check found: the files that can be read, all faults, and what may be a mistake."""

    files: tuple[InstructionFile, ...]
    faults: tuple[InstructionsError, ...]
    notes: tuple[Phrase, ...]


class _Reading:
    """The files of one layer while they are put together: what they may still take, and what to watch from now on."""

    def __init__(
        self,
        workspace: Workspace,
        approvals: Approvals | None,
        trail: Trail,
        faults: list[InstructionsError] | None = None,
    ) -> None:
        self.approvals = approvals
        self.faults = faults
        """Where faults are gathered by one who wants all of them; None: the first one is raised."""
        self.trail = trail
        self.root = workspace.root
        self.left = self.limit = workspace.max_bytes
        self.files: dict[str, FileText] = {}
        self.missing: dict[str, None] = {}
        self.folders: Folders = {}
        """Folders whose names decided how a path is spelled: a new name in one may decide it otherwise."""
        self.approved: dict[str, None] = {}
        self.settled = True

    def file(self, kind: InstructionKind, workspace: Workspace, path: str) -> InstructionFile | Missing:
        found = self._find(workspace, path)
        if isinstance(found, Missing):
            return found
        included: dict[str, None] = {}
        text = self._text(workspace, found, (), included)
        name = (workspace.label + found.path).encode("utf-8", "backslashreplace").decode()
        return file_of(kind, name, text, tuple(included))

    def _find(self, workspace: Workspace, path: str) -> FileText | Missing:
        wanted, (path, folders) = path, workspace.spelled(path)
        self.folders |= folders
        if path != wanted:  # the exact name counts as soon as it is there
            self.missing[workspace.full(wanted)] = None
        full = workspace.full(path)
        found = self.files.get(full) or workspace.find(
            path, self.trail
        )  # one version of each file, however often it is included
        if isinstance(found, Missing):
            self.missing[workspace.full(found.path)] = None
            if not f"{path}/".startswith(f"{found.path}/"):  # a link led there, and it may lead elsewhere one day
                self.missing[full] = None
            return found
        self.files[full] = found
        self.settled &= found.settled
        if len(self.files) > MAX_FILES:
            raise workspace.refusal(path, "instructions.too_many_files", limit=MAX_FILES)
        self.left -= found.size
        if self.left < 0:
            raise workspace.refusal(path, "instructions.too_large_together", limit=self.limit)
        if found.hidden:
            self._check_hidden(workspace, found)
        return found

    def _text(
        self, workspace: Workspace, file: FileText, above: tuple[FileText, ...], included: dict[str, None]
    ) -> str:
        """The file's text with what it includes."""
        lines: list[str] = []
        above = (*above, file)
        for number, line, target in _lines(file.text):
            if target is None:
                lines.append(line)
                continue
            where = f"{workspace.label}{file.path}:{number}"
            try:
                inner = self._include(workspace, file, target, where)
                values = {"path": inner.path, "where": where, "target": format_value(target)}
                if any(inner.key[3:] == outer.key[3:] for outer in above):
                    raise InstructionsError("instructions.include_loops", **values)
                if len(above) > MAX_DEPTH:
                    raise InstructionsError("instructions.include_too_deep", limit=MAX_DEPTH, **values)
            except InstructionsError as fault:
                self._report(fault)
                continue
            included[workspace.label + inner.path] = None
            lines.append(self._text(workspace, inner, above, included).removesuffix("\n"))
        return "\n".join(lines)

    def _report(self, fault: InstructionsError) -> None:
        if self.faults is None:
            raise fault
        self.faults.append(fault)

    def _include(self, workspace: Workspace, file: FileText, target: str, where: str) -> FileText:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(file.path), target))
        try:
            found = self._find(workspace, path)
        except InstructionsError as error:
            raise InstructionsError(
                "instructions.include_fails", hint=error.next_step, path=error.path, where=where, problem=error.phrase
            ) from None
        if isinstance(found, Missing):
            raise InstructionsError("instructions.include_missing", path=path, where=where, target=format_value(target))
        return found

    def _check_hidden(self, workspace: Workspace, file: FileText) -> None:
        hint = Phrase("instructions.approve_hidden", name=_quote(workspace.label + file.path))
        if self.approvals is None:
            hint = Phrase("instructions.hand_in_approvals")
        elif file.hash in self.approvals:
            if not self.approvals.is_inside(self.root):
                self.approved[file.hash] = None
                return
            hint = Phrase("instructions.approval_does_not_count", approvals=format_value(self.approvals.path))
        shown_places, more = file.hidden[:MAX_PLACES], len(file.hidden) - MAX_PLACES
        code = "instructions.many_hidden" if more > 0 else "instructions.hidden"
        name, places = workspace.label + file.path, [str(place) for place in shown_places]
        self._report(
            InstructionsError(code, hint=hint, path=name, file=format_value(name, 200), places=places, more=more)
        )


class _State(NamedTuple):
    loaded: LoadedInstructions
    settled: bool
    paths: tuple[str, ...]
    keys: list[FileKey]
    missing: tuple[str, ...]
    folders: Folders
    approved: tuple[str, ...]


class InstructionFiles:
    """The instruction files of one workspace: `load()` gives their texts as they are on disk now.

    Both paths are relative to the workspace; where no name matches exactly, one in another case counts. Empty
    instructions are the shipped ones; only they may also be an absolute path elsewhere, so take such a path from the
    operator and never from a file in the workspace. Where there are no rules, every file named `nested` from the
    workspace down to `folder` counts. Without a workspace (None) there are no rules, and instructions are relative to
    the current folder. `approvals` is the file that `lamina rules approve` writes. Absolute instructions below `home`
    never lead out of it.
    """

    def __init__(
        self,
        workspace: Workspace | AnyPath | None,
        *,
        instructions: AnyPath = "",
        rules: AnyPath = RULES,
        nested: str = NESTED,
        folder: AnyPath = "",
        approvals: Approvals | AnyPath | None = None,
        home: AnyPath = "",
        max_bytes: int = MAX_BYTES,
    ) -> None:
        if not isinstance(workspace, Workspace):
            found = Workspace(os.getcwd() if workspace is None else workspace, max_bytes=max_bytes)
        else:
            found = workspace
        self.workspace = found
        self.place = "" if workspace is None else found.root
        """The folder of the workspace; empty where there is none."""
        self.approvals = approvals if isinstance(approvals, Approvals | None) else Approvals(approvals)
        self._home = os.fspath(home)
        self._shipped = not os.fspath(instructions)
        self._instructions = (
            (self._other(SHIPPED, "lamina/"), "instructions.md")
            if self._shipped
            else self._placed(os.fspath(instructions) if self.place else os.path.abspath(instructions))
        )
        path = os.fspath(rules)
        self._rules = (self.workspace, below(self.workspace.root, path) or path)
        self.named_rules = path if path != RULES else ""
        """The rules file, where a setting names another one than the default."""
        self._name = nested
        self._nested = [f"{level}{nested}" for level in self._levels(os.fspath(folder))] if self.place else []
        self._state: _State | None = None

    def load(self) -> LoadedInstructions:
        """The instructions and rules in force. When nothing changed, this costs one `stat` a file and no read."""
        if self._state and self._fresh(self._state):
            return self._state.loaded
        with trail() as handles:
            first, second = (_Reading(self.workspace, self.approvals, handles) for _ in range(2))
            loaded = LoadedInstructions(
                self._read_instructions(first), tuple(self._read_rules(second) if self.place else ())
            )
        files, folders = first.files | second.files, first.folders | second.folders
        self._state = _State(
            loaded,
            first.settled and second.settled,
            tuple(files),
            [file.key for file in files.values()],
            tuple(path for path in first.missing | second.missing if os.path.dirname(path) not in folders),
            folders,
            (*first.approved, *second.approved),
        )
        return loaded

    def find(self, path: str) -> FileText:
        """One file by the name that a fault gives it, includes left as they are; it may be the instructions' own."""
        workspace, name = self._placed(path)
        if workspace is not self.workspace and (workspace.root, name) != (
            self._instructions[0].root,
            self._instructions[1],
        ):
            raise self.workspace.refusal(path, "instructions.not_in_workspace")
        return workspace.read(name)

    def check(self, *, everywhere: bool = False) -> CheckReport:
        """Every fault, not just the first; `everywhere` looks at the nested files of all folders too."""
        faults: list[InstructionsError] = []
        files: dict[str, InstructionFile] = {}
        notes: dict[Phrase, None] = {}
        nested = [f"{level}{self._name}" for level in self._folders(faults)] if everywhere else self._nested
        rules = [self._rules, *((self.workspace, path) for path in nested)] if self.place else []
        places = [self._instructions, *rules]
        with trail() as handles:
            for place in places:
                reading = _Reading(self.workspace, self.approvals, handles, faults)
                try:
                    first = place is self._instructions
                    file = self._read_instructions(reading) if first else reading.file("rules", *place)
                    if isinstance(file, Missing) and place[0] is self.workspace and not everywhere:
                        self._check_folder(file, place[1])
                except InstructionsError as fault:
                    faults.append(fault)
                    continue
                if not isinstance(file, Missing):
                    own = self.workspace.spelled(self._rules[1])[0]
                    if place[1] != self._rules[1] and own in files:
                        notes[Phrase("instructions.not_in_force", path=file.path, other=own)] = None
                    files[file.path] = file
                    for text in reading.files.values():
                        notes |= dict.fromkeys(_find_near_includes(place[0].label, text))
        if not faults and not everywhere:
            try:
                self.load()  # what holds for all of them together
            except InstructionsError as fault:
                faults.append(fault)
        once = {fault.phrase: fault for fault in faults}
        return CheckReport(tuple(files.values()), tuple(once.values()), tuple(notes))

    def _folders(self, faults: list[InstructionsError]) -> Iterator[str]:
        """Every folder of the workspace but those of version control; links are not followed."""
        ahead = [""]
        while ahead:
            folder = ahead.pop()
            yield folder
            try:
                with os.scandir(self.workspace.full(folder)) as found:
                    names = [entry.name for entry in found if entry.is_dir(follow_symlinks=False)]
            except OSError as error:
                faults.append(
                    self.workspace.refusal(folder or ".", "instructions.unreadable_folder", reason=error.strerror)
                )
                continue
            ahead += [f"{folder}{name}/" for name in sorted(names, reverse=True) if name not in VERSION_CONTROL]

    def _fresh(self, state: _State) -> bool:
        stat = self.workspace.stat
        try:
            if not state.settled or [*map(key_of, map(stat, state.paths))] != state.keys:
                return False
            if [*map(key_of, map(stat, state.folders))] != [*state.folders.values()]:
                return False
        except OSError:
            return False
        for path in state.missing:
            try:
                stat(path, follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError:
                return False
            return False
        return all(self.approvals and version in self.approvals for version in state.approved)

    def _read_instructions(self, reading: _Reading) -> InstructionFile:
        workspace, path = self._instructions
        found = reading.file("instructions", workspace, path)
        hint = "instructions.reinstall" if self._shipped else "settings.restore_instructions"
        if isinstance(found, Missing):
            raise workspace.refusal(path, "instructions.missing", hint=hint)
        if not found.text or found.text.isspace():
            raise workspace.refusal(path, "instructions.empty", hint=hint)
        return found

    def _read_rules(self, reading: _Reading) -> Iterator[InstructionFile]:
        own = reading.file("rules", *self._rules)
        if not isinstance(own, Missing):
            yield own
            return
        found: dict[tuple[int, ...], InstructionFile] = {}
        for path in self._nested:
            file = reading.file("rules", self.workspace, path)
            if isinstance(file, Missing):
                self._check_folder(file, path)
                continue
            identity = reading.files[self.workspace.full(self.workspace.spelled(path)[0])].key[3:]
            found.pop(identity, None)  # a link to one above would give its rules twice: the nearest place counts
            found[identity] = file
        yield from found.values()

    def _check_folder(self, missing: Missing, path: str) -> None:
        """A nested file may be missing; a folder that is missing is a mistake."""
        folder = posixpath.dirname(path)
        if path in self._nested and missing.path != path and not os.path.isdir(self.workspace.full(folder)):
            raise self.workspace.refusal(folder, "workspace.file_missing", hint="instructions.check_working_folder")

    def _placed(self, path: str) -> tuple[Workspace, str]:
        if not os.path.isabs(path):
            return self.workspace, path
        inside = below(self.workspace.root, path)
        if inside is not None:
            return self.workspace, inside
        inside = below(self._home, path) if self._home else None
        if inside is not None:
            return self._other(self._home, self._home.rstrip("/") + "/"), inside
        folder, name = os.path.split(path)
        return self._other(folder, folder.rstrip("/") + "/"), name

    def _other(self, folder: str, label: str) -> Workspace:
        return Workspace(folder, max_bytes=self.workspace.max_bytes, label=label, stat=self.workspace.stat)

    def _levels(self, folder: str) -> list[str]:
        root = self.workspace.root
        folder = os.path.normpath(os.path.join(root, folder))
        inside = below(root, folder) if folder != root else ""
        if inside is None:
            inside = below(os.path.realpath(root), os.path.realpath(folder) + "/")
        if inside is None:
            raise InstructionsError(
                "instructions.working_folder_outside", path=folder, folder=format_value(folder), root=format_value(root)
            )
        names = parts(inside)
        return ["", *("/".join(names[: depth + 1]) + "/" for depth in range(len(names)))]


def _lines(text: str, *, code: bool = True) -> Iterator[tuple[int, str, str | None]]:
    """Number, line, and what it includes; nothing is included from inside a code fence, which `code=False` skips."""
    if code and not _INCLUDE.search(text):
        yield 1, text, None
        return
    fence = ""
    for number, line in enumerate(text.split("\n"), 1):
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not mark[2].strip():
                fence = ""
        elif mark and not (mark[1][0] == "`" and "`" in mark[2]):
            fence = mark[1]
        elif (found := _INCLUDE.match(line)) and ("/" in found[1] or "." in found[1]):
            yield number, line, found[1]
            continue
        if code or not fence:
            yield number, line, None


def _find_near_includes(label: str, file: FileText) -> Iterator[Phrase]:
    """Lines that look like includes and are not: there is a space before the @ or in what follows it."""
    for number, line, target in _lines(file.text, code=False):
        if target is None and _NEARLY.match(line) and line.count("@") == 1 and ("/" in line or "." in line):
            where = f"{label}{file.path}:{number}"
            yield Phrase("instructions.near_include", where=where, line=format_value(line.strip()))


def _quote(path: str) -> str:
    quoted = shlex.quote(path) if path.isprintable() else format_value(path, 200)
    return f"-- {quoted}" if path.startswith("-") else quoted
