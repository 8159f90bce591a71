"""The bot with aiogram's real client against a local Bot API: words and pictures in, answers out, within the limits."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from lamina.errors import ConnectError, SettingsError
from lamina.telegram.commands import ANSWERS, MAX_ANSWERS
from tests.telegram.botapi import BotApi, Fault, bot_api, units
from tests.telegram.bots import ANN, BOB, EVE, PNG, Bot, bot, hello, rules_in


@pytest.fixture
def where(tmp_path: Path) -> str:
    return str(tmp_path / "chats.db")


def content(running: Bot, number: int) -> Any:
    """What the user said last in a request."""
    return running.provider.contexts[number].messages[-1]["content"]


async def test_a_question_gets_its_answer_and_is_stored_under_the_person(where: str) -> None:
    async with bot_api() as api, bot(api, where, hello("Hello **Ann**")) as running:
        await api.say("Hi there")
        await api.until_shown("Hello Ann")
        assert content(running, 0) == "Hi there"
        assert api.sent()[0].text == "Hello <b>Ann</b>"
        assert api.sent("sendChatAction")
        (session,) = await running.app.store.sessions.list(f"telegram:{ANN}")
        assert session.title == "Hi there"
        assert [m.text for m in await running.app.store.messages.list(session.owner, session.session_id)] == [
            "Hi there",
            "Hello **Ann**",
        ]


async def test_the_menu_of_commands_is_there_in_both_languages(where: str) -> None:
    async with bot_api() as api, bot(api, where, hello("x")):
        english, chinese = api.sent("setMyCommands")
        assert '"new"' in english.given["commands"]
        assert "language_code" not in english.given
        assert chinese.given["language_code"] == "zh"
        assert "新建会话" in chinese.given["commands"] or "\\u65b0\\u5efa" in chinese.given["commands"]


async def test_I4_telegram_a_picture_is_a_part_and_the_injection_stands_as_text_at_the_front(
    where: str, tmp_path: Path
) -> None:
    workspace = rules_in(tmp_path / "work", "Answer in rhymes.")
    async with bot_api() as api, bot(api, where, hello("a", "b"), workspace=workspace, reinjection_turns=1) as running:
        await api.say("first")
        await api.until_shown("a")
        await api.push(api.picture(PNG, "What is this?"))
        await api.until(lambda: len(running.provider.contexts) == 2)
        instructions, rules, words, picture = content(running, 1)
        assert instructions["type"] == rules["type"] == "text"
        assert 'layer="instructions"' in instructions["text"]
        assert "Answer in rhymes." in rules["text"]
        assert words == {"type": "text", "text": "What is this?"}
        assert picture["image_url"]["url"] == f"data:image/png;base64,{base64.b64encode(PNG).decode()}"


async def test_I13_telegram_the_first_injection_is_the_engines(where: str, tmp_path: Path) -> None:
    workspace = rules_in(tmp_path / "work", "Answer in rhymes.")
    async with bot_api() as api, bot(api, where, hello("a"), workspace=workspace) as running:
        await api.say("first")
        await api.until_shown("a")
        assert "Answer in rhymes." in running.provider.contexts[0].system


async def test_an_image_that_was_sent_as_a_file_is_a_picture_too(where: str) -> None:
    async with bot_api() as api, bot(api, where, hello("seen")) as running:
        api.files["doc"] = PNG
        file = {"file_id": "doc", "file_unique_id": "doc", "mime_type": "image/png", "file_size": len(PNG)}
        await api.push(api.update(document=file))
        await api.until_shown("seen")
        assert [part["type"] for part in content(running, 0)] == ["image_url"]


async def test_the_pictures_of_an_album_are_one_question(where: str) -> None:
    async with bot_api() as api, bot(api, where, hello("two")) as running:
        parts = [api.picture(PNG, "Compare", media_group_id="g"), api.picture(PNG, media_group_id="g")]
        await api.push(*parts)
        await api.until_shown("two")
        assert [part["type"] for part in content(running, 0)] == ["text", "image_url", "image_url"]
        await api.push(api.picture(PNG, media_group_id="g"))  # one part again, after the others were confirmed
        await api.until(lambda: not api.updates)
        assert len(running.provider.contexts) == 1


@pytest.mark.parametrize(("lang", "found"), [("en", "only text and pictures"), ("zh-hans", "只能理解文字与图片")])
async def test_what_cannot_be_understood_is_said_politely(where: str, lang: str, found: str) -> None:
    async with bot_api() as api, bot(api, where, hello("x")) as running:
        voice = {"file_id": "v", "file_unique_id": "v", "duration": 3}
        await api.push(api.update(voice=voice, lang=lang))
        await api.until_shown(found)
        assert running.provider.contexts == []


async def test_a_picture_that_is_too_large_gone_or_none_is_refused(where: str) -> None:
    async with bot_api() as api, bot(api, where, hello("x")) as running:
        huge = {"file_id": "h", "file_unique_id": "h", "mime_type": "image/png", "file_size": 6_000_000}
        await api.push(api.update(document=huge))
        await api.until_shown("too large")
        await api.push(api.picture(b"%PDF-1.7 not a picture"))
        await api.until_shown("cannot read this picture")
        lies = {"file_id": "lies", "file_unique_id": "l", "mime_type": "image/png", "file_size": 10}
        api.files["lies"] = bytes(6_000_000)
        await api.push(api.update(document=lies))
        await api.until(lambda: sum("too large" in text for text in api.shown()) == 2)
        gone = {"file_id": "gone", "file_unique_id": "g", "mime_type": "image/png", "file_size": 10}
        await api.push(api.update(document=gone))
        await api.until_shown("could not be fetched")
        assert running.provider.contexts == []
        assert await running.app.store.sessions.list(f"telegram:{ANN}") == []


async def test_an_answer_is_edited_as_it_streams(where: str) -> None:
    script = [[*({"text": f"word{n} "} if n % 2 else {"delay": 0.2} for n in range(12)), {"done": "stop"}]]
    async with bot_api() as api, bot(api, where, script):
        await api.say("go")
        await api.until_shown("word11")
        assert len(api.sent()) == 1
        assert len(api.sent("editMessageText")) >= 2
        assert api.shown() == ["word1 word3 word5 word7 word9 word11"]


async def test_a_chat_gets_at_most_one_message_or_edit_a_second(where: str) -> None:
    script = [[*({"text": f"w{n} "} if n % 2 else {"delay": 0.03} for n in range(160)), {"done": "stop"}]]
    async with bot_api() as api, bot(api, where, script, pace=1.0):
        await api.say("go")
        await api.until_shown("w159")
        calls = [call for call in api.calls if call.method in ("sendMessage", "editMessageText")]
        lasted = calls[-1].at - calls[0].at
        assert 2 <= len(calls) <= lasted + 1.5, f"{len(calls)} in {lasted} s"


async def test_a_long_chinese_answer_is_split_and_nothing_of_it_is_lost(where: str) -> None:
    story = "".join(f"第{n}句：天地玄黄，宇宙洪荒😀。" for n in range(700))
    async with bot_api() as api, bot(api, where, [[{"text": story}, {"done": "stop"}]]):
        await api.say("讲个故事", lang="zh")
        await api.until_shown("第699句")
        shown = api.shown()
        assert len(shown) > 2
        assert "".join(shown) == story
        assert all(units(text) <= 4_096 and text.endswith("。") for text in shown)


async def test_a_code_block_that_is_split_is_closed_and_opened_again(where: str) -> None:
    code = "\n".join(f"print({n})" for n in range(800))
    async with bot_api() as api, bot(api, where, hello(f"Here:\n\n```python\n{code}\n```\nDone.")):
        await api.say("code")
        await api.until_shown("Done.")
        assert len(api.messages) > 2
        for marked in api.messages.values():
            assert '<pre><code class="language-python">print(' in marked


async def test_internal_hints_are_never_shown(where: str) -> None:
    script = [[{"text": 'Sure <system_hint type="x">secret canary</system_hint>thing', "split": [8, 20, 40]}]]
    async with bot_api() as api, bot(api, where, script):
        await api.say("go")
        await api.until_shown("Sure")
        await api.until_shown("thing")
        assert not any("canary" in call.text or "system_hint" in call.text for call in api.calls)


async def test_markup_that_telegram_refuses_is_sent_as_plain_text(where: str) -> None:
    async with bot_api() as api, bot(api, where, hello("a **b** <i>c</i>")):
        api.faults["sendMessage"].append(Fault(400, "Bad Request: can't parse entities: because"))
        await api.say("go")
        await api.until_shown("a **b** <i>c</i>")


async def test_an_answer_that_markup_would_make_too_long_is_sent_as_plain_text(where: str) -> None:
    async with bot_api() as api, bot(api, where, hello("---\n" * 999)):
        await api.say("go")
        await api.until_shown("---\n---")
        assert len(api.sent()) == 1


async def test_a_request_to_wait_is_honoured_and_the_answer_comes_nevertheless(where: str) -> None:
    async with bot_api() as api, bot(api, where, hello("Here it is")):
        api.faults["sendMessage"].append(Fault(429, retry_after=1))
        await api.say("go")
        await api.until_shown("Here it is")
        first, second = api.sent()
        assert second.at - first.at >= 0.9


async def test_edits_that_are_refused_while_streaming_do_not_cost_the_answer(where: str) -> None:
    script = [[*({"text": f"word{n} "} if n % 2 else {"delay": 0.1} for n in range(14)), {"done": "stop"}]]
    async with bot_api() as api, bot(api, where, script):
        api.faults["editMessageText"] += [Fault(429, retry_after=1), Fault(500, "Internal"), Fault(0)]
        await api.say("go")
        await api.until_shown("word13")


async def test_a_message_that_somebody_deleted_meanwhile_is_sent_again(where: str) -> None:
    script = [[{"text": "begin "}, {"delay": 1.0}, {"text": "end"}, {"done": "stop"}]]
    async with bot_api() as api, bot(api, where, script):
        await api.say("go")
        await api.until_shown("begin")
        api.messages.clear()
        await api.until_shown("begin end")


async def test_dropped_connections_and_bad_days_are_waited_out(where: str) -> None:
    async with bot_api() as api, bot(api, where, hello("Here")):
        api.faults["getUpdates"] += [Fault(0), Fault(502, "Bad Gateway")]
        api.faults["sendMessage"] += [Fault(0), Fault(500, "Internal")]
        await api.say("go")
        await api.until_shown("Here")


async def test_an_update_of_an_unknown_form_does_not_keep_others_from_us(where: str) -> None:
    async with bot_api() as api, bot(api, where, hello("Here")):
        broken = api.update("x")
        broken["message"]["chat"] = "nowhere"
        await api.push(broken, api.update("go"))
        await api.until_shown("Here")
        await api.until(lambda: not api.updates)


async def test_a_turn_that_fails_or_breaks_off_says_so_and_keeps_what_came(where: str) -> None:
    script = [[{"text": "half "}, {"fault": "cut"}], [{"fault": "status", "code": 400}]]
    async with bot_api() as api, bot(api, where, script):
        await api.say("go")
        await api.until_shown("The answer broke off: the connection to the script was cut")
        assert any(text.startswith("half") for text in api.shown())
        await api.say("again")
        await api.until_shown("The answer failed: the script answered 400")


async def test_an_empty_answer_says_so(where: str) -> None:
    async with bot_api() as api, bot(api, where, [[{"done": "stop"}]]):
        await api.say("go")
        await api.until_shown("The model did not say anything.")


async def test_turns_of_one_scope_follow_each_other_and_those_of_others_do_not_wait(where: str) -> None:
    script = [[{"text": "slow"}, {"delay": 600}], [{"text": "quick"}], [{"text": "third"}]]
    async with bot_api() as api, bot(api, where, script) as running:
        await api.say("one")
        await api.until_shown("slow")
        await api.push(api.update("two"), api.update("mine", person=BOB))
        await api.until_shown("quick", chat=BOB)
        assert api.shown(ANN) == ["slow"]
        await api.say("/stop")
        await api.until_shown("third")
        said = [m["content"] for m in running.provider.contexts[2].messages if m["role"] == "user"]
        assert said == ["one", "two"]


async def test_the_offset_moves_only_when_a_question_is_stored(where: str) -> None:
    async with bot_api() as api, bot(api, where, [[{"text": "slow"}, {"delay": 600}], [{"text": "next"}]]):
        await api.say("one")
        await api.until_shown("slow")
        second = await api.say("two")
        before = len(api.sent("getUpdates"))
        await api.until(lambda: len(api.sent("getUpdates")) >= before + 3)
        assert api.asked_from == second["update_id"], "the second question waits, so Telegram must keep it"
        await api.say("/stop")
        await api.until_shown("next")
        await api.until(lambda: not api.updates)


async def test_a_flood_is_asked_to_wait_and_leaves_the_bot_well(where: str) -> None:
    script = [[{"text": "slow"}, {"delay": 600}], [{"text": "quick"}]]
    async with bot_api() as api, bot(api, where, script) as running:
        await api.say("one")
        await api.until_shown("slow")
        await api.push(*(api.update(f"flood {n}") for n in range(30)), api.update("mine", person=BOB))
        await api.until_shown("20 of your messages are still waiting")
        await api.until_shown("quick", chat=BOB)
        assert len(running.provider.contexts) == 2
        assert sum("still waiting" in text for text in api.shown()) == 1
    kept = {each["message"]["text"] for each in api.updates.values()}
    assert kept >= {f"flood {n}" for n in range(20)}, "what waits stays with Telegram"


async def test_copies_of_one_update_are_no_crowd(where: str) -> None:
    async with bot_api() as api, bot(api, where, [[{"text": "slow"}, {"delay": 600}], [{"text": "next"}]]):
        await api.say("one")
        await api.until_shown("slow")
        api.copies = 60
        await api.push(api.update("two"), api.update("three"))
        before = len(api.sent("getUpdates"))
        await api.until(lambda: len(api.sent("getUpdates")) >= before + 3)
        assert api.shown() == ["slow"], "nobody was told to send anything again"


async def test_when_too_many_wait_the_oldest_gives_way_so_that_others_are_heard(where: str) -> None:
    people = tuple(range(20, 28))
    script = [[{"text": "slow"}, {"delay": 600}]]
    async with bot_api() as api, bot(api, where, script, telegram_allow=(*people, BOB)):
        for person in people:
            await api.say("one", person=person)
        await api.until(lambda: all(api.shown(person) for person in people))
        await api.push(*(api.update(f"more {n}", person=person) for n in range(15) for person in people))
        await api.say("mine", person=BOB)
        await api.until_shown("slow", chat=BOB)
        assert sum("very busy" in text for person in people for text in api.shown(person)) >= 20


async def test_people_who_are_not_on_the_list_are_refused_once_and_leave_nothing_behind(where: str) -> None:
    async with bot_api() as api, bot(api, where, hello("x")) as running:
        await api.push(
            *(api.update(text, person=EVE) for text in ("Hi", "/memory", "/new")), api.picture(PNG, person=EVE)
        )
        await api.until(lambda: not api.updates)
        assert api.shown(EVE) == [f"This bot is private. Your id is {EVE}; the person who runs the bot can add you."]
        assert running.provider.contexts == []
        assert await running.app.store.sessions.list(f"telegram:{EVE}") == []


async def test_C10_what_one_person_says_reaches_nobody_else(where: str) -> None:
    async with bot_api() as api, bot(api, where, hello("noted"), memory=True, embedder="none") as running:
        await api.say("I live in Annville, canary-ann")
        await api.until_shown("noted")
        await api.say("/memory add My cat is called Canary-Ann")
        await api.until_shown("Remembered")
        for words in ("Where do I live? What is my cat called?", "canary-ann"):
            await api.say(words, person=BOB)
        await api.until(lambda: len(api.shown(BOB)) == 2)
        await api.say("/memory", person=BOB)
        await api.until(lambda: len(api.shown(BOB)) == 3)
        seen = [str(context.messages) for context in running.provider.contexts[1:]]
        assert not any("Annville" in one or "Canary-Ann" in one for one in seen)
        assert not any("Canary-Ann" in text for text in api.shown(BOB))


async def test_a_person_who_is_a_user_of_lamina_has_one_memory_everywhere(where: str) -> None:
    async with bot_api() as api, bot(api, where, hello("x"), telegram_users={ANN: "ann"}) as running:
        await api.say("Hi")
        await api.until_shown("x")
        assert len(await running.app.store.sessions.list("ann")) == 1
        assert await running.app.store.sessions.list(f"telegram:{ANN}") == []


async def test_in_a_group_only_what_is_meant_for_the_bot_is_answered(where: str) -> None:
    group = -100
    async with bot_api() as api, bot(api, where, hello("one", "two", "three")) as running:
        me = {"id": 4242, "is_bot": True, "first_name": "lamina"}
        ours = {"message_id": 1, "date": 1, "chat": {"id": group, "type": "supergroup"}, "from": me, "text": "…"}
        theirs = {**ours, "from": {"id": BOB, "is_bot": False, "first_name": "Bob"}}
        await api.push(
            api.update("just talking", chat=group),
            api.update("/new@another_bot", chat=group),
            api.update("/dance", chat=group),
            api.update("@somebody hello", chat=group),
            api.update("as I said", chat=group, reply_to_message=theirs),
            api.update("@lamina_test_bot what is up?", chat=group),
        )
        await api.until_shown("one", group)
        await api.say("and you?", chat=group, reply_to_message=ours)
        await api.until_shown("two", group)
        assert [content(running, n) for n in range(2)] == ["what is up?", "and you?"]
        assert len(api.shown(group)) == 2
        assert '"message_id"' in api.sent()[0].given["reply_parameters"]
        for name in ("/mode@lamina_test_bot", "/mode"):
            await api.say(name, chat=group)
        await api.until(lambda: sum("The mode is ask" in text for text in api.shown(group)) == 2)
        await api.say("/dance@lamina_test_bot", chat=group)
        await api.until_shown("I do not know /dance", group)


async def test_in_a_group_an_album_is_one_question_though_only_one_picture_bears_the_words(where: str) -> None:
    async with bot_api() as api, bot(api, where, hello("seen")) as running:
        album: dict[str, Any] = {"chat": -100, "media_group_id": "g"}
        await api.push(api.picture(PNG, "@lamina_test_bot compare", **album), api.picture(PNG, **album))
        await api.until_shown("seen", -100)
        assert [part["type"] for part in content(running, 0)] == ["text", "image_url", "image_url"]


async def test_tools_are_offered_only_where_a_setting_says_so_and_what_needs_a_yes_is_refused(
    where: str, tmp_path: Path
) -> None:
    script = [
        [{"text": "Let me see."}, {"call": "bash", "arguments": {"command": "touch x.txt"}}],
        [{"text": "I may not."}],
    ]
    work = Path(rules_in(tmp_path / "work", "Answer briefly."))
    async with bot_api() as api, bot(api, where, script, tools=True, mode="agent", workspace=str(work)) as running:
        await api.say("Write a file")
        await api.until_shown("I may not.")
        assert api.shown() == ["Let me see.\n\nI may not."]
        assert "bash" in {tool["function"]["name"] for tool in running.provider.contexts[0].tools}
        last = running.provider.contexts[1].messages[-1]
        assert "needs confirmation and there is no one to ask" in str(last["content"])
        assert [path.name for path in work.iterdir()] == [".lamina"]
    async with bot_api() as api, bot(api, f"{where}2", hello("x"), mode="agent", workspace=str(work)) as running:
        await api.say("Write a file")
        await api.until_shown("x")
        assert running.provider.contexts[0].tools == []


async def test_each_topic_and_person_has_a_session_of_its_own(where: str) -> None:
    group = -100
    async with bot_api() as api, bot(api, where, hello("answer")) as running:
        for topic, person in ((5, ANN), (6, ANN), (5, BOB)):
            before = len(api.messages)
            await api.say(f"@lamina_test_bot topic {topic}", chat=group, topic=topic, person=person)
            await api.until(lambda before=before: len(api.messages) == before + 1)
            assert api.sent()[-1].given["message_thread_id"] == str(topic)
        assert all(len(context.messages) == 2 for context in running.provider.contexts), "nothing of another session"
        assert len(await running.app.store.sessions.list(f"telegram:{ANN}")) == 2


async def test_a_token_that_telegram_does_not_know_is_said_clearly(where: str) -> None:
    async with bot_api() as api:
        for status in (401, 404):
            api.faults["getMe"].append(Fault(status, "Unauthorized"))
            with pytest.raises(SettingsError, match="does not know this bot") as caught:
                async with bot(api, where, hello("x")):
                    pass
            assert "LAMINA_TELEGRAM_TOKEN" in caught.value.hint
        api.faults["getMe"].append(Fault(0))
        with pytest.raises(ConnectError, match="cannot be reached"):
            async with bot(api, where, hello("x")):
                pass


async def test_who_ends_the_bot_finds_the_answer_kept_and_marked(where: str) -> None:
    script = [[{"text": "begin "}, {"delay": 60}, {"text": "end"}, {"done": "stop"}]]
    async with bot_api() as api:
        async with bot(api, where, script) as running:
            await api.say("go")
            await api.until_shown("begin")
            await api.say("and this waits")
            await asyncio.sleep(0)
        assert any("begin" in text and "Interrupted" in text for text in api.shown())
        assert [each["message"]["text"] for each in api.updates.values()] == ["and this waits"]
        async with bot(api, where, hello("later")) as running:
            await api.until_shown("later")
            said = [m["content"] for m in running.provider.contexts[0].messages if m["role"] == "user"]
            assert said == ["go", "and this waits"]
        assert sum("begin" in text for text in api.shown()) == 1, "what was told is not told again"


def test_the_local_api_refuses_what_telegram_refuses() -> None:
    from tests.telegram.botapi import read_html  # noqa: PLC0415 -- only here

    assert read_html("<b>x</b> &lt;") == ("x <", "")
    for wrong in ("<b>x", "<b><i>x</b></i>", "<script>x</script>", "<pre><b>x</b></pre>", "x</b>"):
        assert read_html(wrong)[1], wrong
    assert BotApi().shown() == []


async def test_R14_an_answer_is_known_as_delivered_however_many_followed_it(where: str) -> None:
    """A later answer of more messages than a session lists drives the first one from the list."""
    long = "\n\n".join(f"{number} " + "long " * 780 for number in range(MAX_ANSWERS + 1))
    async with bot_api() as api:
        first = api.update("Tell me")
        async with bot(api, where, hello("Once.", long), pace=0.001):
            await api.push(first)
            await api.until_shown("Once.")
            await api.say("And more")
            await api.until(lambda: any(text.startswith(f"{MAX_ANSWERS} long") for text in api.shown()))
        async with bot(api, where, hello("Later.")) as it:
            await api.push(first)
            await api.say("And now?")
            await api.until_shown("Later.")
            session = (await it.app.store.sessions.list(f"telegram:{ANN}"))[0]
            assert len(session.runtime[ANSWERS]) == MAX_ANSWERS, "and what is kept has a bound"
        assert api.shown().count("Once.") == 1
