"""Skills that lie in folders, each with a `SKILL.md`: a head with name and description, then the text on demand.

Files are read like instructions: never out of their folder, bounded, and nothing hidden passes. Needs PyYAML.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from lamina.errors import InputError, LaminaError, shown
from lamina.layers.approvals import Approvals
from lamina.layers.templates import ON_DEMAND, apps_of
from lamina.layers.workspace import AnyPath, FileText, Missing, Workspace
from lamina.records import Template

FILE = "SKILL.md"
NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
MAX_NAME, MAX_DESCRIPTION, MAX_SKILLS = 64, 1_024, 1_000


def read_skills(folder: AnyPath, approvals: Approvals | None = None) -> list[Template]:
    """The skill of a folder, or of each folder in it; the first fault stops it."""
    return [read_skill(path, approvals) for path in _folders(folder)]


def check_skills(folder: AnyPath, approvals: Approvals | None = None) -> tuple[list[Template], list[LaminaError]]:
    """The same, and everything that is wrong."""
    found: list[Template] = []
    faults: list[LaminaError] = []
    for path in _folders(folder):
        wrong = _faults(path, approvals)
        faults += wrong
        found += [] if wrong else [read_skill(path, approvals)]
    return found, faults


def read_skill(folder: str, approvals: Approvals | None = None) -> Template:
    """One skill; what is wrong with it is named with its place."""
    name, file = _file(folder, approvals)
    where = f"{name}/{FILE}"
    head, body = _parted(file.text, where)
    return Template(
        template_id=f"{ON_DEMAND}{_name(head, name, where)}",
        name=_name(head, name, where),
        content=body,
        is_skill=True,
        supported_apps=_apps(head, where),
        description=_description(head, where),
        source=f"{ON_DEMAND}{name}@{file.hash[:12]}",
    )


def _folders(folder: AnyPath) -> list[str]:
    root = os.fspath(folder)
    if not os.path.isdir(root):
        what = "is not a folder" if os.path.lexists(root) else "is not there"
        raise InputError(f"{shown(root, 200)} {what}", hint=f"name a folder with a {FILE}, or one with such folders")
    if os.path.lexists(os.path.join(root, FILE)):
        return [root]
    linked = [name for name in sorted(os.listdir(root)) if os.path.islink(os.path.join(root, name))]
    for name in linked:  # a folder elsewhere is nobody's to import by accident
        if os.path.isdir(os.path.join(root, name)):
            raise InputError(f"{shown(name)} is a link, not a folder", hint="copy the skill to where the link is")
    names = sorted(name for name in os.listdir(root) if os.path.lexists(os.path.join(root, name, FILE)))
    if not names:
        raise InputError(f"there is no {FILE} in {shown(root, 200)} nor in its folders", hint=_deeper(root))
    if len(names) > MAX_SKILLS:
        raise InputError(f"{shown(root, 200)} holds {len(names):,} skills", hint=f"at most {MAX_SKILLS:,} at a time")
    return [os.path.join(root, name) for name in names]


def _deeper(root: str) -> str:
    """Where skills are a level further down, if they are: that folder was meant."""
    found = sorted(Path(root).glob(f"*/*/{FILE}"))
    if found:
        return f"there are some in {shown(str(found[0].parent.parent), 200)}: name that folder"
    return "check the folder"


def _file(folder: str, approvals: Approvals | None) -> tuple[str, FileText]:
    name = os.path.basename(os.path.abspath(folder))
    file = Workspace(folder, label=f"{name}/").find(FILE)
    if isinstance(file, Missing):
        raise InputError(f"{name}/{FILE} is not there", hint="check the folder")
    if file.hidden and not (approvals and file.hash in approvals):
        places = ", ".join(map(str, file.hidden[:5]))
        raise InputError(
            f"{name}/{FILE} holds characters that nobody sees: {places}",
            hint=f"remove them, or approve the file: lamina rules approve --workspace {shown(folder, 200)} {FILE}",
        )
    return name, file


def _faults(folder: str, approvals: Approvals | None) -> list[LaminaError]:
    try:
        name, file = _file(folder, approvals)
        where = f"{name}/{FILE}"
        head, _ = _parted(file.text, where)
    except LaminaError as error:
        return [error]
    faults: list[LaminaError] = []
    for look in (lambda: _name(head, name, where), lambda: _description(head, where), lambda: _apps(head, where)):
        try:
            look()
        except LaminaError as error:
            faults.append(error)
    return faults


class _Plain(yaml.SafeLoader):
    """YAML without aliases: a few hundred bytes of them can stand for gigabytes."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):  # pyright: ignore[reportUnknownMemberType] -- PyYAML has no types for it
            raise yaml.YAMLError("aliases are not allowed")
        return super().compose_node(parent, index)


def _parted(text: str, where: str) -> tuple[Mapping[str, Any], str]:
    lines = text.replace("\r\n", "\n").split("\n")
    end = next((n for n, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), 0)
    if lines[0].rstrip() != "---" or not end:
        raise InputError(f"{where} has no head", hint="it begins with ---, name: …, description: …, ---")
    try:
        head: object = yaml.load("\n".join(lines[1:end]), Loader=_Plain)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 2}" if mark else ""
        raise InputError(
            f"the head of {where} is not YAML{place}", hint='put texts with a colon into "quotes"'
        ) from None
    body = "\n".join(lines[end + 1 :]).strip("\n")
    if not isinstance(head, dict):
        raise InputError(f"the head of {where} is {shown(head)}", hint="name: … and description: …")
    if not body.strip():
        raise InputError(f"{where} has a head and no text", hint="say below the head how the skill is done")
    return cast(Mapping[str, Any], head), body


def _name(head: Mapping[str, Any], folder: str, where: str) -> str:
    name = head.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise InputError(
            f"{where} names the skill {shown(name)}",
            hint=f"1 to {MAX_NAME} of a-z, 0-9 and single hyphens: read-tables",
        )
    if name != folder:
        raise InputError(f"{where} names the skill {shown(name)}", hint="name it like its folder")
    return name


def _description(head: Mapping[str, Any], where: str) -> str:
    text = head.get("description")
    if not isinstance(text, str) or not text.strip() or len(text) > MAX_DESCRIPTION:
        raise InputError(
            f"{where} has the description {shown(text)}",
            hint=f"1 to {MAX_DESCRIPTION} characters: what it does and when to use it",
        )
    return " ".join(text.split())


def _apps(head: Mapping[str, Any], where: str) -> tuple[str, ...]:
    metadata = head.get("metadata")
    if not isinstance(metadata, dict):
        return ()
    return apps_of(cast(Mapping[str, Any], metadata).get("supported_apps", ()), where)
