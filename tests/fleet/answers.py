"""Answers of engines to known-answer probes, with log-probabilities that tests bend."""

from __future__ import annotations

import json
from typing import Any

from serving.fleet.known_answers import ANSWER_TOKENS, PROMPTS


def completion(shift: float = 0.0, *, words: str = "abcdefgh", prompts: int = len(PROMPTS), **change: Any) -> bytes:
    """As vLLM answers; the likeliest token of each place is the next of `words`, `shift` nats less likely than it should be."""
    choices = []
    for index in range(prompts):
        tokens = [f"token_id:{ord(word)}" for word in words[:ANSWER_TOKENS]]
        logprobs: dict[str, Any] = {
            "tokens": tokens,
            "token_logprobs": [-0.1 - shift] * len(tokens),
            "top_logprobs": [{token: -0.1 - shift, f"{token}0": -3.0, f"{token}1": -4.0} for token in tokens],
        }
        choices.append({"index": index, "text": words, "logprobs": logprobs | change})
    usage = {"prompt_tokens": 48, "completion_tokens": 32, "total_tokens": 80}
    return json.dumps({"object": "text_completion", "choices": choices, "usage": usage}).encode()
