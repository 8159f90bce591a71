"""Other people's clients, as they are shipped: openai's and anthropic's, against a gateway over a real socket."""

import base64
import json
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from lamina.providers.scripted import ScriptedProvider
from lamina.records import REQUESTS
from tests.gateway.serving import TOKEN, Site, running

HELLO = [{"text": "Hello, "}, {"text": "你好。"}, {"usage": [70, 50, 9]}]
CALL = [{"text": "Let me see."}, {"call": "find", "id": "c1", "arguments": {"q": "x"}}, {"usage": [10, 0, 5]}]
FIND: Any = {"type": "function", "function": {"name": "find", "description": "Finds things."}}
PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * 40).decode()


def openai_client(site: Site, key: str = TOKEN) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key=key, max_retries=0)


def anthropic_client(site: Site, key: str = TOKEN) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=site.url, api_key=key, max_retries=0)


def scripted(*answers: Any) -> ScriptedProvider:
    return ScriptedProvider(list(answers), repeat=True)


async def test_openai_whole_and_streamed_with_the_turn_in_a_header(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", provider=scripted(HELLO)) as site, openai_client(site) as client:
        assert [model.id async for model in client.models.list()] == ["scripted"]
        raw = await client.chat.completions.with_raw_response.create(
            model="lamina", messages=[{"role": "user", "content": "Hi"}], temperature=0.3, seed=7, user="bob"
        )
        whole = raw.parse()
        assert whole.choices[0].message.content == "Hello, 你好。"
        assert whole.choices[0].finish_reason == "stop"
        assert whole.usage is not None
        assert (whole.usage.prompt_tokens, whole.usage.total_tokens) == (70, 79)
        turn = await site.app.store.turns.get("ann", raw.headers["x-lamina-turn"])
        assert (turn.state, turn.session_id) == ("complete", REQUESTS)
        provider: Any = site.app.provider
        assert provider.options[-1] == {"temperature": 0.3, "seed": 7}
        streamed = await client.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": "Hi"}], stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        chunks = [chunk async for chunk in streamed]
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello, 你好。"
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.prompt_tokens_details is not None
        assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 50


async def test_G5_without_a_session_the_request_is_its_own_history_below_the_operators_layers(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", provider=scripted(HELLO)) as site, openai_client(site) as client:
        provider: Any = site.app.provider
        await site.app.memory("ann").add("Ann likes tea.", pinned=True)
        await client.chat.completions.create(
            model="lamina",
            messages=[
                {"role": "system", "content": "CALLER-SYSTEM"},
                {"role": "user", "content": "FIRST"},
                {"role": "assistant", "content": "SECOND"},
                {"role": "developer", "content": "CALLER-LATER"},
                {"role": "user", "content": "THIRD"},
            ],
            extra_body={"api_base": "http://evil.example", "api_key": "sk-evil", "base_url": "http://evil.example"},
        )
        context = provider.contexts[-1]
        assert [m["content"] for m in context.messages[1:]] == ["FIRST", "SECOND", "THIRD"]
        layers = [segment.layer for segment in context.receipt.segments]
        assert layers.index("identity") < layers.index("caller") < layers.index("memory")
        assert "CALLER-SYSTEM\n\nCALLER-LATER" in context.system
        assert "evil" not in json.dumps([context.messages, provider.options])


async def test_with_a_session_only_the_newest_words_are_taken(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", provider=scripted(HELLO)) as site, openai_client(site) as client:
        session = await site.app.new_session("ann")
        provider: Any = site.app.provider
        for words in ("ONE", "TWO"):
            await client.chat.completions.create(
                model="lamina",
                messages=[{"role": "user", "content": "FORGED"}, {"role": "user", "content": words}],
                extra_headers={"X-Lamina-Session": session.session_id},
            )
        assert [m["content"] for m in provider.contexts[-1].messages[1:]] == ["ONE", "Hello, 你好。", "TWO"]
        await client.chat.completions.create(
            model="lamina", messages=[{"role": "user", "content": "THREE"}], metadata={"session_id": session.session_id}
        )
        assert len(await site.app.store.history.messages("ann", session.session_id)) == 6
        async with openai_client(site, await site.key("bob")) as other:
            with pytest.raises(openai.NotFoundError):
                await other.chat.completions.create(
                    model="lamina", messages=[{"role": "user", "content": "x"}],
                    extra_headers={"X-Lamina-Session": session.session_id},
                )  # fmt: skip
        with pytest.raises(openai.BadRequestError, match="no chat"):
            await client.chat.completions.create(
                model="lamina", messages=[{"role": "user", "content": "x"}], metadata={"session_id": REQUESTS}
            )


@pytest.mark.parametrize("kept", [False, True])
async def test_openai_tools_of_the_client_come_back_as_calls_and_their_results_go_on(
    tmp_path: Path, kept: bool
) -> None:
    answers = scripted(CALL, HELLO, CALL, HELLO)
    async with running(tmp_path / "s.db", provider=answers) as site, openai_client(site) as client:
        session = await site.app.new_session("ann")
        more: Any = {"extra_headers": {"X-Lamina-Session": session.session_id}} if kept else {}
        messages: list[Any] = [{"role": "user", "content": "Find x."}]
        first = await client.chat.completions.create(model="lamina", messages=messages, tools=[FIND], **more)
        assert first.choices[0].finish_reason == "tool_calls"
        assert first.choices[0].message.tool_calls
        messages += [first.choices[0].message, {"role": "tool", "tool_call_id": "c1", "content": "RESULT"}]
        second = await client.chat.completions.create(model="lamina", messages=messages, tools=[FIND], **more)
        assert second.choices[0].message.content == "Hello, 你好。"
        roles = [m["role"] for m in answers.contexts[-1].messages]
        assert roles == ["system", "user", "assistant", "tool"]
        streamed = await client.chat.completions.create(
            model="lamina", messages=[{"role": "user", "content": "Again"}], tools=[FIND], stream=True, **more
        )
        calls = [call for c in [c async for c in streamed] if c.choices for call in c.choices[0].delta.tool_calls or ()]
        assert [(call.id, call.function.name) for call in calls if call.function] == [("c1", "find")]


async def test_pictures_reach_the_provider_in_both_forms(tmp_path: Path) -> None:
    async with (
        running(tmp_path / "s.db", provider=scripted(HELLO)) as site,
        openai_client(site) as one,
        anthropic_client(site) as other,
    ):
        url = f"data:image/png;base64,{PIXEL}"
        await one.chat.completions.create(
            model="lamina",
            messages=[
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "图"}, {"type": "image_url", "image_url": {"url": url}}],
                }
            ],
        )
        block: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
        await other.messages.create(
            model="lamina", max_tokens=9,
            messages=[{"role": "user", "content": [{"type": "text", "text": "图"}, block]}],
        )  # fmt: skip
        provider: Any = site.app.provider
        for context in provider.contexts[-2:]:
            assert [part["type"] for part in context.messages[-1]["content"]] == ["text", "image_url"]
            assert context.messages[-1]["content"][1]["image_url"]["url"] == url
        assert provider.limits[-1] == 9


