"""Who answers, from the settings; and the same as a worker for facts and summaries."""

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from importlib import import_module
from typing import Any

from lamina.app.files import new_mark
from lamina.assembly.budget import Budget
from lamina.assembly.pieces import PromptStyle
from lamina.assembly.request import assemble, encode
from lamina.errors import SettingsError, format_value
from lamina.ports import Complete, Count, Encode, Provider
from lamina.settings import Settings
from lamina.text.messages import Phrase
from lamina.types import Key, Layer, Message, Text

LOCAL_WINDOW_TOKENS, LOCAL_ANSWER_TOKENS = 8_192, 512
"""Of the embedded model: what it takes, and how much of that its answer may have."""
ANSWER_TOKENS = 1_024
"""Left free in the window for an answer whose length nobody limits."""
BACKGROUND_ANSWER_TOKENS = 1_024


def provider_of(settings: Settings, *, encode: Encode = encode) -> Provider:
    """The provider that the settings name; the embedded model where they name none."""
    name = settings.provider or "local"
    window = settings.window or None
    try:
        if name == "local":
            from lamina.providers.local import LocalProvider  # noqa: PLC0415 -- aiohttp is an extra

            _check_embedded_model(settings.model)
            path = settings.model if settings.model.endswith(".gguf") else ""
            return LocalProvider(path, n_ctx=settings.window or LOCAL_WINDOW_TOKENS)
        if name == "scripted":
            from lamina.providers.scripted import ScriptedProvider  # noqa: PLC0415 -- only when it is named

            if not settings.script:
                raise SettingsError("provider.no_script")
            return ScriptedProvider.load(settings.script, window=window, repeat=True)
        if not settings.model:
            raise SettingsError("provider.no_model", name=name)
        key = _read_key(settings.api_key)
        if not settings.base_url and not settings.api_key:  # a server at another address may need no key
            raise SettingsError("provider.no_key", name=name, variable=f"{name.upper()}_API_KEY")
        address: dict[str, Any] = {"base_url": settings.base_url} if settings.base_url else {}
        module = import_module(f"lamina.providers.{name}")  # only now: aiohttp is an extra
        hosted: Provider = module.provider(settings.model, encode=encode, key=key, window=window, **address)
        return hosted
    except ModuleNotFoundError as error:
        feature = Phrase("feature.provider")
        raise SettingsError("package.missing", feature=feature, package=error.name, extra="app") from None


def with_model(settings: Settings, model: str | None) -> Settings:
    """The settings with another model, as somebody asks for it, or with their own: one that nobody has is refused."""
    named = settings.model if model is None else model
    if settings.provider in ("", "local"):
        _check_embedded_model(named)
    return replace(settings, model=named)


def _check_embedded_model(model: str) -> None:
    """The embedded provider has its own model and files beside it: it would answer as if it were any other."""
    if not model or model.endswith(".gguf"):
        return
    from lamina.providers.local import FILE  # noqa: PLC0415 -- aiohttp is an extra

    if f"{model}.gguf" != FILE:
        raise SettingsError("provider.no_such_model", name=format_value(model))


def window_of(settings: Settings, provider: Provider | None) -> int | None:
    """How much the model takes, as far as it is known; no provider is made for this."""
    known = LOCAL_WINDOW_TOKENS if settings.provider == "local" else None
    return settings.window or (provider.window if provider else known)


def request_budget(settings: Settings, window: int | None) -> float:
    """The budget of a request: what the settings allow, and what the window leaves beside the answer."""
    if not window:
        return settings.budget
    answer = settings.max_tokens or (LOCAL_ANSWER_TOKENS if settings.provider in ("", "local") else ANSWER_TOKENS)
    return max(0, min(settings.budget, window - answer))


def complete_with(provider: Provider, count: Count) -> Complete:
    """The provider for work in the background: messages in, text out."""

    async def complete(messages: Sequence[Message], schema: Mapping[str, Any] | None) -> str:
        *before, last = messages
        layers = [Layer("identity", str(before[0]["content"]), "lamina")] if before else []
        budget, style = Budget(1e12, count), PromptStyle(new_mark())
        context = assemble(layers, before[1:], last["content"] or "", budget=budget, style=style)
        pieces: list[str] = []
        async with aclosing(provider.stream(context, max_tokens=BACKGROUND_ANSWER_TOKENS)) as stream:
            async for event in stream:
                if isinstance(event, Text):
                    pieces.append(event.text)
        return "".join(pieces)

    return complete


def _read_key(secret: str) -> Key | None:
    try:
        return Key(secret) if secret else None
    except ValueError:
        raise SettingsError("provider.bad_key") from None
