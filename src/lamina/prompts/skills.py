"""Skills in folders, each with a `SKILL.md`: a head with name and description, then the text on demand.

Files are read like instructions: never out of their folder, bounded, and nothing hidden passes. Needs PyYAML.
"""

import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import yaml

from lamina.errors import InputError, LaminaError, format_value
from lamina.prompts.approvals import Approvals
from lamina.prompts.templates import ON_DEMAND, apps_of
from lamina.prompts.workspace import AnyPath, FileText, Missing, Workspace
from lamina.records import Template
from lamina.text.messages import Phrase

FILE = "SKILL.md"
NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
MAX_NAME, MAX_DESCRIPTION, MAX_SKILLS = 64, 1_024, 1_000


def check_skills(folder: AnyPath, approvals: Approvals | None = None) -> tuple[list[Template], list[LaminaError]]:
    """The skill of a folder, or of each folder in it, and everything that is wrong with the others."""
    skills: list[Template] = []
    faults: list[LaminaError] = []
    for path in _list_folders(folder):
        try:
            name, file = _read_file(path, approvals)
            head, body = _split_head(file.text, f"{name}/{FILE}")
        except LaminaError as error:
            faults.append(error)
            continue
        fields, wrong = _read_head(head, name)
        faults += wrong
        if not wrong:
            source = f"{ON_DEMAND}{name}@{file.hash[:12]}"
            skills.append(Template(f"{ON_DEMAND}{name}", content=body, is_skill=True, source=source, **fields))
    return skills, faults


def _list_folders(folder: AnyPath) -> list[str]:
    root = os.fspath(folder)
    if not os.path.isdir(root):
        code = "skill.not_a_folder" if os.path.lexists(root) else "skill.folder_missing"
        raise InputError(code, folder=format_value(root, 200))
    if os.path.lexists(os.path.join(root, FILE)):
        return [root]
    linked = [name for name in sorted(os.listdir(root)) if os.path.islink(os.path.join(root, name))]
    for name in linked:  # a folder elsewhere must not be imported by accident
        if os.path.isdir(os.path.join(root, name)):
            raise InputError("skill.folder_is_link", folder=format_value(name))
    names = sorted(name for name in os.listdir(root) if os.path.lexists(os.path.join(root, name, FILE)))
    if not names:
        raise InputError("skill.none_found", hint=_suggest_folder(root), folder=format_value(root, 200))
    if len(names) > MAX_SKILLS:
        raise InputError("skill.too_many", folder=format_value(root, 200), count=len(names), limit=MAX_SKILLS)
    return [os.path.join(root, name) for name in names]


def _suggest_folder(root: str) -> Phrase:
    """Where skills are one level further down, that folder was probably meant."""
    found = sorted(Path(root).glob(f"*/*/{FILE}"))
    if found:
        return Phrase("skill.found_deeper", folder=format_value(str(found[0].parent.parent), 200))
    return Phrase("skill.check_folder")


def _read_file(folder: str, approvals: Approvals | None) -> tuple[str, FileText]:
    name = os.path.basename(os.path.abspath(folder))
    file = Workspace(folder, label=f"{name}/").find(FILE)
    if isinstance(file, Missing):
        raise InputError("skill.file_missing", file=f"{name}/{FILE}")
    if file.hidden and not (approvals and file.hash in approvals):
        places = [str(place) for place in file.hidden[:5]]
        raise InputError("skill.hidden", file=f"{name}/{FILE}", places=places, folder=format_value(folder, 200))
    return name, file


def _read_head(head: Mapping[str, Any], folder: str) -> tuple[dict[str, Any], list[LaminaError]]:
    """The fields of a template that the head gives, or what is wrong with each of them."""
    fields: dict[str, Any] = {}
    faults: list[LaminaError] = []
    for field, read in (
        ("name", partial(_read_name, head, folder)),
        ("description", partial(_read_description, head)),
        ("supported_apps", partial(_read_apps, head)),
    ):
        try:
            fields[field] = read(f"{folder}/{FILE}")
        except LaminaError as error:
            faults.append(error)
    return fields, faults


class _Plain(yaml.SafeLoader):
    """YAML without aliases: a few hundred bytes of them can expand to gigabytes."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):  # pyright: ignore[reportUnknownMemberType] -- PyYAML has no types for it
            raise yaml.YAMLError("aliases are not allowed")
        return super().compose_node(parent, index)


def _split_head(text: str, where: str) -> tuple[Mapping[str, Any], str]:
    lines = text.replace("\r\n", "\n").split("\n")
    end = next((n for n, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), 0)
    if lines[0].rstrip() != "---" or not end:
        raise InputError("skill.no_head", file=where)
    try:
        head: object = yaml.load("\n".join(lines[1:end]), Loader=_Plain)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        hint = "skill.quote_colons"
        if mark:
            raise InputError("skill.bad_yaml_at", hint=hint, file=where, line=mark.line + 2) from None
        raise InputError("skill.bad_yaml", hint=hint, file=where) from None
    body = "\n".join(lines[end + 1 :]).strip("\n")
    if not isinstance(head, dict):
        raise InputError("skill.bad_head", file=where, value=format_value(head))
    if not body.strip():
        raise InputError("skill.no_text", file=where)
    return cast(Mapping[str, Any], head), body


def _read_name(head: Mapping[str, Any], folder: str, where: str) -> str:
    name = head.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise InputError("skill.bad_name", file=where, name=format_value(name), limit=MAX_NAME)
    if name != folder:
        raise InputError(
            "skill.bad_name", hint="skill.name_like_folder", file=where, name=format_value(name), limit=MAX_NAME
        )
    return name


def _read_description(head: Mapping[str, Any], where: str) -> str:
    text = head.get("description")
    if not isinstance(text, str) or not text.strip() or len(text) > MAX_DESCRIPTION:
        raise InputError("skill.bad_description", file=where, text=format_value(text), limit=MAX_DESCRIPTION)
    return " ".join(text.split())


def _read_apps(head: Mapping[str, Any], where: str) -> tuple[str, ...]:
    metadata = head.get("metadata")
    if not isinstance(metadata, dict):
        return ()
    return apps_of(cast(Mapping[str, Any], metadata).get("supported_apps", ()), where)
