"""Asks one engine over HTTP: one request, one answer, and what it cost. Standard library, any number of threads.

EngineTrouble
├── Refused     4xx: the engine does not do what was asked; nothing is known of its answers
├── Silent      no answer at all, twice: it went away, and nobody can say by whose fault
└── Garbage     5xx, no JSON, or numbers that are none: the engine is wrong
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from serving.core.errors import ConfigurationError, ServingError

TIMEOUT_SECONDS = 600.0
BUSY = (429, 503)
BUSY_TRIES = 5
BUSY_SECONDS = 2.0
SAID_BYTES = 300


class EngineTrouble(ServingError):
    """An engine did not answer a question of the gate."""


class Refused(EngineTrouble):
    """4xx."""


class Silent(EngineTrouble):
    """No answer."""


class Garbage(EngineTrouble):
    """An answer that no sound engine gives."""


@dataclass
class Spent:
    """What the asking has cost so far; changed under a lock."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, usage: Any) -> None:
        counts = usage if isinstance(usage, dict) else {}
        with self.lock:
            self.requests += 1
            self.prompt_tokens += int(counts.get("prompt_tokens") or 0)
            self.output_tokens += int(counts.get("completion_tokens") or 0)


class Address:
    """An engine, or a gateway in front of exactly one."""

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        secret: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Raises: ConfigurationError for what is no address."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            raise ConfigurationError(f"address: must be like http://127.0.0.1:8001, not {url!r}")
        path = parts.path.rstrip("/")
        self.url = url.rstrip("/").removesuffix("/v1")
        self.model = model or ""
        self.max_model_len: int | None = None
        self.version: str | None = None
        self.spent = Spent()
        self._parts = parts
        self._prefix = path.removesuffix("/v1")
        self._secret = secret
        self._timeout_seconds = timeout_seconds
        self._sleep = sleep

    def look(self) -> None:
        """Find the model and the version. Raises: ConfigurationError when nothing like an engine answers there."""
        try:
            cards = self.get("/v1/models")["data"]
            names = [str(card["id"]) for card in cards]
        except EngineTrouble as trouble:
            raise ConfigurationError(f"{self.url}: {trouble}") from None
        except (KeyError, TypeError):
            raise ConfigurationError(f"{self.url}: /v1/models is no list of models; is it a vLLM engine?") from None
        if not self.model:
            roots = [name for name, card in zip(names, cards, strict=True) if not card.get("parent")]
            if len(roots) != 1:
                raise ConfigurationError(f"--model: {self.url} serves {', '.join(roots) or 'none'}; name one of them")
            self.model = roots[0]
        elif self.model not in names:
            raise ConfigurationError(f"--model: {self.model!r} is not served at {self.url}; there are: {', '.join(names)}")
        length = cards[names.index(self.model)].get("max_model_len")
        self.max_model_len = length if isinstance(length, int) else None
        try:
            self.version = str(self.get("/version")["version"])
        except (EngineTrouble, KeyError, TypeError):
            self.version = None

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """A POST's answer. Raises: EngineTrouble."""
        data = self._json(path, self._exchange("POST", path, json.dumps({"model": self.model, **body}).encode()))
        if not isinstance(data, dict):
            raise Garbage(f"{path}: answered with {type(data).__name__}, not an object")
        self.spent.add(data.get("usage"))
        return data

    def get(self, path: str) -> Any:
        """A GET's JSON. Raises: EngineTrouble."""
        return self._json(path, self._exchange("GET", path, None))

    def text(self, path: str) -> str:
        """A GET's text. Raises: EngineTrouble."""
        return self._exchange("GET", path, None).decode(errors="replace")

    def _json(self, path: str, content: bytes) -> Any:
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise Garbage(f"{path}: answered with what is no JSON: {content[:80]!r}") from None

    def _exchange(self, method: str, path: str, body: bytes | None) -> bytes:
        """The body of an answer with status 200. An engine that is busy, and a connection that breaks, get another try."""
        silent = 0
        busy = 0
        while True:
            try:
                status, content = self._once(method, path, body)
            except (OSError, http.client.HTTPException) as error:
                silent += 1
                if silent == 2:
                    raise Silent(f"{path}: no answer, twice: {error or type(error).__name__}") from None
                self._sleep(BUSY_SECONDS)
                continue
            if status == http.client.OK:
                return content
            if status in BUSY and busy < BUSY_TRIES:
                busy += 1
                self._sleep(BUSY_SECONDS)
                continue
            said = f"{path}: answered {status}: {_message(content)}"
            if status in BUSY:
                raise Silent(said)
            raise (Garbage if status >= http.client.INTERNAL_SERVER_ERROR else Refused)(said)

    def _once(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        host, port = str(self._parts.hostname), self._parts.port
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(host, port, timeout=self._timeout_seconds)
        headers = {"Content-Type": "application/json"}
        if self._secret:
            headers["Authorization"] = f"Bearer {self._secret}"
        try:
            connection.request(method, self._prefix + path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def _message(content: bytes) -> str:
    """What an error says of itself, or how its body begins."""
    try:
        return str(json.loads(content)["error"]["message"])[:SAID_BYTES]
    except (ValueError, KeyError, TypeError, RecursionError):
        return content[:SAID_BYTES].decode(errors="replace")
