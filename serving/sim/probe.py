"""A small client that asks one engine and takes the time of each event. Standard library, one thread a request."""

from __future__ import annotations

import http.client
import json
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from serving.core.clock import monotonic
from serving.core.errors import ConfigurationError

_TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True)
class EngineFacts:
    """What a running engine tells of itself."""

    url: str
    model: str
    max_model_len: int
    block_tokens: int
    kv_capacity_tokens: int
    max_num_batched_tokens: int = 2048
    secret: str | None = None


@dataclass
class Stream:
    """One answer; moments are seconds after the request was sent."""

    token_seconds: list[float] = field(default_factory=list)
    total_seconds: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


def look(url: str, *, max_num_batched_tokens: int, secret: str | None = None) -> EngineFacts:
    """Ask an engine for its model, its context and its cache.

    Raises:
        ConfigurationError: it does not answer, or is no vLLM
    """
    models = json.loads(_get(url, "/v1/models", secret))
    try:
        card = models["data"][0]
        model, max_model_len = str(card["id"]), int(card["max_model_len"])
    except (KeyError, IndexError, TypeError, ValueError):
        raise ConfigurationError(f"{url}: /v1/models tells no model with its max_model_len; is it a vLLM engine?") from None
    info = re.search(r"^vllm:cache_config_info\{(.*)\} ", _get(url, "/metrics", secret).decode(), re.MULTILINE)
    labels = dict(re.findall(r'(\w+)="([^"]*)"', info[1])) if info else {}
    try:
        block_tokens, capacity = int(labels["block_size"]), int(labels["kv_cache_size_tokens"])
    except (KeyError, ValueError):
        raise ConfigurationError(f"{url}: /metrics has no vllm:cache_config_info with the size of its cache") from None
    return EngineFacts(url, model, max_model_len, block_tokens, capacity, max_num_batched_tokens, secret)


def stream(engine: EngineFacts, prompt: str, *, answer_tokens: int) -> Stream:
    """Ask for a completion and read it to its end. Raises: ConfigurationError."""
    body: dict[str, Any] = {
        "model": engine.model,
        "prompt": prompt,
        "max_tokens": answer_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    connection = _connect(engine.url)
    found = Stream()
    began = monotonic()
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), _headers(engine.secret))
        answer = connection.getresponse()
        if answer.status != 200:
            raise ConfigurationError(f"{engine.url}: answered {answer.status}: {answer.read(500).decode(errors='replace')}")
        for line in answer:
            _read_event(line, found, monotonic() - began)
    except (OSError, http.client.HTTPException) as error:
        raise ConfigurationError(f"{engine.url}: {error or type(error).__name__}") from None
    finally:
        connection.close()
    found.total_seconds = monotonic() - began
    if not found.token_seconds:
        raise ConfigurationError(f"{engine.url}: a stream ended without a token")
    return found


def _read_event(line: bytes, found: Stream, seconds: float) -> None:
    if not line.startswith(b"data: {"):
        return
    event = json.loads(line[6:])
    if event.get("error"):
        raise ConfigurationError(f"the engine's stream says: {event['error']}")
    if event.get("choices"):
        found.token_seconds.append(seconds)
    if usage := event.get("usage"):
        found.prompt_tokens, found.completion_tokens = usage["prompt_tokens"], usage["completion_tokens"]
        found.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def _get(url: str, path: str, secret: str | None) -> bytes:
    connection = _connect(url)
    try:
        connection.request("GET", path, headers=_headers(secret))
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise ConfigurationError(f"{url}: {error or type(error).__name__}") from None
    finally:
        connection.close()
    if answer.status != 200:
        raise ConfigurationError(f"{url}{path}: answered {answer.status}")
    return body


def _connect(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        raise ConfigurationError(f"URL: must be like http://127.0.0.1:8001, not {url!r}")
    return http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=_TIMEOUT_SECONDS)


def _headers(secret: str | None) -> dict[str, str]:
    return {"Content-Type": "application/json", **({"Authorization": f"Bearer {secret}"} if secret else {})}
