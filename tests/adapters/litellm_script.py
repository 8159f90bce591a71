"""A chat through the real LiteLLM, run by test_litellm.py with the Python that has it: a job in, what was sent out.

Standard library, LiteLLM and lamina only, since that environment has no pytest. The server is ours, on this machine.
"""

import asyncio
import json
import sys
import threading
from contextlib import redirect_stdout
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import StringIO
from typing import Any

import litellm  # pyright: ignore[reportMissingImports] -- in an environment of its own: see requirements/litellm.in

from lamina.adapters import Plan
from lamina.adapters.litellm import with_context
from lamina.types import Context, Layer

CALL = {"id": "c1", "type": "function", "function": {"name": "lookup", "arguments": '{"name": "林默"}'}}
TOOL = {
    "type": "function",
    "function": {"name": "lookup", "description": "Where somebody lives.", "parameters": {"type": "object"}},
}
bodies: list[Any] = []
told: list[Context] = []


class Server(BaseHTTPRequestHandler):
    """Calls a tool, and answers when it has the result."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        bodies.append(body)
        done = body["messages"][-1]["role"] == "tool"
        message = {"role": "assistant", "content": "在写信。" if done else None}
        message |= {} if done else {"tool_calls": [CALL]}
        choice = {"index": 0, "message": message, "finish_reason": "stop" if done else "tool_calls"}
        answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        data = json.dumps(answer | {"usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- their name
        pass


def main() -> None:
    job = json.load(sys.stdin)
    server = HTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    plan = Plan([Layer(**layer) for layer in job["layers"]], job["budget"], tell=told.append, mark="5f0c9ab1")
    where: dict[str, Any] = {"model": "openai/m", "api_base": f"http://127.0.0.1:{server.server_port}", "api_key": "k"}
    complete = with_context(plan, litellm.completion)
    messages: list[Any] = job["messages"]
    messages.append(complete(messages=messages, tools=[TOOL], **where).choices[0].message)
    messages.append({"role": "tool", "tool_call_id": "c1", "content": "林默：江城，东湖路。"})
    answer = complete(messages=messages, tools=[TOOL], **where)
    later = asyncio.run(with_context(plan, litellm.acompletion)(messages=messages, tools=[TOOL], **where))
    server.shutdown()
    printed = StringIO()
    with redirect_stdout(printed):
        exec(job["example"], {})
    contexts = [{"messages": one.messages, "tools": one.tools, "problems": one.receipt.problems()} for one in told]
    answers = [one.choices[0].message.content for one in (answer, later)]
    print(
        json.dumps(
            {
                "bodies": bodies,
                "contexts": contexts,
                "answers": answers,
                "held": len(messages),
                "printed": printed.getvalue(),
            }
        )
    )


if __name__ == "__main__":
    main()
