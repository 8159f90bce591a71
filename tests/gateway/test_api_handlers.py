"""The routes one by one: each answers with the status and the shape that it declares."""

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from lamina.app.lookup import SHARED
from lamina.gateway.gateway import ROUTES
from lamina.gateway.handlers import SCOPES, Route
from lamina.gateway.schemas import PARAMETER, compile_type, field_schemas, json_schema
from lamina.records import Template
from tests.gateway.apis import Got, api_on
from tests.gateway.worlds import say, world


def validate(value: Any, schema: Mapping[str, Any]) -> None:
    """By the reference implementation, as a client would that has only the document."""
    jsonschema.Draft202012Validator(schema).validate(value)


def check_answer(route: Route, got: Got) -> None:
    assert got.status == route.status, (route.method, route.path, got.status, got.raw[:300])
    if route.answer is not None and got.raw:
        schema, definitions = json_schema(route.answer)
        validate(got.json, {**schema, "$defs": definitions})


def name_of(route: Route) -> str:
    return f"{route.method} {route.path}"


API = [route for route in ROUTES if route.path.startswith("/api")]


@pytest.mark.parametrize("route", API, ids=name_of)
async def test_every_route_answers_its_example_with_the_status_and_shape_that_it_declares(
    route: Route, tmp_path: Path
) -> None:
    async with api_on(str(tmp_path / "store.db")) as api:
        ids = await world(api)
        if route.path.endswith("/compact"):
            for _ in range(6):
                await say(api, ids["session_id"], "More. " * 100)
        path = PARAMETER.sub(lambda found: ids[found[1]], route.path)
        got = await api(route.method, path, route.example)
        check_answer(route, got)
        assert got.status == 204 or got.headers["content-type"] == route.media


async def test_the_document_is_served_and_names_every_route(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "store.db")) as api:
        got = await api("GET", "/api/openapi.json")
        told = got.json
        assert {(path, method.upper()) for path, methods in told["paths"].items() for method in methods} == {
            (route.path, route.method) for route in api.routes
        }
        assert {(r.path, r.method) for r in API} <= {(r.path, r.method) for r in api.routes}
    for name in set(re.findall(r'"#/components/schemas/(\w+)"', got.raw.decode())):
        assert name in told["components"]["schemas"]
    for schema in told["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    names = [one["operationId"] for methods in told["paths"].values() for one in methods.values()]
    assert len(set(names)) == len(names)


def test_every_example_is_as_its_schema_says() -> None:
    for route in API:
        assert (route.body is None) == (route.example is None), name_of(route)
        if route.body is not None:
            compile_type(route.body)(route.example)
        for schema in field_schemas(route.query).values():
            for value in [*schema.get("examples", ()), *([schema["default"]] if "default" in schema else [])]:
                validate(value, schema)


async def test_sessions_are_listed_by_activity_page_by_page(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "store.db")) as api:
        made = [(await api("POST", "/api/sessions", {"title": f"n{n}"})).json["session_id"] for n in range(5)]
        await say(api, made[0])
        seen: list[str] = []
        path = "/api/sessions?limit=2"
        for _ in range(5):
            page = (await api("GET", path)).json
            seen += [each["session_id"] for each in page["sessions"]]
            if page["next"] is None:
                break
            path = f"/api/sessions?limit=2&before={page['next']}"
        assert seen == [made[0], *reversed(made[1:])]


async def test_a_session_is_changed_branched_ended_and_deleted(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "store.db")) as api:
        ids = await world(api)
        here = f"/api/sessions/{ids['session_id']}"
        changed = (await api("PATCH", here, {"title": "猫", "mode": "plan", "meta": {"a": [1]}})).json
        assert (changed["title"], changed["mode"], changed["meta"], changed["messages"]) == (
            "猫",
            "plan",
            {"a": [1]},
            2,
        )
        assert (await api("PATCH", here, {"skill": "nowhere"})).status == 400
        branch = await api("POST", f"{here}/branch", {"seq": 1, "title": "again"})
        assert (branch.json["parent_id"], branch.json["parent_seq"]) == (ids["session_id"], 1)
        assert (await api("POST", f"{here}/branch", {"seq": 9})).status == 400
        assert (await api("POST", f"{here}/end")).json["ended"] is not None
        assert (await api("DELETE", here)).status == 204
        assert (await api("GET", here)).status == 404
        left = (await api("GET", "/api/sessions")).json["sessions"]
        assert [each["session_id"] for each in left] == [branch.json["session_id"]]


