"""The gateway's core: routes, credentials, errors, bodies."""

from pathlib import Path

from lamina.app.app import App
from lamina.gateway.http import Reply, Request, Route
from tests.gateway.serving import TOKEN, running


async def hello(app: App, request: Request) -> Reply:
    return Reply({"user": request.user, "body": request.body, "params": dict(request.params)})


ROUTES = (
    Route("GET", "/api/hello", hello, "say hello", "read"),
    Route("POST", "/api/hello", hello, "say hello", "write", {"type": "object"}),
    Route("GET", "/api/things/{thing_id}", hello, "a thing", "read"),
    Route("POST", "/v1/messages", hello, "a thing", "chat", {"type": "object"}, form="anthropic"),
)


async def test_a_gateway_answers_and_says_who_asks(tmp_path: Path) -> None:
    async with running(tmp_path / "s.db", routes=ROUTES) as site:
        assert (await site.get("/api/health", key="")).json == {"status": "ok"}
        assert (await site.get("/api/hello")).json["user"] == "ann"
        assert (await site.get("/api/things/12")).json["params"] == {"thing_id": "12"}
        bo = await site.key("bo", "read")
        assert (await site.get("/api/hello", key=bo)).json["user"] == "bo"
        assert (await site.post("/api/hello", {"a": [1, "é"]})).json["body"] == {"a": [1, "é"]}
        denied = await site.post("/api/hello", {}, key=bo)
        assert (denied.status, denied.json["error"]["type"]) == (403, "scope")
        assert (await site.get("/api/hello", key="")).status == 401
        assert (await site.get("/api/hello", key=TOKEN + "x")).headers["WWW-Authenticate"] == "Bearer"
        wrong = await site.ask("DELETE", "/api/hello")
        assert (wrong.status, wrong.headers["Allow"]) == (405, "GET, HEAD, POST")
        assert (await site.get("/nowhere")).status == 404
        assert (await site.post("/v1/messages", {}, key="")).json["type"] == "error"