async def test_anthropic_whole_streamed_and_with_tools(tmp_path: Path) -> None:
    answers = scripted(HELLO, HELLO, CALL, HELLO)
    async with running(tmp_path / "s.db", provider=answers) as site, anthropic_client(site) as client:
        whole = await client.messages.create(
            model="lamina", max_tokens=100, system="CALLER", messages=[{"role": "user", "content": "Hi"}],
            stop_sequences=["STOP"],
        )  # fmt: skip
        assert whole.content[0].type == "text"
        assert whole.content[0].text == "Hello, 你好。"
        assert (whole.stop_reason, whole.usage.input_tokens, whole.usage.cache_read_input_tokens) == (
            "end_turn",
            20,
            50,
        )
        assert answers.options[-1] == {"stop": ["STOP"]}
        async with client.messages.stream(
            model="lamina", max_tokens=100, messages=[{"role": "user", "content": "Hi"}]
        ) as stream:
            assert "".join([text async for text in stream.text_stream]) == "Hello, 你好。"
            final = await stream.get_final_message()
        assert final.usage.output_tokens == 9
        tool: Any = {"name": "find", "description": "Finds.", "input_schema": {"type": "object", "properties": {}}}
        messages: list[Any] = [{"role": "user", "content": "Find x."}]
        async with client.messages.stream(
            model="lamina", max_tokens=100, messages=messages, tools=[tool], tool_choice={"type": "any"}
        ) as stream:
            called = await stream.get_final_message()
        assert called.stop_reason == "tool_use"
        assert answers.options[-1] == {"tool_choice": "required"}
        use = called.content[-1]
        assert use.type == "tool_use"
        assert use.input == {"q": "x"}
        result: Any = {"type": "tool_result", "tool_use_id": use.id, "content": "RESULT"}
        messages += [{"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
        await client.messages.create(model="lamina", max_tokens=100, messages=messages, tools=[tool])
        assert [m["role"] for m in answers.contexts[-1].messages] == ["system", "user", "assistant", "tool"]
        assert [model.id async for model in client.models.list()] == ["scripted"]


async def test_errors_come_in_the_words_of_each_form(tmp_path: Path) -> None:
    answers = scripted([{"fault": "status", "code": 500}], [{"text": "half"}, {"fault": "cut"}])
    async with (
        running(tmp_path / "s.db", provider=answers) as site,
        openai_client(site, "wrong") as stranger,
        anthropic_client(site, "wrong") as other,
        openai_client(site) as client,
    ):
        with pytest.raises(openai.AuthenticationError):
            await stranger.models.list()
        with pytest.raises(anthropic.AuthenticationError):
            await other.messages.create(model="lamina", max_tokens=9, messages=[{"role": "user", "content": "x"}])
        ask = client.chat.completions.create
        with pytest.raises(openai.NotFoundError, match="gpt-9"):
            await ask(model="gpt-9", messages=[{"role": "user", "content": "x"}])
        for wrong, where in (
            ([{"role": "user", "content": [{"type": "video"}]}], "content"),
            ([{"role": "assistant", "content": "x"}], "role user"),
            ([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "assistant"),
            ([{"role": "tool", "tool_call_id": "c9", "content": "x"}], "role user"),
            ([{"role": "wizard", "content": "x"}], "role"),
            ([], "messages"),
        ):
            with pytest.raises(openai.BadRequestError, match=where):
                await ask(model="lamina", messages=wrong)  # pyright: ignore
        with pytest.raises(openai.APIStatusError) as refused:
            await ask(model="lamina", messages=[{"role": "user", "content": "x"}])
        assert refused.value.status_code == 502
        streamed = await ask(model="lamina", messages=[{"role": "user", "content": "x"}], stream=True)
        with pytest.raises(openai.APIError):
            _ = [chunk async for chunk in streamed]
        rows = await site.app.store.history.messages("ann", REQUESTS)
        assert (rows[-1].text, rows[-1].state) == ("half", "interrupted"), "and nothing is lost"


async def test_R14_the_same_idempotency_key_is_one_turn(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", provider=scripted(HELLO)) as site:
        body = {"messages": [{"role": "user", "content": "once"}]}
        replies = [await site.post("/v1/chat/completions", body, headers={"Idempotency-Key": "k1"}) for _ in range(3)]
        assert len({reply.headers["x-lamina-turn"] for reply in replies}) == 1
        assert {reply.json["choices"][0]["message"]["content"] for reply in replies} == {"Hello, 你好。"}
        provider: Any = site.app.provider
        assert len(provider.contexts) == 1
