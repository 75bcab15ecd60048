"""The routes of vLLM 0.32 that generate text: what each makes of a body. All but completions are served through its chat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from serving.sim.answers import Answer
from serving.sim.errors import Body, EngineError, check, invalid
from serving.sim.other_answers import MessagesAnswer, ResponsesAnswer

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"


@dataclass(frozen=True)
class Surface:
    """One route."""

    is_chat: bool
    chat_of: Callable[[Body], Body] = lambda body: body
    """The request to the chat that it becomes."""
    answer: type[Answer] = Answer
    limit_name: str = "max_tokens"
    generates: bool = True

    def read(self, body: Body, models: list[str], max_model_len: int) -> Body:
        """Raises: EngineError, for what vLLM refuses before it looks at the prompt's length."""
        chat = self.chat_of(body)
        check(chat, is_chat=self.is_chat, models=models, max_model_len=max_model_len, limit_name=self.limit_name)
        return chat


def _responses_chat(body: Body) -> Body:
    given = body.get("input")
    if given is None:
        raise invalid("missing", "body.input", "Field required", f"<dict of {len(body) + 1} items>")
    if not isinstance(given, str | list):
        raise invalid("string_type", "body.input", "Input should be a valid string", str(given))
    if body.get("previous_response_id") is not None:
        message = f"Response with id '{body['previous_response_id']}' not found."
        raise EngineError(404, message, type_="invalid_request_error", param="response_id")
    turns = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if body.get("instructions"):
        turns = [{"role": "system", "content": body["instructions"]}, *turns]
    repeated = {name: body.get(name) for name in ("instructions", "metadata", "tools", "user")}
    return {**_shared(body), **repeated, "messages": turns, "max_tokens": body.get("max_output_tokens")}


def _messages_chat(body: Body) -> Body:
    if body.get("max_tokens") is None:
        raise invalid("missing", "body.max_tokens", "Field required", f"<dict of {len(body)} items>")
    if body.get("cache_salt") == "":
        raise invalid("string_too_short", "body.cache_salt", "String should have at least 1 character", "")
    return {**_counted_chat(body), "max_completion_tokens": body["max_tokens"]}


def _counted_chat(body: Body) -> Body:
    if body.get("model") is None:
        raise invalid("missing", "body.model", "Field required", f"<dict of {len(body)} items>")
    if "messages" not in body:
        raise invalid("missing", "body.messages", "Field required", f"<dict of {len(body)} items>")
    if not isinstance(body["messages"], list):
        raise invalid("list_type", "body.messages", "Input should be a valid list", str(body["messages"]))
    turns = body["messages"]
    if body.get("system"):
        turns = [{"role": "system", "content": body["system"]}, *turns]
    return {**_shared(body), "messages": turns}


def _shared(body: Body) -> Body:
    names = ("model", "stream", "cache_salt", "priority", "ignore_eos", "min_tokens", "seed", "temperature")
    return {name: body[name] for name in names if name in body}


SURFACES = {
    CHAT: Surface(is_chat=True),
    COMPLETIONS: Surface(is_chat=False),
    RESPONSES: Surface(is_chat=True, chat_of=_responses_chat, answer=ResponsesAnswer, limit_name="max_output_tokens"),
    MESSAGES: Surface(is_chat=True, chat_of=_messages_chat, answer=MessagesAnswer, limit_name="max_completion_tokens"),
    COUNT_TOKENS: Surface(is_chat=True, chat_of=_counted_chat, generates=False),
}
