"""LangChain's `create_agent`: a middleware that lays the layers and cuts what is sent, and leaves the state alone."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain_core.messages import AnyMessage, SystemMessage
from langchain_core.utils.function_calling import convert_to_openai_tool

from lamina.adapters.langchain import fit_messages, handed_back
from lamina.adapters.plan import Plan


class LaminaMiddleware(AgentMiddleware[AgentState[Any], Any, Any]):
    """`create_agent(model, tools, middleware=[LaminaMiddleware(plan)])`; put it last, to count what others add."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._plan = plan

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        return handler(self._fitted(request))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        return await handler(self._fitted(request))

    def _fitted(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        opening = [request.system_message] if request.system_message is not None else []
        tools = [convert_to_openai_tool(tool) for tool in request.tools]
        context, kept = fit_messages(self._plan, [*opening, *request.messages], tools)
        system = SystemMessage(context.system) if context.system else None
        return request.override(system_message=system, messages=cast("list[AnyMessage]", handed_back(kept)))
