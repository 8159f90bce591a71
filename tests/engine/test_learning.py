"""C8: what is said is learnt in the background, once, and never from what memory itself put into the prompt."""

from lamina import App
from tests.engine.chats import chat, told


async def facts(app: App) -> list[str]:
    await app.worker.run_until_empty()
    return sorted(memory.text for memory in await app.memory("ann").list())


async def test_C8_a_turn_leads_to_its_memory_and_the_next_one_sees_it(where: str) -> None:
    async with chat(where, [[{"text": "Nice."}]], memory=True, embedder="none") as (app, session, provider):
        await told(app, session, "My cat is called Tom.")
        assert await facts(app) == ["My cat is called Tom."]
        other = await app.new_session("ann")
        await told(app, other, "What is my cat called?")
        assert "My cat is called Tom." in provider.contexts[-1].system


async def test_what_memory_told_the_model_is_not_learnt_again_by_the_engine_or_by_record(where: str) -> None:
    answer = "Yes."
    async with chat(where, [[{"text": answer}]], memory=True, embedder="none") as (app, session, _):
        for way in ("engine", "record"):
            memory = await app.memory("ann").add('I live in "Oslo".\nIn the north.')
            words = 'I live in "Oslo".\nIn the north. Where is a park?'
            if way == "engine":
                await told(app, session, words)
            else:
                context = await app.context("ann", session.session_id, words)
                assert "Oslo" in context.system
                await app.record("ann", session.session_id, words, answer, context=context)
            await app.memory("ann").forget(memory.memory_id)
            assert await facts(app) == [], way


async def test_a_record_that_was_cut_off_is_stored_when_it_comes_again_with_its_key(where: str) -> None:
    async with chat(where, [[{"text": "-"}]]) as (app, session, _):
        turn = await app.store.turns.begin("ann", session.session_id, {"role": "user", "content": "hi"}, key="k")
        await app.store.turns.recover(everything=True)
        assert (await app.store.turns.get("ann", turn.turn_id)).state == "interrupted"
        for _ in range(2):
            record = await app.record("ann", session.session_id, "hi", "the answer", key="k")
            assert (record.turn_id, record.state) == (turn.turn_id, "complete")
        rows = await app.store.messages.list("ann", session.session_id)
        assert [(row.text, row.state) for row in rows] == [("hi", "complete"), ("the answer", "complete")]