async def test_messages_are_found_read_and_collected(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "store.db"), [[{"text": "Tom is a fine name."}]]) as api:
        ids = await world(api)
        here = f"/api/sessions/{ids['session_id']}/messages"
        rows = (await api("GET", here)).json["messages"]
        assert [(row["seq"], row["role"], row["text"]) for row in rows] == [
            (1, "user", "My cat is called Tom."), (2, "assistant", "Tom is a fine name."),
        ]  # fmt: skip
        assert [row["seq"] for row in (await api("GET", f"{here}?limit=1")).json["messages"]] == [2]
        assert [row["seq"] for row in (await api("GET", f"{here}?limit=1&newest=false")).json["messages"]] == [1]
        hits = (await api("GET", "/api/sessions/search?q=fine")).json["found"]
        assert [(hit["message"]["seq"], hit["session"]["title"]) for hit in hits] == [(2, "of ann")]
        mark = f"/api/messages/{ids['message_id']}/collected"
        assert (await api("PUT", mark, {"collected": True})).json["is_collected"] is True
        assert [row["title"] for row in (await api("GET", "/api/collected")).json["messages"]] == ["of ann"]
        assert (await api("PUT", mark, {"collected": False})).json["is_collected"] is False
        assert (await api("GET", "/api/collected")).json["messages"] == []


async def test_tool_calls_and_their_results_are_told(tmp_path: Path) -> None:
    script = [[{"call": "look", "id": "c1", "arguments": {"at": "x"}}], [{"text": "Seen."}]]
    async with api_on(str(tmp_path / "store.db"), script) as api:
        session = (await api("POST", "/api/sessions", {"mode": "agent"})).json
        turn = await say(api, session["session_id"])
        rows = (await api("GET", f"/api/sessions/{session['session_id']}/messages")).json["messages"]
        assert rows[1]["calls"][0]["name"] == "look"
        assert rows[2]["tool_call_id"] == rows[1]["calls"][0]["id"]
        told = (await api("GET", f"/api/turns/{turn['turn_id']}")).json
        assert (told["state"], told["requests"]) == ("complete", 2)
        first = (await api("GET", f"/api/turns/{turn['turn_id']}/receipt?request=1")).json
        assert (first["request"], first["requests"]) == (1, 2)
        assert (await api("GET", f"/api/turns/{turn['turn_id']}/receipt?request=3")).status == 400
        same = (await api("GET", f"/api/turns/{turn['turn_id']}/diff/{turn['turn_id']}")).json
        assert (same["before"]["request"], same["after"]["request"], same["extends"]) == (1, 2, True)


async def test_a_corrected_counter_is_no_change_of_a_layer(tmp_path: Path) -> None:
    script = [[{"text": "Hello."}, {"usage": [2_000, 0, 1]}]]
    async with api_on(str(tmp_path / "store.db"), script) as api:
        session = (await api("POST", "/api/sessions", {})).json["session_id"]
        first, second = [(await say(api, session))["turn_id"] for _ in range(2)]
        told = (await api("GET", f"/api/turns/{first}/diff/{second}")).json
        assert told["after"]["tokens"] > 2 * told["before"]["tokens"]
        (identity,) = [row for row in told["layers"] if row["layer"] == "identity"]
        assert identity["before"] == identity["after"] > 0


async def test_the_payload_is_what_was_sent_and_the_texts_tile_it(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "store.db")) as api:
        ids = await world(api)
        here = f"/api/turns/{ids['turn_id']}"
        payload = await api("GET", f"{here}/payload")
        told = (await api("GET", f"{here}/receipt")).json
        assert "".join(told["texts"]).encode() == payload.raw
        assert payload.headers["x-lamina-payload-sha256"] == told["receipt"]["hash"]
        assert json.loads(payload.raw)["messages"][-1]["content"].endswith("My cat is called Tom.")


