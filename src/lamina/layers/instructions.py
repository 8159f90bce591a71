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

from lamina.errors import InstructionsError, shown
from lamina.layers.approvals import Approvals
from lamina.layers.workspace import AnyPath, FileText, Key, Missing, Trail, Workspace, below, key_of, parts, trail
from lamina.types import Layer, text_hash

Kind = Literal["instructions", "rules"]

MAX_DEPTH = 5
MAX_FILES = 250
NOBODYS = (".git", ".hg", ".svn")
RULES, NESTED = ".lamina/rules.md", "AGENTS.md"
SHIPPED = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data")

_INCLUDE = re.compile(r"^@(\S+)[ \t\r]*$", re.MULTILINE)
_NEARLY = re.compile(r"[ \t]{0,3}@[^\s@]")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")


@dataclass(frozen=True, slots=True)
class InstructionFile:
    """A file with its includes in their places; `hash` and `size` are those of the text that results."""

    kind: Kind
    path: str
    text: str
    hash: str
    size: int
    included: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Loaded:
    """The instructions, and the rules in force, the nearest last. Without rules `rules_hash` is empty."""

    instructions: InstructionFile
    rules: tuple[InstructionFile, ...]
    rules_text: str = field(init=False)
    rules_hash: str = field(init=False)

    def __post_init__(self) -> None:
        text = "\n\n".join(file.text for file in self.rules if file.text and not file.text.isspace())
        object.__setattr__(self, "rules_text", text)
        object.__setattr__(self, "rules_hash", text_hash(text) if self.rules else "")

    def layers(self, owner: str | None = None) -> list[Layer]:
        """One layer a file, so that the receipt shows each of them."""
        return [Layer(file.kind, file.text, file.path, owner) for file in (self.instructions, *self.rules)]


class Checked(NamedTuple):
    """What a check found: the files that can be read, all faults, and what may be a slip."""

    files: tuple[InstructionFile, ...]
    faults: tuple[InstructionsError, ...]
    notes: tuple[str, ...]


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
        self.approved: dict[str, None] = {}
        self.settled = True

    def file(self, kind: Kind, workspace: Workspace, path: str) -> InstructionFile | Missing:
        found = self._find(workspace, path)
        if isinstance(found, Missing):
            return found
        included: dict[str, None] = {}
        text = self._text(workspace, found, (), included)
        name = (workspace.label + path).encode("utf-8", "backslashreplace").decode()
        return InstructionFile(kind, name, text, text_hash(text), len(text.encode()), tuple(included))

    def _find(self, workspace: Workspace, path: str) -> FileText | Missing:
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
            raise workspace.refusal(path, f"is one file too many, {MAX_FILES} are allowed", "join some of them")
        self.left -= found.size
        if self.left < 0:
            raise workspace.refusal(
                path, f"makes it too large: {self.limit} bytes are allowed for all files together", "shorten them"
            )
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
                if any(inner.key[3:] == outer.key[3:] for outer in above):
                    raise _include_error(where, f"includes {shown(target)}, which leads back to it", inner.path)
                if len(above) > MAX_DEPTH:
                    what = f"includes {shown(target)}, more than {MAX_DEPTH} files deep"
                    raise _include_error(where, what, inner.path)
            except InstructionsError as fault:
                self._fault(fault)
                continue
            included[workspace.label + inner.path] = None
            lines.append(self._text(workspace, inner, above, included).removesuffix("\n"))
        return "\n".join(lines)

    def _fault(self, fault: InstructionsError) -> None:
        if self.faults is None:
            raise fault
        self.faults.append(fault)

    def _include(self, workspace: Workspace, file: FileText, target: str, where: str) -> FileText:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(file.path), target))
        try:
            found = self._find(workspace, path)
        except InstructionsError as error:
            raise InstructionsError(f"{where}: {error.message}", hint=error.hint, path=error.path) from None
        if isinstance(found, Missing):
            raise _include_error(where, f"includes {shown(target)}, which is not there", path)
        return found

    def _check_hidden(self, workspace: Workspace, file: FileText) -> None:
        places = ", ".join(map(str, file.hidden[:5])) + (f" and {n} more" if (n := len(file.hidden) - 5) > 0 else "")
        name = workspace.label + file.path
        hint = f"remove them, or approve them as they are: lamina rules approve {_quoted(name)}"
        if self.approvals is None:
            hint = "remove them, or hand in the file of approvals: InstructionFiles(…, approvals=…)"
        if self.approvals and file.hash in self.approvals:
            if not self.approvals.lie_in(self.root):
                self.approved[file.hash] = None
                return
            hint = f"its approval does not count, since {shown(self.approvals.path)} lies in the workspace"
        self._fault(workspace.refusal(file.path, f"holds characters that nobody sees: {places}", hint))


class _State(NamedTuple):
    loaded: Loaded
    settled: bool
    paths: tuple[str, ...]
    keys: list[Key]
    missing: tuple[str, ...]
    approved: tuple[str, ...]


