"""What a form asks for, and what of it an engine may see: for sound what `body` is for JSON."""

from __future__ import annotations

import re
from collections.abc import Callable

from serving.core.context import RequestContext, Upload
from serving.core.errors import InvalidRequest
from serving.engines.body import GATEWAY_ONLY, GATEWAY_ONLY_PREFIX
from serving.engines.form import Form
from serving.settings import ParameterLimits

YES = frozenset(("1", "on", "t", "true", "y", "yes"))
NO = frozenset(("0", "off", "f", "false", "n", "no"))
"""As the engine reads them."""
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_DROPPED = GATEWAY_ONLY | {"cache_salt"}
SWITCHES = ("stream", "stream_include_usage", "stream_continuous_usage_stats")


async def begin_form(
    ctx: RequestContext, upload: Upload, limits: ParameterLimits, buffer_bytes: int, served: Callable[[str], str]
) -> str:
    """Read a form up to what routing needs, and return the model that is asked for. `served`: a model's name for engines.

    The whole of it if it is small, which then is like any other body. Else, as soon as the model is known, what is here goes into
    `ctx.body`, and `ctx.rest` brings the rest while the engine takes it. Raises: RequestError.
    """
    body = FormBody(ctx, upload, limits, served)
    held: list[bytes] = []
    held_bytes, whole = 0, False
    while not whole and (held_bytes <= buffer_bytes or not body.model):
        data, whole = await body.piece()
        held.append(data)
        held_bytes += len(data)
    ctx.body = b"".join(held)
    if not whole:
        ctx.rest, body.begun = body, False
    return body.model


class FormBody:
    """One request's form: reads it on demand and takes note in `ctx` of what it says."""

    def __init__(self, ctx: RequestContext, upload: Upload, limits: ParameterLimits, served: Callable[[str], str]) -> None:
        self._served = served
        self.model = ""
        """Empty until it was read; it may stand behind the file."""
        self.begun = False
        self._ctx = ctx
        self._upload = upload
        self._bounds = limits.bounds
        self._seen: set[str] = set()
        self._dropped: set[str] = set()
        self._switches: dict[str, bool] = {}
        self._form = Form(
            upload.content_type,
            most_fields=limits.form_fields,
            most_field_bytes=limits.form_field_bytes,
            on_text=self._on_text,
            on_file=self._on_file,
        )
        ctx.content_type = self._form.content_type

    async def piece(self) -> tuple[bytes, bool]:
        """The next bytes for the engine, and whether the form is whole with them. Raises: RequestError."""
        self.begun = True
        data, whole = await self._upload.piece()
        self._ctx.body_bytes += len(data)
        out = self._form.feed(data)
        return (out + self._finish() if whole else out), whole

    def _on_file(self, name: str) -> None:
        self._note(name)
        if name != "file":
            raise InvalidRequest(f"The field '{name}' must not be a file; only 'file' is one.", param=name)

    def _on_text(self, name: str, value: str) -> bool:
        self._note(name)
        if name in _DROPPED or name.startswith(GATEWAY_ONLY_PREFIX):
            self._dropped.add(name if name in _DROPPED else GATEWAY_ONLY_PREFIX)
            return False
        if name == "file":
            raise InvalidRequest("The field 'file' must be a file, with a filename.", param="file")
        if name == "model":
            self.model = value
            # An alias is left out here; the name that engines know follows at the end.
            return self._served(value) == value
        if name in SWITCHES:
            self._switches[name] = _switch(name, value)
            # Our own may follow, at the end, where it is known whether this is a stream.
            return name != "stream_include_usage"
        if name in self._bounds:
            _check_integer(name, value, *self._bounds[name])
        return True

    def _note(self, name: str) -> None:
        if name in self._seen and not name.endswith("[]"):
            raise InvalidRequest(f"The field '{name}' is given twice.", param=name)
        self._seen.add(name)

    def _finish(self) -> bytes:
        ctx, switches = self._ctx, self._switches
        more: dict[str, str] = {}
        ctx.dropped_fields = tuple(sorted(self._dropped))
        ctx.stream = switches.get("stream", False)
        include_usage = switches.get("stream_include_usage")
        if ctx.stream and not include_usage:
            ctx.hides_usage = not switches.get("stream_continuous_usage_stats")
            include_usage = True
        if include_usage is not None:
            more["stream_include_usage"] = "true" if include_usage else "false"
        if (served := self._served(self.model)) != self.model:
            more["model"] = served
        end = self._form.finish(more)
        if not self.model:
            raise InvalidRequest("The field 'model' is missing: name one of GET /v1/models.", param="model")
        if "file" not in self._seen:
            raise InvalidRequest("The field 'file' is missing: it must be a sound file.", param="file")
        return end


def _switch(name: str, value: str) -> bool:
    word = value.lower()
    if word not in YES and word not in NO:
        raise InvalidRequest(f"The field '{name}' must be true or false.", param=name)
    return word in YES


def _check_integer(name: str, value: str, least: int, most: int | None) -> None:
    if not _INTEGER.fullmatch(value):
        raise InvalidRequest(f"The field '{name}' must be an integer.", param=name)
    if int(value) < least or (most is not None and int(value) > most):
        right = f"at least {least}" if most is None else f"from {least} to {most}" if most >= least else "left out"
        raise InvalidRequest(f"The field '{name}' must be {right} here.", param=name)