async def test_what_would_be_sent_is_shown_and_nothing_changes(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "store.db")) as api:
        ids = await world(api)
        got = await api("POST", f"/api/sessions/{ids['session_id']}/context", {"content": "And the dog?"})
        assert got.json["turn"] is None
        assert any("And the dog?" in text for text in got.json["texts"])
        assert (await api("GET", f"/api/sessions/{ids['session_id']}")).json["messages"] == 2
        assert len(api.provider.contexts) == 1


async def test_memories_are_added_found_edited_and_forgotten(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "store.db")) as api:
        first = (await api("POST", "/api/memories", {"text": "I live in Oslo.", "pinned": True})).json
        assert (first["known"], first["memory"]["pinned"], first["memory"]["origin"]) == (False, True, None)
        assert (await api("POST", "/api/memories", {"text": "I live in Oslo."})).json["known"] is True
        here = f"/api/memories/{first['memory']['memory_id']}"
        edited = (await api("PATCH", here, {"text": "I live in 奥斯陆.", "kind": "event", "pinned": False})).json
        assert (edited["text"], edited["kind"], edited["pinned"]) == ("I live in 奥斯陆.", "event", False)
        hits = (await api("GET", "/api/memories/search?q=%E5%A5%A5%E6%96%AF%E9%99%86")).json["found"]
        assert [hit["memory"]["text"] for hit in hits] == ["I live in 奥斯陆."]
        assert hits[0]["why"] == {"code": "recall.words_only", "values": {}, "text": "words"}
        assert (await api("DELETE", here)).status == 204
        assert (await api("GET", "/api/memories")).json == {"memories": [], "next": None}
        gone = (await api("GET", "/api/memories?state=forgotten")).json["memories"]
        assert [each["text"] for each in gone] == [""]
        assert (await api("PATCH", here, {"text": "back"})).status == 404


async def test_a_memory_says_where_it_came_from(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "store.db"), memory=True, embedder="none") as api:
        session = (await api("POST", "/api/sessions", {"title": "Pets"})).json
        await say(api, session["session_id"], "My cat is named Tom.")
        await api.app.worker.run_until_empty()
        (memory,) = (await api("GET", "/api/memories")).json["memories"]
        origin = memory["origin"]
        assert (origin["session_id"], origin["title"], origin["excerpt"], origin["seq"]) == (
            session["session_id"], "Pets", "My cat is named Tom.", 1,
        )  # fmt: skip
        await api("DELETE", f"/api/sessions/{session['session_id']}")
        assert (await api("GET", f"/api/memories/{memory['memory_id']}")).json["origin"] is None


async def test_the_profile_is_set_and_taken_away_by_name(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "store.db")) as api:
        assert (await api("PATCH", "/api/profile", {"city": "Oslo", "age": 3})).json["profile"] == {
            "age": 3, "city": "Oslo",
        }  # fmt: skip
        assert (await api("PATCH", "/api/profile", {"city": None, "gone": None})).json["profile"] == {"age": 3}
        assert (await api("PATCH", "/api/profile", {"": "x"})).status == 400
        assert (await api("PATCH", "/api/profile", {"x" * 201: 1})).status == 400
        assert (await api("PATCH", "/api/profile", {"a\0": 1})).status == 400


