"""Whatever a body holds, it is answered or refused with an error object; nothing of it breaks the simulator."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.sim.answers import Answer
from serving.sim.errors import EngineError
from serving.sim.generate import build_choices, prompts_of
from serving.sim.surfaces import SURFACES
from tests.doubles.simulated_engine import TINY

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-3, 9), st.floats(allow_nan=False), st.text(max_size=4))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
)
TURN = st.dictionaries(st.sampled_from(["role", "content"]), VALUES)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "model": st.sampled_from(["tiny", "x"]) | VALUES,
    "messages": st.lists(TURN, max_size=3) | VALUES,
    "prompt": st.lists(st.integers(0, 3) | st.text(max_size=2) | st.lists(st.integers(0, 9), max_size=2), max_size=3) | VALUES,
    "input": st.text(max_size=5) | st.lists(TURN, max_size=2) | VALUES,
    "max_tokens": st.integers(1, 5) | VALUES,
    "max_output_tokens": VALUES,
    "stream_options": VALUES,
    **dict.fromkeys(("n", "logprobs", "top_logprobs", "min_tokens", "ignore_eos", "priority", "cache_salt"), VALUES),
    **dict.fromkeys(("temperature", "seed", "stream", "system", "instructions", "metadata", "tools"), VALUES),
}


GOOD: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hi"}],
    "prompt": "hi",
    "input": "hi",
    "max_tokens": 3,
    "max_output_tokens": 3,
}
ODD = st.lists(st.sampled_from(sorted(FIELDS)).flatmap(lambda name: st.tuples(st.just(name), FIELDS[name])), max_size=2)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(SURFACES)), ODD)
def test_any_body_is_answered_or_refused(path: str, odd: list[tuple[str, Any]]) -> None:
    """Good bodies with one or two fields that are something else."""
    body = GOOD | dict(odd)
    surface = SURFACES[path]
    try:
        chat = surface.read(body, ["tiny"], 4096)
        prompts = prompts_of(chat, surface, 4)
        choices = build_choices(
            chat, surface, TINY, prompts, adapters=[], priority=0, seed=0, drawn=0, is_wrong=False, feed=asyncio.Queue()
        )
        answer: Answer = surface.answer(
            chat,
            choices,
            is_chat=surface.is_chat,
            model="tiny",
            request_id=None,
            fingerprint="f",
            with_details=True,
        )
        for choice in choices:
            choice.sequence.generated_tokens = choice.sequence.answer_tokens
        answer.whole()
        list(answer.early()), list(answer.opening())
        answer.tokens(0, 1)
        list(answer.closing())
    except EngineError as error:
        assert 400 <= error.status < 500 and error.body_on(path)
