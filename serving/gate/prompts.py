"""A customer's own prompts: a JSONL file, each line a prompt with one check of its answer.

{"prompt": "2 + 2 =", "exact": "4", "max_tokens": 4}
{"messages": [{"role": "user", "content": "Say yes."}], "regex": "(?i)yes"}
{"name": "order", "messages": […], "json_schema": {"type": "object", "required": ["id"]}, "max_tokens": 200}
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pydantic import Field, JsonValue, ValidationError, model_validator

from serving.catalog.records import Count, Record, Text
from serving.core.errors import ConfigurationError
from serving.gate.address import Address
from serving.gate.collected import Answer

_CHECKS = ("exact", "regex", "json_schema")


class CustomerPrompt(Record):
    """One line."""

    name: Text | None = None
    prompt: Text | None = None
    """For completions."""
    messages: tuple[dict[str, JsonValue], ...] | None = None
    """For chat completions."""
    max_tokens: Count = 128
    exact: str | None = None
    """The whole answer without white space at its ends."""
    regex: Text | None = None
    """Found anywhere in the answer."""
    json_schema: dict[str, JsonValue] | None = None
    """Of the answer, which must be nothing but JSON."""
    extra: dict[str, JsonValue] = Field(default_factory=dict)
    """More fields of the request, as `tools` or `response_format`."""

    @model_validator(mode="after")
    def _whole(self) -> CustomerPrompt:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        given = [name for name in _CHECKS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of {', '.join(_CHECKS)}, not {' and '.join(given) or 'none'}")
        if self.regex is not None:
            try:
                re.compile(self.regex)
            except re.error as error:
                raise ValueError(f"regex: {error}") from None
        if self.json_schema is not None:
            from jsonschema import SchemaError
            from jsonschema.validators import validator_for

            try:
                validator_for(self.json_schema).check_schema(self.json_schema)
            except SchemaError as error:
                raise ValueError(f"json_schema: {error.message}") from None
        return self

    @property
    def shown(self) -> str:
        return self.prompt if self.prompt is not None else json.dumps(self.messages, ensure_ascii=False)

    def wrong(self, answer: str) -> str:
        """What is wrong with an answer; empty for nothing."""
        if self.exact is not None:
            return "" if answer.strip() == self.exact.strip() else f"is not {self.exact!r}"
        if self.regex is not None:
            return "" if re.search(self.regex, answer) else f"has nothing like {self.regex}"
        try:
            data = json.loads(answer)
        except (ValueError, RecursionError):
            return "is no JSON"
        from jsonschema.validators import validator_for

        schema: Any = self.json_schema
        problem = next(iter(validator_for(schema)(schema).iter_errors(data)), None)
        return "" if problem is None else f"breaks the schema: {problem.json_path}: {problem.message}"[:300]


def read_prompts(path: Path) -> tuple[CustomerPrompt, ...]:
    """Raises: ConfigurationError naming the line and the field."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}") from None
    prompts = tuple(_prompt(f"{path}: line {number}", line) for number, line in enumerate(lines, 1) if line.strip())
    if not prompts:
        raise ConfigurationError(f'{path}: holds no prompt; a line is like {{"prompt": "2 + 2 =", "exact": "4"}}')
    return prompts


def _prompt(where: str, line: str) -> CustomerPrompt:
    try:
        return CustomerPrompt.model_validate_json(line)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        field = ".".join(map(str, problem["loc"]))
        message = str(problem["msg"]).removeprefix("Value error, ")
        raise ConfigurationError(f"{where}: {field}{': ' if field else ''}{message}") from None


def answer_prompt(address: Address, place: int, prompt: CustomerPrompt, *, keeps_prompt: bool) -> Answer:
    """Greedy. Raises: EngineTrouble."""
    body: dict[str, Any] = {**prompt.extra, "max_tokens": prompt.max_tokens, "temperature": 0}
    if prompt.prompt is not None:
        text = str(address.ask("/v1/completions", {**body, "prompt": prompt.prompt})["choices"][0].get("text") or "")
    else:
        data = address.ask("/v1/chat/completions", {**body, "messages": list(prompt.messages or ())})
        text = str((data["choices"][0].get("message") or {}).get("content") or "")
    wrong = prompt.wrong(text)
    is_form = prompt.json_schema is not None
    return Answer(
        family="customer",
        name=prompt.name or f"line {place}",
        prompt=prompt.shown if keeps_prompt else None,
        text=text if keeps_prompt else None,
        passed=not wrong,
        well_formed=not wrong if is_form else None,
        said=wrong if keeps_prompt else "failed its check" if wrong else "",
    )