async def test_templates_are_made_replaced_imported_and_deleted(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "store.db")) as api:
        await api.app.store.templates.put(SHARED, Template("", "House", "Be kind."))
        body = {"name": "Tables", "content": "As {{form}}.", "scenario": "excel", "is_skill": True}
        made = (await api("POST", "/api/templates", body)).json
        assert (await api("POST", "/api/templates", body)).status == 409
        here = f"/api/templates/{made['template_id']}"
        put = (await api("PUT", here, {**body, "enabled": False})).json
        assert (put["enabled"], put["template_id"], put["created"]) == (False, made["template_id"], made["created"])
        every = (await api("GET", "/api/templates")).json["templates"]
        assert [(each["name"], each["shared"]) for each in every] == [("Tables", False), ("House", True)]
        assert [each["name"] for each in (await api("GET", "/api/templates?skill=true")).json["templates"]] == [
            "Tables"
        ]
        house = f"/api/templates/{every[1]['template_id']}"
        assert (await api("GET", house)).json["shared"] is True
        assert (await api("PUT", house, body)).status == 404
        assert (await api("DELETE", house)).status == 404
        listed = [{"name": "A", "content": "a"}, {"name": "A", "content": "b"}]
        assert (await api("POST", "/api/templates/import", listed)).status == 400
        hidden = [{"name": "A", "content": "a\u202eb"}]
        assert (await api("POST", "/api/templates/import", hidden)).status == 400
        assert (await api("POST", "/api/templates", hidden[0])).status == 400
        assert len((await api("GET", "/api/templates")).json["templates"]) == 2
        kept = (await api("POST", "/api/templates/import", [listed[0], {**body, "content": "new"}])).json["templates"]
        assert [each["template_id"] == made["template_id"] for each in kept] == [False, True]
        assert (await api("DELETE", here)).status == 204
        assert (await api("GET", here)).status == 404


async def test_who_asks_is_who_the_credential_says(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "store.db"), model="m") as api:
        me = (await api("GET", "/api/me", user="王")).json
        assert (me["user"], me["model"], me["provider"], me["memory"]) == ("王", "m", "scripted", False)


async def test_asking_again_makes_a_branch_and_replaces_nothing(tmp_path: Path) -> None:
    async with api_on(
        str(tmp_path / "store.db"), [[{"text": "One."}], [{"text": "Two."}], [{"text": "Three."}]]
    ) as api:
        session = (await api("POST", "/api/sessions", {"title": "t", "meta": {"a": 1}})).json["session_id"]
        turns = [await say(api, session, words) for words in ("first", "second")]
        before = (await api("GET", f"/api/sessions/{session}/messages")).raw
        again = (await api("POST", f"/api/turns/{turns[1]['turn_id']}/retry")).json
        await api("GET", again["events"])
        made = (await api("GET", f"/api/sessions/{again['session_id']}")).json
        assert (made["parent_id"], made["parent_seq"], made["messages"]) == (session, 2, 4)
        fresh = (await api("POST", f"/api/turns/{turns[0]['turn_id']}/retry")).json
        await api("GET", fresh["events"])
        rows = (await api("GET", f"/api/sessions/{fresh['session_id']}/messages")).json["messages"]
        assert rows[0]["text"] == "first"
        assert len(rows) == 2
        assert (await api("GET", f"/api/sessions/{fresh['session_id']}")).json["meta"] == {"a": 1}
        assert (await api("GET", f"/api/sessions/{session}/messages")).raw == before


async def test_asking_again_takes_the_values_of_its_templates_again(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "store.db")) as api:
        await api("POST", "/api/templates", {"name": "where", "content": "The user is in {{city}}."})
        session = (await api("POST", "/api/sessions", {})).json["session_id"]
        body = {"content": "Is it warm?", "values": {"city": "Kyoto"}}
        turn = (await api("POST", f"/api/sessions/{session}/messages", body)).json
        await api("GET", turn["events"])
        path = f"/api/turns/{turn['turn_id']}/retry"
        again = (await api("POST", path, {"values": {"city": "Oslo"}})).json
        await api("GET", again["events"])
        assert (await api("GET", f"/api/turns/{again['turn_id']}")).json["state"] == "complete"
        assert "The user is in Oslo." in str(api.provider.contexts[-1].messages)
        without = (await api("POST", path)).json
        said = (await api("GET", without["events"])).raw.decode()
        assert "there is no value for it" in said
        assert "`values` in the request (`retry` accepts them too)" in said
        for wrong in ({"values": {"city": []}}, {"content": "x"}, []):
            assert (await api("POST", path, wrong)).status == 400


