"""An engine over HTTP whose model is a few lines of arithmetic: the same numbers each time, and faults as small as one likes.

It answers what the gate asks, in the shapes of vLLM: prompt_logprobs, logprobs of generated tokens, chat, /tokenize, /metrics.
A token is four bytes, of which many share a number. The next token's logits depend on the last two tokens; `fault` moves
them, as other weights would.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

VOCABULARY = 64
_TOKEN_BYTES = 4
_SHARPNESS = 2.2
TOP = 20


@dataclass
class Behaviour:
    """What may be wrong; changed while it runs."""

    fault: float = 0.0
    """Standard deviation of what is added to each logit."""
    fault_seed: int = 1
    decode_fault: float = 0.0
    """The same, while generating only."""
    template: str = "{role}: {content}\n"
    answers: Callable[[str], str] | None = None
    """Of a completion's prompt, in place of what the model would say."""
    status: dict[str, int] = field(default_factory=dict)
    """By path: the status of every answer, with an error."""
    not_a_number: bool = False
    refuses: tuple[str, ...] = ()
    """Fields of chat requests that are answered 400."""
    drafts: int | None = None
    accepted_per_draft: int = 2
    hang_up_after: int | None = None
    """Requests, after which connections are closed without an answer."""


@lru_cache(maxsize=200_000)
def _logits(before: tuple[int, ...], fault: float, seed: int) -> tuple[float, ...]:
    chance = random.Random(hashlib.sha256(bytes(before[-2:])).digest())
    values = [chance.gauss(0.0, _SHARPNESS) for _ in range(VOCABULARY)]
    if fault:
        wrong = random.Random(hashlib.sha256(bytes(before[-2:]) + seed.to_bytes(4, "little")).digest())
        values = [value + wrong.gauss(0.0, fault) for value in values]
    total = math.log(math.fsum(map(math.exp, values)))
    return tuple(value - total for value in values)


def pieces(text: str) -> list[str]:
    return [text[start : start + _TOKEN_BYTES] for start in range(0, len(text), _TOKEN_BYTES)]


def encode(text: str) -> list[int]:
    return [zlib.crc32(piece.encode()) % VOCABULARY for piece in pieces(text)]


def decode(token: int) -> str:
    return f"<{token}>"


