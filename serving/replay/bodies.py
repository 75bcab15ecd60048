"""From a planned request to the JSON that is sent."""

from __future__ import annotations

from typing import Any

import orjson

from serving.replay.engine import Forcing
from serving.replay.traffic import Part, Planned
from serving.replay.words import Wording


class BodyMaker:
    """Remembers the shared beginnings, whose words it would else make for each request again."""

    def __init__(self, wording: Wording, model: str, forcing: Forcing, extra: dict[str, Any]) -> None:
        self._wording = wording
        self._model = model
        self._forcing = forcing
        self._extra = extra
        self._shared: dict[str, list[str]] = {}

    def __call__(self, planned: Planned) -> bytes:
        text = self._wording.vocabulary.text
        messages = []
        for message in planned.messages:
            words: list[str] = []
            for part in message.parts:
                words += self._words(part)
            messages.append({"role": message.role, "content": text(words)})
        document = {
            "model": self._model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._forcing.fields(planned.output_tokens),
            **self._extra,
        }
        return orjson.dumps(document)

    def _words(self, part: Part) -> list[str]:
        if not part.is_shared:
            return self._wording.words(part.name, part.tokens)
        kept = self._shared.get(part.name)
        if kept is None or len(kept) < part.tokens:
            kept = self._shared[part.name] = self._wording.words(part.name, part.tokens)
        return kept[: part.tokens]
