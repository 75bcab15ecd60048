"""Multipart forms as they come: read by the parser that the engine has, written anew.

What goes on is made here: a boundary of our own, and of each part its name, its file's name and its type. So there is one
reading of a form, whatever was odd in the client's. A file's bytes pass unchanged and are never held.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, MultipartState, parse_options_header

from serving.core.errors import InvalidRequest

_BOUNDARY = re.compile(rb"[\x20-\x7e]{0,69}[\x21-\x7e]")
NAME = r"[A-Za-z0-9_.\[\]-]{1,64}"
"""Pattern of a field's name."""
_NAME = re.compile(NAME.encode())
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
MOST_PADDING_BYTES = 256 * 1024
_IDENTITY = frozenset((b"binary", b"8bit", b"7bit"))


class Form:
    """Takes a form's bytes and gives those that the engine gets.

    `on_text` is told each text field when it is whole, and says whether it goes on; `on_file` is told of each file before its
    first byte. Both may refuse. Holds one text field at most.
    """

    def __init__(
        self,
        content_type: bytes,
        *,
        most_fields: int,
        most_field_bytes: int,
        on_text: Callable[[str, str], bool],
        on_file: Callable[[str], None],
    ) -> None:
        """Raises: InvalidRequest when the header names no boundary."""
        self._most_fields = most_fields
        self._most_field_bytes = most_field_bytes
        self._on_text = on_text
        self._on_file = on_file
        self._boundary = secrets.token_hex(16).encode()
        self._out: list[bytes] = []
        self._fields = 0
        self._headers: dict[bytes, bytes] = {}
        self._header_name = self._header_value = b""
        self._name = b""
        self._text: list[bytes] | None = None
        self._text_bytes = 0
        self._padding_bytes = 0
        """Blanks behind a boundary, which the parser looks at one by one."""
        self.is_whole = False
        """The last boundary was there."""
        self._parser = MultipartParser(
            _boundary_of(content_type),
            {
                "on_part_begin": self._begin_part,
                "on_header_field": self._take_header_name,
                "on_header_value": self._take_header_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._begin_data,
                "on_part_data": self._take_data,
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
        )

    @property
    def content_type(self) -> bytes:
        """Of what goes on."""
        return b"multipart/form-data; boundary=" + self._boundary

    def feed(self, data: bytes) -> bytes:
        """Take bytes as they came; what of them goes on now. Raises: InvalidRequest."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _malformed(f"{error}.") from None
        if self._parser.state == MultipartState.BOUNDARY_PADDING:
            self._padding_bytes += len(data) - len(data.rstrip(b" \t"))
            if self._padding_bytes > MOST_PADDING_BYTES:
                raise _malformed("Blanks without end stand behind a boundary.")
        out, self._out = self._out, []
        return b"".join(out)

    def finish(self, fields: dict[str, str]) -> bytes:
        """The end of what goes on, after some more text fields. Raises: InvalidRequest when the form is cut off."""
        if not self.is_whole:
            raise _malformed("It ends before its last boundary.")
        parts = [self._text_part(name.encode(), value.encode()) for name, value in fields.items()]
        return b"%b--%b--\r\n" % (b"".join(parts), self._boundary)

    def _begin_part(self) -> None:
        self._fields += 1
        if self._fields > self._most_fields:
            raise InvalidRequest(f"The form has more than {self._most_fields} fields.", code="invalid_form")
        self._headers = {}

    def _take_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _take_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        name, value = self._header_name.lower(), self._header_value
        self._header_name = self._header_value = b""
        if name in self._headers:
            raise _malformed("A field has a header twice.")
        if not _VALUE.fullmatch(value):
            raise _malformed("A field has a header with control characters.")
        self._headers[name] = value

    def _begin_data(self) -> None:
        kind, options = parse_options_header(self._headers.get(b"content-disposition"))
        self._name = name = options.get(b"name", b"")
        if kind != b"form-data" or not _NAME.fullmatch(name):
            raise _malformed("Each field needs a header Content-Disposition: form-data with a plain name.")
        if self._headers.get(b"content-transfer-encoding", b"binary").strip().lower() not in _IDENTITY:
            raise _malformed(f"The field '{name.decode()}' has a Content-Transfer-Encoding; send its bytes as they are.")
        filename = options.get(b"filename")
        if filename is None:
            self._text, self._text_bytes = [], 0
            return
        self._text = None
        self._on_file(name.decode())
        self._out.append(
            b'--%b\r\nContent-Disposition: form-data; name="%b"; filename="%b"' % (self._boundary, name, _quoted(filename))
        )
        if b"content-type" in self._headers:
            self._out.append(b"\r\nContent-Type: " + self._headers[b"content-type"])
        self._out.append(b"\r\n\r\n")

    def _take_data(self, data: bytes, start: int, end: int) -> None:
        if self._text is None:
            self._out.append(data[start:end])
            return
        self._text_bytes += end - start
        if self._text_bytes > self._most_field_bytes:
            name = self._name.decode()
            raise InvalidRequest(f"The field '{name}' is larger than {self._most_field_bytes} bytes.", param=name)
        self._text.append(data[start:end])

    def _end_part(self) -> None:
        if self._text is None:
            self._out.append(b"\r\n")
            return
        name, text = self._name.decode(), b"".join(self._text)
        try:
            value = text.decode()
        except UnicodeDecodeError:
            raise InvalidRequest(f"The field '{name}' must be UTF-8 text.", param=name) from None
        if self._on_text(name, value):
            self._out.append(self._text_part(self._name, text))

    def _end(self) -> None:
        self.is_whole = True

    def _text_part(self, name: bytes, value: bytes) -> bytes:
        return b'--%b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (self._boundary, name, value)


def _boundary_of(content_type: bytes) -> bytes:
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if not _BOUNDARY.fullmatch(boundary):
        raise InvalidRequest(
            "The header Content-Type must name the form's boundary, of 1 to 70 printable characters.", code="invalid_form"
        )
    return boundary


def _quoted(filename: bytes) -> bytes:
    return filename.replace(b"\\", b"\\\\").replace(b'"', b'\\"')


def _malformed(words: str) -> InvalidRequest:
    return InvalidRequest(f"The form is malformed. {words}", code="invalid_form")
