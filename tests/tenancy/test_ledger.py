"""One record for each ended request, true to what is known, and never more of them than there is room for."""

from __future__ import annotations

from serving.core.context import UNKNOWN_USAGE
from serving.core.money import MachineDollars
from serving.core.outcomes import Outcome
from tests.tenancy.records import StandingClock, ended, identity, ledger, named


def test_a_record_says_who_what_where_and_how_much() -> None:
    book = ledger(clock=StandingClock(100.0), wall=StandingClock(1_796_000_000.0))
    book.add(ended(first_token=12.0), identity(), 15.0)
    (record,) = map(named, book.take())
    assert record.pop("id")
    assert record == {
        "ended_at": 1_795_999_915.0,
        "request_id": "r0",
        "tenant": "red",
        "key_id": "key-1",
        "route": "chat_completions",
        "model": "tiny",
        "target": "epyc",
        "pool": "cpu",
        "outcome": "ok",
        "attempts": 1,
        "prompt_tokens": 100,
        "cached_tokens": 60,
        "output_tokens": 5,
        "audio_seconds": None,
        "estimated": 0,
        "seconds": 5.0,
        "first_token_seconds": 2.0,
        "prompt_nanodollars": 40_000,
        "cached_nanodollars": 30_000,
        "output_nanodollars": 10_000,
        "machine_prompt_nanodollars": None,
        "machine_cached_nanodollars": None,
        "machine_output_nanodollars": None,
        "machine_failed_nanodollars": None,
        "machine_failed_pool": None,
        "machine_failed_target": None,
    }


def test_what_the_machine_cost_stands_beside_what_is_charged() -> None:
    book = ledger()
    book.add(ended(machine=MachineDollars(4e-6, 1e-6, 3e-6, 2e-6), failed_at=("spot", "old")), identity(), 15.0)
    record = named(book.take()[0])
    machine = {name: value for name, value in record.items() if name.startswith("machine_")}
    assert list(machine.values()) == [4000, 1000, 3000, 2000, "spot", "old"]
    assert record["prompt_nanodollars"] == 40_000


def test_what_is_not_known_is_not_nothing() -> None:
    book = ledger()
    book.add(ended(usage=UNKNOWN_USAGE), identity(), 15.0)
    book.add(ended(first_byte=0.0, outcome=Outcome.UNAVAILABLE), identity(), 15.0)
    for record in map(named, book.take()):
        known = [record[name] for name in record if name.endswith(("_tokens", "_nanodollars"))]
        assert known == [None] * 10


def test_an_estimate_says_that_it_is_one() -> None:
    book = ledger()
    book.add(ended(usage_estimated=True), identity(), 15.0)
    assert named(book.take()[0])["estimated"] == 1


def test_what_runs_no_model_costs_nothing() -> None:
    book = ledger(prices={})
    book.add(ended(route="/tokenize"), identity(), 15.0)
    record = named(book.take()[0])
    charged = [name for name in record if name.endswith(("_tokens", "_nanodollars")) and not name.startswith("machine_")]
    assert [record[name] for name in charged] == [0] * 6


def test_the_same_request_id_twice_is_two_records() -> None:
    book, other = ledger(), ledger()
    for each in (book, book, other):
        each.add(ended(), identity(), 15.0)
    assert len({record[0] for record in [*book.take(), *other.take()]}) == 3


def test_records_are_taken_oldest_first_and_once() -> None:
    book = ledger()
    for number in range(5):
        book.add(ended(number), identity(), 15.0)
    assert [record[2] for record in book.take(2)] == ["r0", "r1"]
    assert [record[2] for record in book.take(10)] == ["r2", "r3", "r4"]
    assert book.take() == []


def test_what_finds_no_room_is_counted_and_refusals_go_first() -> None:
    dropped: list[None] = []
    book = ledger(memory_records=1000, dropped=lambda: dropped.append(None))
    for number in range(600):
        book.add(ended(number, attempts=0, first_byte=0.0), identity(), 15.0)
    assert (len(book), len(dropped)) == (500, 100)
    for number in range(600):
        book.add(ended(number), identity(), 15.0)
    assert (len(book), len(dropped)) == (1000, 200)


def test_a_whole_batch_is_said() -> None:
    said: list[int] = []
    book = ledger()
    book.on_batch = lambda: said.append(len(book))
    for number in range(600):
        book.add(ended(number), identity(), 15.0)
    assert said == [500]
