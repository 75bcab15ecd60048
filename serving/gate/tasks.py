"""Questions whose answers can be checked, made from the words in `corpus/tasks.yaml`; the same for every engine.

They guard what log probabilities of a prompt cannot see: generating, stopping, forms, tools, long answers. All but the tools are
few-shot completions, so that a model of 135 M parameters answers some of them and a chat template has no part in it.
"""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from serving.gate.address import Address, Garbage
from serving.gate.collected import Answer
from serving.gate.passages import task_words

ITEMS = 24
"""Of a family."""
SHOTS = 4
DRIFT_TOKENS = 64
RETRIEVAL_LINES = 6
LEAST_DISTINCT = 0.4
"""Share of different groups of four words in an answer that does not turn in circles."""
LEAST_OF_LANGUAGE = 0.1
"""Share of a text's words that are among the commonest of its language."""

Check = Callable[[str], tuple[bool, bool | None, str]]
"""Of an answer: whether it is right, whether it has its form (None: it need not have one), and what is wrong."""


@dataclass(frozen=True)
class Item:
    """One question. `prompt` goes to completions, `chat` to chat completions."""

    family: str
    name: str
    prompt: str
    check: Check
    max_tokens: int = 12
    stop: tuple[str, ...] = ("\n",)
    chat: dict[str, Any] = field(default_factory=dict)


def items(per_family: int = ITEMS, context_tokens: int = 0) -> list[Item]:
    """All families; with `context_tokens` also what is hidden in texts of that length."""
    words = task_words()
    chance = random.Random(11)
    found = [
        *_additions(chance, per_family),
        *_pairs("capitals", words["capitals"], "Country: {}\nCapital: {}", per_family),
        *_pairs("plurals", words["plurals"], "One: {}\nMany: {}", per_family),
        *_pairs("translations", words["translations"], "Spanish: {}\nEnglish: {}", per_family),
        *_records(chance, words, per_family),
        *_retrievals(chance, words, per_family),
        *_schemas(words, per_family),
        *_tools(words, per_family),
        *_drifts(words, per_family),
    ]
    if context_tokens:
        found += _needles(chance, words, per_family, context_tokens)
    return found


def answer(address: Address, item: Item, *, keeps_prompt: bool = True) -> Answer:
    """Raises: EngineTrouble."""
    text = _tool_text(address, item) if item.chat else _completion_text(address, item)
    passed, well_formed, said = item.check(text)
    return Answer(
        family=item.family,
        name=item.name,
        prompt=item.prompt if keeps_prompt else None,
        text=text if keeps_prompt else None,
        passed=passed,
        well_formed=well_formed,
        said=said,
    )


def _completion_text(address: Address, item: Item) -> str:
    body: dict[str, Any] = {"prompt": item.prompt, "max_tokens": item.max_tokens, "temperature": 0}
    if item.stop:
        body["stop"] = list(item.stop)
    text = address.ask("/v1/completions", body)["choices"][0].get("text")
    if not isinstance(text, str):
        raise Garbage(f"{item.name}: answered without text")
    return text


def _tool_text(address: Address, item: Item) -> str:
    body = {**item.chat, "max_tokens": item.max_tokens, "temperature": 0}
    message = address.ask("/v1/chat/completions", body)["choices"][0].get("message") or {}
    calls = message.get("tool_calls") or []
    if not calls:
        return str(message.get("content") or "")
    called = calls[0].get("function") or {}
    return f"{called.get('name')}({called.get('arguments')})"


def exactly(wanted: str) -> Check:
    def check(text: str) -> tuple[bool, bool | None, str]:
        given = text.strip().rstrip(".").strip()
        return given.casefold() == wanted.casefold(), None, "" if given.casefold() == wanted.casefold() else f"not {wanted}"

    return check


def _additions(chance: random.Random, count: int) -> list[Item]:
    shots = "3 + 4 = 7\n5 + 2 = 7\n12 + 6 = 18\n8 + 1 = 9\n"
    found = []
    for place in range(count):
        a, b = chance.randint(1, 9) + (10 if place % 3 == 2 else 0), chance.randint(1, 9)
        found.append(Item("addition", f"addition-{place}", f"{shots}{a} + {b} =", exactly(str(a + b))))
    return found


def _pairs(family: str, pairs: Sequence[Sequence[str]], form: str, count: int) -> list[Item]:
    shots = "\n\n".join(form.format(*pair) for pair in pairs[:SHOTS])
    return [
        Item(family, f"{family}-{place}", f"{shots}\n\n{form.format(question, '').rstrip()}", exactly(wanted))
        for place, (question, wanted) in enumerate(pairs[SHOTS : SHOTS + count])
    ]


def _records(chance: random.Random, words: dict[str, Any], count: int) -> list[Item]:
    def text(name: str, age: int, city: str) -> str:
        return f"Text: {name} is {age} years old and lives in {city}.\nJSON:"

    def record(name: str, age: int, city: str) -> str:
        return json.dumps({"name": name, "age": age, "city": city})

    def draw() -> tuple[str, int, str]:
        return chance.choice(words["names"]), chance.randint(20, 79), chance.choice(words["cities"])

    drawn = [draw() for _ in range(3 + count)]
    shots = "\n\n".join(f"{text(*one)} {record(*one)}" for one in drawn[:3])
    return [
        Item("records", f"records-{place}", f"{shots}\n\n{text(*one)}", _is_json(json.loads(record(*one))), 40)
        for place, one in enumerate(drawn[3:])
    ]


