"""Transcription and translation as vLLM 0.32 answers them: a multipart form in, text or a stream out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.doubles.vllm_answers import Answer, Event, sse
from tests.doubles.vllm_errors import VllmError, dump, invalid

Body = dict[str, Any]

TRANSCRIPTIONS = "/v1/audio/transcriptions"
TRANSLATIONS = "/v1/audio/translations"
BYTES_OF_A_TOKEN = 1000
MOST_SOUND_TOKENS = 1500


@dataclass(frozen=True)
class Part:
    """One part of a form, its bytes as they came."""

    name: str
    filename: str | None
    content_type: str | None
    data: bytes


@dataclass(frozen=True)
class ReadForm:
    parts: tuple[Part, ...]
    boundary: bytes = field(default=b"")

    def texts(self, name: str) -> list[str]:
        return [part.data.decode() for part in self.parts if part.name == name and part.filename is None]

    def text(self, name: str) -> str | None:
        values = self.texts(name)
        return values[-1] if values else None

    @property
    def file(self) -> Part | None:
        return next((part for part in self.parts if part.filename is not None), None)


def read_form(content_type: str | None, body: bytes) -> ReadForm:
    """A form that must be exactly what RFC 7578 says, without a word before or after it. Raises: VllmError."""
    found = re.fullmatch(r"multipart/form-data; boundary=([!-~]+)", content_type or "")
    if found is None:
        raise VllmError(400, "There was an error parsing the body", type_="Bad Request")
    boundary = found[1].encode()
    first, *pieces, last = (b"\r\n" + body).split(b"\r\n--" + boundary)
    if first or last != b"--\r\n":
        raise VllmError(400, "There was an error parsing the body", type_="Bad Request")
    return ReadForm(tuple(_part(piece) for piece in pieces), boundary)


def _part(piece: bytes) -> Part:
    head, blank, data = piece.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    shape = re.fullmatch(r'Content-Disposition: form-data; name="([^"]+)"(?:; filename="((?:[^"\\]|\\.)*)")?', lines[1])
    if lines[0] or not blank or shape is None or len(lines) > 3:
        raise VllmError(400, "There was an error parsing the body", type_="Bad Request")
    content_type = lines[2].removeprefix("Content-Type: ") if len(lines) == 3 else None
    return Part(shape[1], shape[2], content_type, data)


def speech_body(form: ReadForm) -> Body:
    """What the form asks for, in the words of a completions body: its prompt has the tokens that the sound is worth."""
    if form.texts("file"):
        raise VllmError(422, "Expected 'file' to be a file-like object, not 'str'.", type_="Unprocessable Entity")
    if form.file is None:
        raise invalid("missing", "body.file", "Field required", f"<dict of {len(form.parts)} items>")
    switches = {name: form.text(name) for name in ("stream", "stream_include_usage", "stream_continuous_usage_stats")}
    on = {name: (value or "").lower() in ("true", "1", "on", "yes", "t", "y") for name, value in switches.items()}
    if not on["stream"] and (on["stream_include_usage"] or on["stream_continuous_usage_stats"]):
        name = next(name for name in switches if name != "stream" and on[name])
        raise VllmError(400, f"Stream options can only be defined when `stream=True`. (parameter={name})", param=name)
    limit = form.text("max_completion_tokens")
    if (kind := form.text("response_format") or "json") not in ("json", "text", "verbose_json", "diarized_json"):
        known = "`text`, `json`, `verbose_json` or `diarized_json`"
        raise VllmError(400, f"Currently only support response_format: {known}")
    if kind != "json" and kind != "text":
        raise VllmError(400, f"Currently do not support {kind} for tiny")
    size = len(form.file.data)
    if size < 44:
        raise VllmError(400, "Invalid or unsupported audio file.")
    options = {"include_usage": on["stream_include_usage"], "continuous_usage_stats": on["stream_continuous_usage_stats"]}
    return {
        "model": form.text("model") or None,
        "prompt": "s" * min(max(1, size // BYTES_OF_A_TOKEN), MOST_SOUND_TOKENS),
        "max_tokens": int(limit) if limit else None,
        "stream": on["stream"],
        "seconds": max(1, round((size - 44) / 32_000)),
        **({"stream_options": options} if on["stream"] else {}),
    }


class TranscriptionAnswer(Answer):
    kind = "transcription"
    tells_seconds = True
    whole_tells_tokens = False

    def whole(self) -> bytes:
        answer: Body = {"text": "".join(self.tokens)}
        if self.tells_seconds:
            answer["usage"] = {"type": "duration", "seconds": self.body["seconds"]}
        return dump(answer)

    def events(self) -> Iterator[Event]:
        for sent, text in enumerate(self.tokens, start=1):
            is_last = sent == len(self.tokens)
            choice: Body = {"delta": {"content": text}}
            if is_last:
                choice |= {"finish_reason": self.finish, "stop_reason": None}
            chunk = self._chunk_of([choice])
            if self._continuous_usage:
                chunk["usage"] = self._counts(sent)
            marks = (f"token:{sent}", *["first_token"][: sent == 1], *["last_token"][:is_last])
            yield Event(sse(chunk), marks, token_number=sent)
        if self._include_usage:
            closing = self._chunk_of([]) | {"usage": self._counts(self.usage.completion_tokens)}
            yield Event(sse(closing), ("usage",))
        yield Event(b"data: [DONE]\n\n", ("done_event",))

    def _chunk_of(self, choices: list[Mapping[str, Any]]) -> Body:
        number = self.base["id"].partition("-")[2]
        head = {"id": f"{'transcribe' if self.tells_seconds else 'translate'}-{number}", "object": f"{self.kind}.chunk"}
        return {**head, "created": self.base["created"], "model": self.base["model"], "choices": choices}


class TranslationAnswer(TranscriptionAnswer):
    kind = "translation"
    tells_seconds = False
