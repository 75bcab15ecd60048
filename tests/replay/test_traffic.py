from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from pydantic import TypeAdapter

from serving.core.errors import ConfigurationError
from serving.replay.profile import Length, ReplayProfile, Spread
from serving.replay.traffic import Ground, Planned, Source, Template, draw, source_of

TEMPLATE = Template(user_tokens=19, system_tokens=9, turn_tokens=18, head_tokens=7)


def profile(**traffic: Any) -> ReplayProfile:
    data = {"name": "p", "description": "d", "traffic": traffic, "concurrency": 1, "settle_seconds": 0, "measure_seconds": 1.0}
    return TypeAdapter(ReplayProfile).validate_python(data, strict=False)


def source(cache_block: int = 16, *, scale: float = 1.0, seed: int = 0, **traffic: Any) -> Source:
    return source_of(profile(**traffic), Ground(TEMPLATE, cache_block), scale=scale, seed=seed)


def requests(found: Source, count: int) -> list[Planned]:
    return [request for number in range(count) for request in found.conversation(number)]


def words_of(planned: Planned) -> int:
    return sum(part.tokens for message in planned.messages for part in message.parts)


PRODUCTION = {"kind": "prompts", "prompt_tokens": 2000, "output_tokens": 100, "shared_prefix": {"share": 0.6, "groups": 4}}


@pytest.mark.parametrize("block_tokens", [1, 16, 128, 256])
def test_the_cached_share_is_the_wanted_one_however_large_blocks_are(block_tokens: int) -> None:
    planned = requests(source(block_tokens, **PRODUCTION), 500)
    assert all(request.cached_tokens % block_tokens == 0 for request in planned)
    share = sum(request.cached_tokens for request in planned) / sum(request.prompt_tokens for request in planned)
    assert share == pytest.approx(0.6, abs=0.002)


def test_lengths_are_those_of_the_profile_with_the_template_in_them() -> None:
    for request in requests(source(**PRODUCTION), 50):
        assert request.prompt_tokens == words_of(request) + TEMPLATE.user_tokens == 2000
        assert request.output_tokens == 100


def test_the_cached_part_is_in_the_shared_beginning_and_was_primed() -> None:
    found = source(128, **PRODUCTION)
    primed = {prime.messages[0].parts[0].name: prime.messages[0].parts[0].tokens for prime in found.primes()}
    assert len(primed) == 4
    for request in requests(found, 300):
        shared, own = request.messages[0].parts
        assert TEMPLATE.head_tokens + shared.tokens == request.cached_tokens
        assert shared.tokens <= primed[shared.name]
        assert own.tokens >= 8


def test_own_parts_are_never_the_same() -> None:
    found = source(**PRODUCTION)
    names = [request.messages[0].parts[1].name for request in requests(found, 300)]
    assert len(set(names)) == 300


def test_the_same_seed_is_the_same_traffic_and_another_is_not() -> None:
    spread = PRODUCTION | {"prompt_tokens": {"median": 2000, "sigma": 0.5, "least": 300, "most": 9000}}
    one, same, other = (requests(source(seed=seed, **spread), 40) for seed in (3, 3, 4))
    assert one == same != other


def test_a_scale_shortens_everything_and_refuses_what_has_no_room() -> None:
    (request,) = source(scale=0.1, **PRODUCTION).conversation(0)
    assert (request.prompt_tokens, request.output_tokens) == (200, 10)
    with pytest.raises(ConfigurationError, match=r"--scale: 0\.01 makes prompts of 20 tokens"):
        source(scale=0.01, **PRODUCTION)


SESSIONS = {
    "kind": "sessions",
    "system_tokens": 500,
    "system_prompts": 3,
    "turns": {"median": 6, "sigma": 0.5, "least": 3, "most": 12},
    "first_user_tokens": 40,
    "next_user_tokens": 30,
    "output_tokens": 50,
    "think_seconds": 2.0,
}


def test_a_session_grows_and_each_turn_brings_what_the_last_one_sent() -> None:
    turns = source(1, **SESSIONS).conversation(0)
    assert 3 <= len(turns) <= 12
    assert turns[0].cached_tokens == TEMPLATE.head_tokens + 500
    for before, after in pairwise(turns):
        assert after.messages[: len(before.messages)] == before.messages
        assert after.prompt_tokens == before.prompt_tokens + 50 + 30 + TEMPLATE.turn_tokens
        assert after.cached_tokens == before.prompt_tokens
        assert after.think_seconds > 0
    assert turns[0].think_seconds == 0


def test_a_session_begun_in_the_middle_has_its_history_and_no_cache_of_it() -> None:
    found = source(1, **SESSIONS)
    begun_at = set()
    for number in range(40):
        turns, whole = found.conversation(number, in_the_middle=True), found.conversation(number)
        assert turns[0].messages == whole[len(whole) - len(turns)].messages
        begun_at.add(len(whole) - len(turns))
        assert turns[0].cached_tokens == TEMPLATE.head_tokens + 500
        assert turns[0].think_seconds == 0
    assert len(begun_at) > 3


def test_a_model_without_system_messages_gets_their_text_in_the_users() -> None:
    ground = Ground(Template(19, 0, 18, 7, has_system=False), 1)
    turns = source_of(profile(**SESSIONS), ground, scale=1, seed=0).conversation(1)
    assert [message.role for message in turns[1].messages] == ["user", "assistant", "user"]
    assert [part.tokens for part in turns[0].messages[0].parts] == [500, 40]
    assert turns[0].prompt_tokens == 540 + 19


def test_a_trace_with_blocks_counts_what_came_before() -> None:
    lines = [
        {"prompt_tokens": 300, "output_tokens": 5, "block_ids": [1, 2]},
        {"prompt_tokens": 300, "output_tokens": 5, "block_ids": [1, 2]},
        {"prompt_tokens": 300, "output_tokens": 5, "block_ids": [1, 3]},
        {"prompt_tokens": 300, "output_tokens": 5, "block_ids": [3, 2]},
    ]
    planned = requests(source(1, kind="trace", block_tokens=100, requests=lines), 4)
    assert [request.cached_tokens - TEMPLATE.head_tokens for request in planned] == [0, 200, 100, 0]
    assert {request.prompt_tokens for request in planned} == {300}


def test_a_trace_with_groups_is_primed_and_begins_again_at_its_end() -> None:
    lines = [
        {"prompt_tokens": 200, "output_tokens": 5, "prefix_group": "a", "prefix_tokens": 100, "at_seconds": 0.0},
        {"prompt_tokens": 90, "output_tokens": 6, "at_seconds": 4.0},
    ]
    found = source(16, kind="trace", requests=lines)
    (prime,) = found.primes()
    assert prime.messages[0].parts[0].tokens == 100
    first, second, again = requests(found, 3)
    assert first.cached_tokens == (100 + 7) // 16 * 16
    assert (second.prompt_tokens, second.output_tokens, second.cached_tokens) == (90, 6, 0)
    assert [found.at_seconds(number) for number in range(3)] == [0.0, 4.0, 4.0]
    assert again.messages[0].parts[0] == first.messages[0].parts[0]
    assert again.messages[0].parts[1].name != first.messages[0].parts[1].name


def test_spreads_stay_in_their_bounds() -> None:
    spread: Length = Spread(median=100, sigma=1.0, least=50, most=300)
    drawn = sorted(draw(spread, random.Random(number)) for number in range(500))
    assert 50 <= drawn[0] < drawn[-1] <= 300
    assert 80 < drawn[250] < 130
