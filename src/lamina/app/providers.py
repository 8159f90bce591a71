"""Who answers, from the settings; and the same as a worker for facts and summaries."""

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from importlib import import_module
from typing import Any

from lamina.assembly.context import assemble
from lamina.assembly.wire import encode
from lamina.errors import SettingsError, shown
from lamina.ports import Complete, Count, Encode, Provider
from lamina.settings import Settings
from lamina.types import Key, Layer, Message, Text

LOCAL_WINDOW, LOCAL_ANSWER = 8_192, 512
"""Of the embedded model: what it takes, and how much of that its answer may have."""
ANSWER = 1_024
"""Left free in the window for an answer whose length nobody limits."""
WORK_ANSWER = 1_024


def provider_of(settings: Settings, *, encode: Encode = encode) -> Provider:
    """The provider that the settings name; the embedded model where they name none."""
    name = settings.provider or "local"
    window = settings.window or None
    try:
        if name == "local":
            from lamina.providers.local import LocalProvider  # noqa: PLC0415 -- aiohttp is an extra

            _embedded_has(settings.model)
            path = settings.model if settings.model.endswith(".gguf") else ""
            return LocalProvider(path, n_ctx=settings.window or LOCAL_WINDOW)
        if name == "scripted":
            from lamina.providers.scripted import ScriptedProvider  # noqa: PLC0415 -- only when it is named

            _needs(settings.script, "script", "LAMINA_SCRIPT=answers.json, see docs/providers.md")
            return ScriptedProvider.load(settings.script, window=window, repeat=True)
        _needs(settings.model, f"model for {name}", "set LAMINA_MODEL, or model = … in lamina.toml")
        key = _key(settings.api_key)
        if not settings.base_url:  # its own address takes nobody without a key; a server elsewhere may
            keys = f"set {name.upper()}_API_KEY or LAMINA_API_KEY"
            _needs(settings.api_key, f"key for {name}", f"{keys}; for a server of your own LAMINA_BASE_URL")
        address: dict[str, Any] = {"base_url": settings.base_url} if settings.base_url else {}
        module = import_module(f"lamina.providers.{name}")  # only now: aiohttp is an extra
        hosted: Provider = module.provider(settings.model, encode=encode, key=key, window=window, **address)
        return hosted
    except ModuleNotFoundError as error:
        raise SettingsError(f"this provider needs the package {error.name}", hint="pip install 'lamina[app]'") from None


def with_model(settings: Settings, model: str | None) -> Settings:
    """The settings with another model, as somebody asks for it, or with their own: one that nobody has is refused."""
    named = settings.model if model is None else model
    if settings.provider in ("", "local"):
        _embedded_has(named)
    return replace(settings, model=named)


def _embedded_has(model: str) -> None:
    """The embedded provider has its own model and files beside it: it would answer as if it were any other."""
    if not model or model.endswith(".gguf"):
        return
    from lamina.providers.local import FILE  # noqa: PLC0415 -- aiohttp is an extra

    if f"{model}.gguf" != FILE:
        raise SettingsError(
            f"there is no model {shown(model)} here: the embedded one answers",
            hint="set LAMINA_PROVIDER to who has it, or name a .gguf file",
        )


def window_of(settings: Settings, provider: Provider | None) -> int | None:
    """How much the model takes, as far as it is known; no provider is made for this."""
    known = LOCAL_WINDOW if settings.provider == "local" else None
    return settings.window or (provider.window if provider else known)


def room_in(settings: Settings, window: int | None) -> float:
    """The budget of a request: what the settings allow, and what the window leaves beside the answer."""
    if not window:
        return settings.budget
    answer = settings.max_tokens or (LOCAL_ANSWER if settings.provider in ("", "local") else ANSWER)
    return max(0, min(settings.budget, window - answer))


def completing(provider: Provider, count: Count) -> Complete:
    """The provider for work in the background: messages in, text out."""

    async def complete(messages: Sequence[Message], schema: Mapping[str, Any] | None) -> str:
        *before, last = messages
        context = assemble(history=before[1:], user=last["content"] or "", budget=1e12, count=count, **_system(before))
        pieces: list[str] = []
        async with aclosing(provider.stream(context, max_tokens=WORK_ANSWER)) as stream:
            async for event in stream:
                if isinstance(event, Text):
                    pieces.append(event.text)
        return "".join(pieces)

    return complete


def _system(messages: Sequence[Message]) -> dict[str, Any]:
    return {"layers": [Layer("identity", str(messages[0]["content"]), "lamina")]} if messages else {}


def _key(secret: str) -> Key | None:
    try:
        return Key(secret) if secret else None
    except ValueError as error:
        raise SettingsError(f"LAMINA_API_KEY cannot be used: {error}", hint="copy it again, without blanks") from None


def _needs(value: str, what: str, hint: str) -> None:
    if not value:
        raise SettingsError(f"the settings name no {what}", hint=hint)