class NumericEngine:
    """`with NumericEngine() as engine: … engine.url`; `engine.behaviour` says what is wrong with it."""

    def __init__(self, model: str = "numeric", max_model_len: int = 4096, **behaviour: Any) -> None:
        self.model = model
        self.max_model_len = max_model_len
        self.behaviour = Behaviour(**behaviour)
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._door())
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Status and JSON."""
        with self._lock:
            self.requests.append((path, body))
        status = self.behaviour.status.get(path)
        if status is not None:
            return status, {"error": {"message": f"told to answer {status}", "code": status}}
        if any(field in body for field in self.behaviour.refuses):
            return 400, {"error": {"message": "refused", "code": 400}}
        if path == "/v1/models":
            return 200, {"data": [{"id": self.model, "max_model_len": self.max_model_len, "parent": None}]}
        if path == "/version":
            return 200, {"version": "0.32.0"}
        if path == "/tokenize":
            text = self._render(body)
            ids = encode(text)
            return 200, {"tokens": ids, "count": len(ids), "token_strs": pieces(text)}
        if path == "/v1/completions":
            return 200, self._completions(body)
        if path == "/v1/chat/completions":
            return 200, self._chat(body)
        return 404, {"error": {"message": "no such route", "code": 404}}

    def _render(self, body: dict[str, Any]) -> str:
        text = "".join(self.behaviour.template.format(**message) for message in body["messages"])
        tools = json.dumps(body["tools"]) + "\n" if body.get("tools") else ""
        return tools + text + ("assistant: " if body.get("add_generation_prompt", True) else "")

    def _completions(self, body: dict[str, Any]) -> dict[str, Any]:
        given = body["prompt"]
        prompts = [given] if isinstance(given, str) or (given and isinstance(given[0], int)) else given
        ids = [encode(one) if isinstance(one, str) else list(one) for one in prompts]
        texts = [one if isinstance(one, str) else "" for one in prompts]
        choices = [self._choice(place, one, body, text) for place, (one, text) in enumerate(zip(ids, texts, strict=True))]
        return {"choices": choices, "usage": self._usage(ids, choices)}

    def _usage(self, ids: Sequence[Sequence[int]], choices: Sequence[dict[str, Any]]) -> dict[str, int]:
        return {"prompt_tokens": sum(map(len, ids)), "completion_tokens": sum(len(choice["token_ids"]) for choice in choices)}

    def _choice(self, place: int, ids: list[int], body: dict[str, Any], prompt: str) -> dict[str, Any]:
        text, generated, tops = self._generate(ids, body, prompt)
        by_ids = body.get("return_tokens_as_token_ids")
        choice: dict[str, Any] = {"index": place, "text": text, "token_ids": generated, "prompt_token_ids": ids}
        if body.get("prompt_logprobs") is not None:
            choice["prompt_logprobs"] = self._prompt_logprobs(ids)
        if body.get("logprobs") is not None:
            choice["logprobs"] = {
                "tokens": [f"token_id:{token}" if by_ids else decode(token) for token in generated],
                "token_logprobs": [row[token] for token, row in zip(generated, tops, strict=True)],
                "top_logprobs": [
                    {
                        f"token_id:{token}" if by_ids else decode(token): row[token]
                        for token in _best(row)[: body["logprobs"] or 1]
                    }
                    for row in tops
                ],
            }
        return choice

    def _generate(self, ids: list[int], body: dict[str, Any], prompt: str) -> tuple[str, list[int], list[tuple[float, ...]]]:
        if self.behaviour.answers is not None and body.get("prompt_logprobs") is None and body.get("logprobs") is None:
            text = self.behaviour.answers(prompt)
            return text, encode(text), []
        fault = math.hypot(self.behaviour.fault, self.behaviour.decode_fault)
        generated: list[int] = []
        tops = []
        for _ in range(body.get("max_tokens", 16)):
            row = _logits((*ids, *generated)[-2:], fault, self.behaviour.fault_seed)
            tops.append(row)
            generated.append(_best(row)[0])
        return "".join(map(decode, generated)), generated, tops

    def _prompt_logprobs(self, ids: Sequence[int]) -> list[dict[str, Any] | None]:
        entries: list[dict[str, Any] | None] = [None]
        for place in range(1, len(ids)):
            row = _logits(tuple(ids[max(0, place - 2) : place]), self.behaviour.fault, self.behaviour.fault_seed)
            ranked = _best(row)
            listed = dict.fromkeys([ids[place], *ranked[:TOP]])
            value = math.nan if self.behaviour.not_a_number else None
            entries.append(
                {
                    str(token): {
                        "logprob": row[token] if value is None else value,
                        "rank": ranked.index(token) + 1,
                        "decoded_token": decode(token),
                    }
                    for token in listed
                }
            )
        return entries

    def _chat(self, body: dict[str, Any]) -> dict[str, Any]:
        text = self._render(body)
        ids = encode(text)
        choice = self._choice(0, ids, body, text)
        message: dict[str, Any] = {"role": "assistant", "content": choice["text"], "tool_calls": []}
        answer = {"choices": [{"index": 0, "message": message}], "usage": self._usage([ids], [choice])}
        return answer | {"prompt_token_ids": ids, "prompt_logprobs": choice.get("prompt_logprobs")}

    def metrics(self) -> str:
        drafts = self.behaviour.drafts
        if drafts is None:
            return "vllm:num_requests_running 0\n"
        counted = drafts * len(self.requests)
        return "".join(
            f'vllm:spec_decode_{name}_total{{engine="0"}} {value}\n'
            for name, value in (
                ("num_drafts", counted),
                ("num_draft_tokens", counted * 3),
                ("num_accepted_tokens", counted * self.behaviour.accepted_per_draft),
            )
        )

    def _door(self) -> type[BaseHTTPRequestHandler]:
        engine = self

        class Door(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._send(200, engine.metrics().encode())
                else:
                    self._answer({})

            def do_POST(self) -> None:
                self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _answer(self, body: dict[str, Any]) -> None:
                limit = engine.behaviour.hang_up_after
                if limit is not None and len(engine.requests) >= limit:
                    self.close_connection = True
                    return
                status, data = engine.answer(self.path, body)
                self._send(status, json.dumps(data).encode())

            def _send(self, status: int, content: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing on the test's screen."""

        return Door


def _best(row: Sequence[float]) -> list[int]:
    return sorted(range(len(row)), key=lambda token: (-row[token], token))