def _is_json(wanted: Any) -> Check:
    def check(text: str) -> tuple[bool, bool | None, str]:
        try:
            given = json.loads(text.strip())
        except (ValueError, RecursionError):
            return False, False, "is no JSON"
        is_formed = isinstance(given, dict) and given.keys() == wanted.keys()
        return given == wanted, is_formed, "" if given == wanted else f"not {json.dumps(wanted)}"

    return check


def _retrievals(chance: random.Random, words: dict[str, Any], count: int) -> list[Item]:
    found = []
    for place in range(count):
        names = chance.sample(words["names"], RETRIEVAL_LINES)
        codes = [chance.randint(100, 999) for _ in names]
        lines = "\n".join(f"The code of {name} is {code}." for name, code in zip(names, codes, strict=True))
        asked = chance.randrange(RETRIEVAL_LINES)
        found.append(
            Item("retrieval", f"retrieval-{place}", f"{lines}\n\nThe code of {names[asked]} is", exactly(str(codes[asked])), 8)
        )
    return found


def _needles(chance: random.Random, words: dict[str, Any], count: int, context_tokens: int) -> list[Item]:
    """One sentence hidden in a long text; a third of the items, since they are long."""
    found = []
    for place in range(max(1, count // 3)):
        text: list[str] = []
        while sum(map(len, text)) < context_tokens * 4:
            text.append(chance.choice(words["filler"]))
        code = chance.randint(1000, 9999)
        text.insert(int(len(text) * (place + 0.5) / max(1, count // 3)), f"The secret number of the lighthouse is {code}.")
        prompt = f"{' '.join(text)}\n\nThe secret number of the lighthouse is"
        found.append(Item("long-retrieval", f"long-retrieval-{place}", prompt, _begins(str(code)), 8))
    return found


def _begins(wanted: str) -> Check:
    def check(text: str) -> tuple[bool, bool | None, str]:
        passed = text.strip().startswith(wanted)
        return passed, None, "" if passed else f"not {wanted}"

    return check


def _tools(words: dict[str, Any], count: int) -> list[Item]:
    """The tool is named in the request, so that the engine needs no parser; what is checked is its argument."""
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Tells the weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
    found = []
    for place, city in enumerate(words["cities"][: max(1, count // 2)]):
        question = f"What is the weather in {city}?"
        chat = {
            "messages": [{"role": "user", "content": question}],
            "tools": [tool],
            "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        }
        found.append(Item("tools", f"tools-{place}", question, _calls(city), 32, (), chat))
    return found


def _schemas(words: dict[str, Any], count: int) -> list[Item]:
    """The engine itself holds the answer to a schema; what is checked is that it did, and what stands in it."""
    shape = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": shape}}
    found = []
    for place, city in enumerate(words["cities"][: max(1, count // 2)]):
        question = f"Which city is named here? I would like to spend a week in {city} in spring."
        chat = {"messages": [{"role": "user", "content": question}], "response_format": form}
        found.append(Item("schema", f"schema-{place}", question, _names(city), 32, (), chat))
    return found


def _names(city: str) -> Check:
    def check(text: str) -> tuple[bool, bool | None, str]:
        try:
            given = json.loads(text)
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict) or set(given) != {"city"} or not isinstance(given["city"], str):
            return False, False, "breaks the schema"
        passed = given["city"].strip().casefold() == city.casefold()
        return passed, True, "" if passed else f"the city is not {city}"

    return check


def _calls(city: str) -> Check:
    def check(text: str) -> tuple[bool, bool | None, str]:
        found = re.fullmatch(r"get_weather\((.*)\)", text, re.DOTALL)
        try:
            arguments = json.loads(found[1]) if found else None
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict) or not isinstance(arguments.get("city"), str):
            return False, False, "is no call of get_weather with a city"
        passed = city.casefold() in arguments["city"].casefold()
        return passed, True, "" if passed else f"the city is not {city}"

    return check


def _drifts(words: dict[str, Any], count: int) -> list[Item]:
    return [
        Item("drift", f"drift-{place}", beginning, stays(language), DRIFT_TOKENS, ())
        for place, (language, beginning) in enumerate(words["drift"][:count])
    ]


@functools.cache
def commonest() -> dict[str, frozenset[str]]:
    """Words by language."""
    return {language: frozenset(words.split()) for language, words in task_words()["commonest"].items()}


def stays(language: str) -> Check:
    """In its language, and not in circles."""

    def check(text: str) -> tuple[bool, bool | None, str]:
        said = re.findall(r"[^\W\d_]+", text.lower())
        if len(said) < 8 or "\ufffd" in text:
            return False, None, "is hardly any text"
        shares = {name: sum(word in common for word in said) / len(said) for name, common in commonest().items()}
        if shares[language] < LEAST_OF_LANGUAGE or shares[language] < max(shares.values()):
            return False, None, f"is not {language}"
        groups = [tuple(said[start : start + 4]) for start in range(len(said) - 3)]
        distinct = len(set(groups)) / len(groups)
        return distinct >= LEAST_DISTINCT, None, "" if distinct >= LEAST_DISTINCT else "turns in circles"

    return check
