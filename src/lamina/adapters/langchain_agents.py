"""LangChain's `create_agent`: a middleware that adds the layers, cuts what is sent, and does not change the state."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain_core.messages import AnyMessage, SystemMessage
from langchain_core.utils.function_calling import convert_to_openai_tool

from lamina.adapters.langchain import convert_pieces, restore_messages
from lamina.adapters.plan import Plan


class LaminaMiddleware(AgentMiddleware[AgentState[Any], Any, Any]):
    """`create_agent(model, tools, middleware=[LaminaMiddleware(plan)])`; put it last, to count what others add."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._plan = plan

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        return handler(self._fit_request(request))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        return await handler(self._fit_request(request))

    def _fit_request(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        opening = [request.system_message] if request.system_message is not None else []
        pieces = convert_pieces([*opening, *request.messages], self._plan.keep_thinking)
        tools = [convert_to_openai_tool(tool) for tool in request.tools]
        context, kept = self._plan.fit(pieces, source="langchain", tools=tools)
        system = SystemMessage(context.system) if context.system else None
        return request.override(system_message=system, messages=cast("list[AnyMessage]", restore_messages(kept)))