async def test_asking_again_twice_with_one_key_is_one_turn(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "store.db")) as api:
        session = (await api("POST", "/api/sessions", {})).json["session_id"]
        turns = [await say(api, session, words) for words in ("first", "second")]
        for turn in turns:
            path, key = f"/api/turns/{turn['turn_id']}/retry", {"Idempotency-Key": f"k-{turn['turn_id']}"}
            got = await asyncio.gather(*(api("POST", path, headers=key) for _ in range(5)))
            assert len({one.raw for one in got}) == 1
            await api("GET", got[0].json["events"])
        assert len((await api("GET", "/api/sessions")).json["sessions"]) == 3
        assert len(api.provider.contexts) == 4


async def test_a_session_with_a_running_turn_can_be_deleted(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "store.db"), [[{"text": "a"}, {"delay": 60}]]) as api:
        session = (await api("POST", "/api/sessions", {})).json["session_id"]
        turn = (await api("POST", f"/api/sessions/{session}/messages", {"content": "x"})).json["turn_id"]
        assert (await api("DELETE", f"/api/sessions/{session}")).status == 204
        assert api.app.engine.running(turn) is None or api.app.engine.running(turn).over  # pyright: ignore[reportOptionalMemberAccess]


async def test_a_turn_without_a_request_says_so(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "store.db"), [[{"text": "a"}, {"delay": 60}]]) as api:
        session = (await api("POST", "/api/sessions", {})).json["session_id"]
        turn = (await api("POST", f"/api/sessions/{session}/messages", {"content": "x"})).json["turn_id"]
        got = await api("GET", f"/api/turns/{turn}/receipt")
        assert (got.status, got.json["error"]["type"]) == (409, "running")
        cancelled = (await api("POST", f"/api/turns/{turn}/cancel")).json
        assert cancelled["state"] == "interrupted"
        assert (await api("POST", f"/api/turns/{turn}/cancel")).json == cancelled


async def test_every_route_needs_exactly_the_scope_that_it_names(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "store.db")) as api:
        ids = await world(api)
        only = {scope: (await api.app.store.keys.add("ann", scope, scopes=[scope]))[1] for scope in SCOPES}
        for route in api.routes:
            if route.scope is None or not route.path.startswith("/api") or route.method == "DELETE":
                continue
            path = PARAMETER.sub(lambda found: ids[found[1]], route.path)
            refused = {
                scope: (await api(route.method, path, route.example, headers={"Authorization": f"Bearer {key}"})).status
                == 403
                for scope, key in only.items()
            }
            assert refused == {scope: scope != route.scope for scope in SCOPES}, name_of(route)


async def test_what_is_said_counts_against_the_budget_of_its_key(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "store.db"), [[{"text": "Well."}, {"usage": [70, 0, 30]}]]) as api:
        key = (await api.app.store.keys.add("ann", "small", scopes=SCOPES, tokens=100))[1]
        small = {"Authorization": f"Bearer {key}"}
        session = (await api("POST", "/api/sessions", {}, headers=small)).json["session_id"]
        await say(api, session, headers=small)
        got = await api("POST", f"/api/sessions/{session}/messages", {"content": "more"}, headers=small)
        assert got.status == 429
        assert (await api("GET", f"/api/sessions/{session}/messages", headers=small)).status == 200


async def test_the_turns_of_a_session_are_told_page_by_page(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "store.db")) as api:
        session = (await api("POST", "/api/sessions", {})).json["session_id"]
        made = [(await say(api, session, f"n{n}"))["turn_id"] for n in range(5)]
        path = f"/api/sessions/{session}/turns?limit=2"
        page = (await api("GET", path)).json["turns"]
        assert [turn["turn_id"] for turn in page] == made[3:]
        page = (await api("GET", f"{path}&before={page[0]['user_seq']}")).json["turns"]
        assert [turn["turn_id"] for turn in page] == made[1:3]


async def test_the_meta_of_a_session_stays_small(tmp_path: Path) -> None:
    async with api_on(str(tmp_path / "store.db")) as api:
        session = (await api("POST", "/api/sessions", {"meta": {"a": "x" * 60_000}})).json["session_id"]
        for method, path in (("POST", "/api/sessions"), ("PATCH", f"/api/sessions/{session}")):
            refused = await api(method, path, {"meta": {"a": "猫" * 30_000}})
            assert (refused.status, "meta has more than 65536 bytes" in refused.raw.decode()) == (400, True)
