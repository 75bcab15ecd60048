"""The tasks: the same for every engine, with answers that can be checked."""

from __future__ import annotations

import pytest

from serving.gate.address import Address
from serving.gate.collect import CollectOptions, collect
from serving.gate.tasks import Item, items, stays
from tests.doubles.numeric_engine import NumericEngine


def item(family: str, place: int = 0) -> Item:
    return next(found for found in items() if found.name == f"{family}-{place}")


def test_they_are_the_same_each_time_and_bounded() -> None:
    first, second = items(), items()
    assert [(found.name, found.prompt) for found in first] == [(found.name, found.prompt) for found in second]
    assert len({found.name for found in first}) == len(first) > 150
    assert max(len(found.prompt) for found in first) < 1500
    assert {found.family for found in items(2, 500)} - {found.family for found in items(2)} == {"long-retrieval"}


@pytest.mark.parametrize(
    ("family", "right", "wrong"),
    [
        ("addition", " 17", " 16"),
        ("capitals", " Tokyo", " Kyoto"),
        ("plurals", " babies.", " babys"),
        ("records", ' {"name": "Anna", "age": 74, "city": "London"}', ' {"name": "Anna", "age": 74}'),
        ("schema", '{"city": "Paris"}', '{"city": "London"}'),
        ("tools", 'get_weather({"city": "Paris, France"})', 'get_weather({"city": "London"})'),
    ],
)
def test_right_and_wrong_answers(family: str, right: str, wrong: str) -> None:
    found = item(family)
    passed, formed, said = found.check(right)
    assert passed and formed is not False and said == "", (found.prompt, right)
    passed, _, said = found.check(wrong)
    assert not passed and said


@pytest.mark.parametrize(
    ("family", "text"),
    [("records", " name: Anna"), ("schema", "Paris"), ("schema", '{"city": "Paris", "x": 1}'), ("tools", "The weather is fine.")],
)
def test_a_form_that_was_not_followed_is_told_apart_from_a_wrong_answer(family: str, text: str) -> None:
    passed, formed, _ = item(family).check(text)
    assert (passed, formed) == (False, False)


SPANISH = "el tren llegaba tarde y la gente esperaba en el andén con sus maletas, porque no había otro hasta la noche"
ENGLISH = "the train was late and people waited on the platform with their bags, for there was no other one until the night"


def test_drift() -> None:
    assert stays("spanish")(SPANISH)[0] and stays("english")(ENGLISH)[0]
    assert stays("spanish")(ENGLISH)[2] == "is not spanish"
    assert stays("english")("and the man and the man " * 10)[2] == "turns in circles"
    assert stays("english")("!!!! ????")[2] == "is hardly any text"
    assert stays("english")(ENGLISH + "\ufffd")[2] == "is hardly any text"


def test_answers_are_collected_with_their_check() -> None:
    def say(prompt: str) -> str:
        return " Tokyo" if prompt.endswith("Country: Japan\nCapital:") else " nothing"

    with NumericEngine(answers=say, refuses=("tool_choice",)) as engine:
        found = collect(Address(engine.url), CollectOptions(parts=("tasks",), items=3))
    solved = [answer.name for answer in found.answers if answer.passed]
    assert solved == ["capitals-0"]
    assert found.troubles == ()
    assert any(line.startswith("tasks tools: the engine does not offer it") for line in found.not_seen)
