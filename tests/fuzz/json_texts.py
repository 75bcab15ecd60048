"""JSON texts of requests: valid ones, with members spelt in every way, and bent ones."""

from __future__ import annotations

import json
import random

from serving.engines.body import GATEWAY_ONLY, GATEWAY_ONLY_PREFIX

PRIVILEGES = [*sorted(GATEWAY_ONLY), f"{GATEWAY_ONLY_PREFIX}_x", GATEWAY_ONLY_PREFIX, "cache_salt"]
OTHERS = [
    "seed",
    "temperature",
    "n",
    "best_of",
    "logprobs",
    "prompt_logprobs",
    "stream",
    "stream_options",
    "store",
    "user",
    "x_future",
    "model",
    "messages",
    "input",
    "prompt",
    "max_tokens",
    "max_output_tokens",
    "guided_json",
    "guided_choice",
    "previous_response_id",
    "background",
    "",
    "é",
    "priority ",
    "Priority",
    "\ud83d",
    "a\x00b",
    "tools",
]
REQUIRED = {
    "/v1/chat/completions": [("messages", '[{"role":"user","content":"hi"}]')],
    "/v1/completions": [("prompt", '"hi"')],
    "/v1/responses": [("input", '"hi"')],
    "/v1/messages": [("messages", '[{"role":"user","content":"hi"}]'), ("max_tokens", "5")],
    "/v1/messages/count_tokens": [("messages", '[{"role":"user","content":"hi"}]')],
    "/v1/embeddings": [("input", '["hi","ho"]')],
    "/v1/rerank": [("query", '"hi"'), ("documents", '["a","b"]')],
    "/v2/rerank": [("query", '"hi"'), ("documents", '["a","b"]')],
    "/v1/score": [("text_1", '"hi"'), ("text_2", '["a","b"]')],
    "/tokenize": [("prompt", '"hi"')],
    "/detokenize": [("tokens", "[1,2]")],
}
VALUES = [
    "null",
    "true",
    "false",
    "0",
    "-0",
    "1",
    "8",
    "9",
    "1.0",
    "1e2",
    "-1",
    "1e999",
    "1E+2",
    "9007199254740993",
    "18446744073709551616",
    "0.1e-7",
    '""',
    '"CANARY"',
    '"a\\u0000b"',
    '"\\ud83c\\udf0d"',
    '"\\ud83c"',
    '"é🌍"',
    '"\\/\\"\\\\"',
    "[]",
    "{}",
    "[1,2,3]",
    '{"a":{"b":[null]}}',
    '{"include_usage":true}',
    '{"include_usage":false,"x":1}',
    "[[1],[2]]",
    '["a","b"]',
    '{"priority":1}',
    "01",
    "+1",
    ".5",
    "1.",
    "NaN",
    "Infinity",
    "-",
    "tru",
    "'a'",
    '"a\nb"',
    '"\\x"',
    '"\\u12"',
    "[1,]",
    "{,}",
    "[" * 200 + "]" * 200,
    "[" * 1100 + "]" * 1100,
    '{"a":' * 300 + "1" + "}" * 300,
    '"' + "x" * 3000 + '"',
    "9" * 400,
    "[" + "1," * 500 + "1]",
    '{"kv_transfer_params":"CANARY"}',
    '"priority"',
    '{"a":1,"a":2}',
    "\ufeff1",
]
GOOD_VALUES = VALUES[:32]
BLANKS = ["", "", "", " ", "\n", "\t \r\n"]


def spelt(name: str, chance: random.Random) -> str:
    """A member's name as JSON, with some of its characters escaped."""
    if chance.random() < 0.6:
        return json.dumps(name, ensure_ascii=chance.random() < 0.5 or not name.isprintable())
    characters = [f"\\u{ord(c):04x}" if ord(c) < 0x10000 and chance.random() < 0.4 else json.dumps(c)[1:-1] for c in name]
    return '"' + "".join(characters) + '"'


def body_text(path: str, chance: random.Random) -> bytes:
    members = [("model", '"tiny"'), *REQUIRED[path]]
    if chance.random() < 0.35:
        members.append(("stream", chance.choice(["true", "true", "false"])))
    for _ in range(chance.choice([0, 0, 1, 1, 2, 4])):
        names = PRIVILEGES if chance.random() < 0.5 else OTHERS
        values = GOOD_VALUES if chance.random() < 0.7 else VALUES
        members.insert(chance.randrange(len(members) + 1), (chance.choice(names), chance.choice(values)))
    if chance.random() < 0.1:
        members.append(chance.choice(members))
    if chance.random() < 0.05:
        members.pop(chance.randrange(len(members)))
    blank = chance.choice(BLANKS)
    text = "{" + ",".join(f"{blank}{spelt(name, chance)}{blank}:{blank}{value}{blank}" for name, value in members) + "}"
    encoded = (chance.choice(BLANKS) + text + chance.choice(BLANKS)).encode("utf-8", "surrogatepass")
    return _bent(encoded, chance) if chance.random() < 0.12 else encoded


def _bent(text: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(text))
    return chance.choice(
        [
            text[:at],
            text + text,
            b"\xef\xbb\xbf" + text,
            text.decode("utf-8", "replace").encode("utf-16"),
            text[:at] + b"\xff" + text[at:],
            text[:at] + b"\x00" + text[at:],
            b"[" + text + b"]",
            text.replace(b'"', b"'"),
            text + b"}",
            text[:-1],
            b"[" * 5000,
            text[:at] + text[at + 1 :],
            text.replace(b"tiny", b"nope"),
            text.replace(b"tiny", b"t\\u0069ny"),
        ]
    )
