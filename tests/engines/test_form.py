"""A form is written anew: one reading of it, the file's bytes as they were, and nothing else beside it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from python_multipart.multipart import parse_options_header

from serving.core.errors import InvalidRequest
from serving.engines.form import Form
from tests.doubles.forms import BOUNDARY, SOUND, file, form, text
from tests.doubles.vllm_audio import ReadForm, read_form

CONTENT_TYPE = b"multipart/form-data; boundary=" + BOUNDARY


class Read:
    """A form with what it told while it was read."""

    def __init__(self, content_type: bytes = CONTENT_TYPE, *, most_fields: int = 8, most_field_bytes: int = 100) -> None:
        self.texts: list[tuple[str, str]] = []
        self.files: list[str] = []
        self.form = Form(
            content_type,
            most_fields=most_fields,
            most_field_bytes=most_field_bytes,
            on_text=self._text,
            on_file=self.files.append,
        )

    def _text(self, name: str, value: str) -> bool:
        self.texts.append((name, value))
        return name != "secret"

    def pieces(self, *pieces: bytes) -> bytes:
        return b"".join([self.form.feed(piece) for piece in pieces]) + self.form.finish({})

    def sent(self, out: bytes) -> ReadForm:
        return read_form(self.form.content_type.decode(), out)


def refusal(body: bytes, content_type: bytes = CONTENT_TYPE) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        Read(content_type).pieces(body)
    return caught.value


WHOLE = form([text("model", "tiny"), text("secret", "x"), file(), text("language", "en")])


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 7, 64, 1000, len(WHOLE)])
def test_a_form_reads_the_same_however_it_comes(piece_bytes: int) -> None:
    read = Read()
    pieces = [WHOLE[at : at + piece_bytes] for at in range(0, len(WHOLE), piece_bytes)]
    sent = read.sent(read.pieces(*pieces))
    assert read.texts == [("model", "tiny"), ("secret", "x"), ("language", "en")]
    assert read.files == ["file"]
    assert [part.name for part in sent.parts] == ["model", "file", "language"]
    assert sent.file is not None
    assert (sent.file.data, sent.file.filename, sent.file.content_type) == (SOUND, "a.wav", "audio/wav")


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=3), st.integers(1, 90))
def test_any_bytes_of_a_file_pass_unchanged(parts: list[bytes], piece_bytes: int) -> None:
    data = (b"\r\n--" + BOUNDARY[:5]).join(parts)
    body = form([text("model", "tiny"), file(data)])
    read = Read()
    sent = read.sent(read.pieces(*[body[at : at + piece_bytes] for at in range(0, len(body), piece_bytes)]))
    assert sent.file is not None and sent.file.data == data


def test_the_boundary_is_ours_and_no_two_are_alike() -> None:
    types = {Read().form.content_type for _ in range(50)}
    assert len(types) == 50 and not any(BOUNDARY in kind for kind in types)


def test_what_comes_before_and_after_does_not_go_on() -> None:
    read = Read()
    out = read.pieces(b"\r\n" + form([text("model", "tiny")]) + b"GET /v1/models HTTP/1.1\r\n\r\n--" + BOUNDARY + b"--")
    assert b"GET" not in out
    assert [part.name for part in read.sent(out).parts] == ["model"]


def test_fields_are_added_at_the_end() -> None:
    read = Read()
    out = read.form.feed(form([text("model", "tiny")])) + read.form.finish({"stream_include_usage": "true"})
    assert read.sent(out).text("stream_include_usage") == "true"


def test_of_a_parts_head_only_what_the_engine_needs_goes_on() -> None:
    odd = b'X-Priority: 1\r\nContent-Length: 3\r\nCONTENT-disposition:form-data;name=file ; filename="a.wav"\r\n\r\nabc'
    read = Read()
    out = read.pieces(form([odd]))
    assert b"X-Priority" not in out and b"Content-Length" not in out
    (part,) = read.sent(out).parts
    assert (part.name, part.filename, part.data) == ("file", "a.wav", b"abc")


@pytest.mark.parametrize("filename", ["a.wav", "", "ünï.wav", 'a"b.wav', "a\\b", '"; name="model', "a;b.wav", '\\"'])
def test_a_files_name_is_read_as_it_was(filename: str) -> None:
    quoted = filename.replace("\\", "\\\\").replace('"', '\\"')
    read = Read()
    out = read.pieces(form([file(filename=quoted)]))
    line = next(line for line in out.split(b"\r\n") if line.startswith(b"Content-Disposition"))
    assert parse_options_header(line.partition(b": ")[2])[1] == {b"name": b"file", b"filename": filename.encode()}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no form",
        form([text("model", "tiny")], end=b""),
        form([text("model", "tiny")], end=b"\r\n"),
        form([file()], end=b"-"),
        form([file()])[:-300],
        form([b"\r\n\r\nno head"]),
        form([b'Content-Disposition: attachment; name="a"\r\n\r\nx']),
        form([b"Content-Disposition: form-data\r\n\r\nx"]),
        form([b'Content-Disposition: form-data; name=""\r\n\r\nx']),
        form([text("mo del", "tiny")]),
        form([text("model\n", "tiny")]),
        form([text("model\0", "tiny")]),
        form([text("x" * 65, "tiny")]),
        form([b"Content-Type: text/plain\r\n" + b'Content-Disposition: form-data; name="a"\r\n' * 2 + b"\r\nx"]),
        form([b'Content-Disposition: form-data; name="file"; filename="a\nb"\r\n\r\nx']),
        form([b'Content-Type: a\nX: b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nx']),
        form([b'Content-Transfer-Encoding: base64\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nx']),
        form([b'no header\r\nContent-Disposition: form-data; name="a"\r\n\r\nx']),
        form([b'X: %b\r\nContent-Disposition: form-data; name="a"\r\n\r\nx' % (b"y" * 5000)]),
        form([b"".join(b"X%d: y\r\n" % n for n in range(9)) + text("a", "x")]),
        form([text("model", "tiny")], boundary=b"another"),
        form([text("model", "tiny")]).replace(b"\r\n", b"\n"),
    ],
)
def test_what_is_no_form_is_refused(body: bytes) -> None:
    error = refusal(body)
    assert (error.status, error.error_code) == (400, "invalid_form")
    assert error.message.startswith("The form is malformed. ")


def test_blanks_behind_a_boundary_have_an_end() -> None:
    """Each costs a step of the parser: a body of them would hold up all other requests."""
    read = Read()
    read.form.feed(form([text("model", "tiny")], end=b" \t"))
    with pytest.raises(InvalidRequest, match="Blanks without end"):
        for _ in range(5):
            read.form.feed(b" " * 64 * 1024)
    read = Read()
    read.pieces(form([text("a", "x")], end=b" " * 100), b"\r\n" + text("b", "y"), b"\r\n--" + BOUNDARY + b"--")
    assert read.texts == [("a", "x"), ("b", "y")]


@pytest.mark.parametrize(
    "content_type",
    [
        b"multipart/form-data",
        b"multipart/form-data; boundary=",
        b'multipart/form-data; boundary=""',
        b"multipart/form-data; boundary=" + b"x" * 71,
        b'multipart/form-data; boundary="a\tb"',
        b"multipart/form-data; boundary=\xff",
    ],
)
def test_a_boundary_must_be_named(content_type: bytes) -> None:
    error = refusal(WHOLE, content_type)
    assert (error.status, error.error_code) == (400, "invalid_form")
    assert "boundary" in error.message


@pytest.mark.parametrize("quoted", [b'"a b:c"', b"a'()+_,-./:=?", b"x" * 70])
def test_any_boundary_of_the_standard_is_taken(quoted: bytes) -> None:
    read = Read(b"Multipart/Form-Data; charset=utf-8; BOUNDARY=" + quoted)
    read.pieces(form([text("model", "tiny")], boundary=quoted.strip(b'"')))
    assert read.texts == [("model", "tiny")]


def test_a_field_that_is_too_long_or_no_text_is_named() -> None:
    Read().pieces(form([text("prompt", "x" * 100)]))
    long = refusal(form([text("prompt", "x" * 101)]))
    assert (long.param, long.message) == ("prompt", "The field 'prompt' is larger than 100 bytes.")
    assert refusal(form([text("prompt", b"\xff")])).param == "prompt"


def test_a_form_has_so_many_fields() -> None:
    Read().pieces(form([text(f"a{number}", "x") for number in range(8)]))
    error = refusal(form([text(f"a{number}", "x") for number in range(9)]))
    assert error.message == "The form has more than 8 fields."