class InstructionFiles:
    """The instruction files of one workspace: `load()` gives their texts as they are on disk now.

    Both paths are relative to the workspace. Empty instructions are the shipped ones; only they may also be an absolute
    path elsewhere, so take such a path from the operator and never from a file in the workspace. Where there are no
    rules, every file named `nested` from the workspace down to `folder` counts. `approvals` is the file that
    `lamina rules approve` writes. Absolute instructions below `home` never lead out of it.
    """

    def __init__(
        self,
        workspace: Workspace | AnyPath,
        *,
        instructions: AnyPath = "",
        rules: AnyPath = RULES,
        nested: str = NESTED,
        folder: AnyPath = "",
        approvals: Approvals | AnyPath | None = None,
        home: AnyPath = "",
    ) -> None:
        self.workspace = workspace if isinstance(workspace, Workspace) else Workspace(workspace)
        self.approvals = approvals if isinstance(approvals, Approvals | None) else Approvals(approvals)
        self._home = os.fspath(home)
        self._shipped = not os.fspath(instructions)
        self._instructions = (
            (self._other(SHIPPED, "lamina/"), "instructions.md")
            if self._shipped
            else self._placed(os.fspath(instructions))
        )
        path = os.fspath(rules)
        self._rules = (self.workspace, below(self.workspace.root, path) or path)
        self._name = nested
        self._nested = [f"{level}{nested}" for level in self._levels(os.fspath(folder))]
        self._state: _State | None = None

    def load(self) -> Loaded:
        """The instructions and rules in force. When nothing changed, this costs one `stat` a file and no read."""
        if self._state and self._fresh(self._state):
            return self._state.loaded
        with trail() as handles:
            first, second = (_Reading(self.workspace, self.approvals, handles) for _ in range(2))
            loaded = Loaded(self._read_instructions(first), tuple(self._read_rules(second)))
        files = first.files | second.files
        self._state = _State(
            loaded,
            first.settled and second.settled,
            tuple(files),
            [file.key for file in files.values()],
            tuple(second.missing),
            (*first.approved, *second.approved),
        )
        return loaded

    def find(self, path: str) -> FileText:
        """One file by the name that a fault gives it, includes left as they are; it may be the instructions' own."""
        workspace, name = self._placed(path)
        if workspace is not self.workspace and (workspace.root, name) != (
            self._instructions[0].root, self._instructions[1]
        ):  # fmt: skip
            raise self.workspace.refusal(path, "does not lie in the workspace", "name a file in it")
        return workspace.read(name)

    def check(self, *, everywhere: bool = False) -> Checked:
        """Every fault, not just the first; `everywhere` looks at the nested files of all folders too."""
        faults: list[InstructionsError] = []
        files: dict[str, InstructionFile] = {}
        notes: dict[str, None] = {}
        nested = [f"{level}{self._name}" for level in self._folders(faults)] if everywhere else self._nested
        places = [self._instructions, self._rules, *((self.workspace, path) for path in nested)]
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
                    if place[1] != self._rules[1] and self._rules[1] in files:
                        notes[f"{file.path} is not in force: {self._rules[1]} is there"] = None
                    files[file.path] = file
                    notes |= {note: None for text in reading.files.values() for note in _notes(place[0].label, text)}
        if not faults and not everywhere:
            try:
                self.load()  # what holds for all of them together
            except InstructionsError as fault:
                faults.append(fault)
        once = {fault.message: fault for fault in faults}
        return Checked(tuple(files.values()), tuple(once.values()), tuple(notes))

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
                what = f"cannot be looked into: {error.strerror}"
                faults.append(self.workspace.refusal(folder or ".", what, "allow lamina's user to read it"))
                continue
            ahead += [f"{folder}{name}/" for name in sorted(names, reverse=True) if name not in NOBODYS]

    def _fresh(self, state: _State) -> bool:
        stat = self.workspace.stat
        try:
            if not state.settled or [*map(key_of, map(stat, state.paths))] != state.keys:
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
        if self._shipped:
            again = "pip install --force-reinstall --no-deps, and the wheel or in a clone `.`"
            hint = f"install lamina again ({again}), or name a file in the setting `instructions`"
        else:
            hint = "write it again, or take the setting `instructions` away to use the shipped ones"
        if isinstance(found, Missing):
            raise workspace.refusal(path, "is not there: there are no instructions", hint)
        if not found.text or found.text.isspace():
            raise workspace.refusal(path, "is empty: there are no instructions", hint)
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
            identity = reading.files[self.workspace.full(path)].key[3:]
            found.pop(identity, None)  # a link to one above would give its rules twice: the nearest place counts
            found[identity] = file
        yield from found.values()

    def _check_folder(self, missing: Missing, path: str) -> None:
        """That a nested file is not there is well; that its folder is not there is a slip."""
        folder = posixpath.dirname(path)
        if path in self._nested and missing.path != path and not os.path.isdir(self.workspace.full(folder)):
            raise self.workspace.refusal(folder, "is not there", "check the working folder")

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
                f"the working folder {shown(folder)} does not lie in the workspace {shown(root)}",
                hint="start in the workspace, or name another one",
                path=folder,
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


def _notes(label: str, file: FileText) -> Iterator[str]:
    """Lines that look like includes and are none: what follows the @ has a space in it, or stands behind some."""
    for number, line, target in _lines(file.text, code=False):
        if target is None and _NEARLY.match(line) and line.count("@") == 1 and ("/" in line or "." in line):
            yield f"{label}{file.path}:{number} is text, not an include: {shown(line.strip())}"


def _include_error(where: str, what: str, path: str) -> InstructionsError:
    hint = "mend the include; to show such a line as text, put it into a code fence"
    return InstructionsError(f"{where} {what}", hint=hint, path=path)


def _quoted(path: str) -> str:
    quoted = shlex.quote(path) if path.isprintable() else shown(path, 200)
    return f"-- {quoted}" if path.startswith("-") else quoted
