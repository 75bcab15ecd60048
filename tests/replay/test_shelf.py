from __future__ import annotations

from pathlib import Path

import pytest

from serving.core.errors import ConfigurationError
from serving.replay.profile import Prompts, Sessions, Trace
from serving.replay.shelf import find_replay_profile, load_profiles, read_trace
from serving.settings import catalog_dir


def test_the_profiles_that_ship() -> None:
    found = load_profiles(catalog_dir())
    assert set(found) == {"production", "agents", "chat", "batch", "rag"}
    production = found["production"].traffic
    assert isinstance(production, Prompts)
    assert (production.prompt_tokens, production.output_tokens) == (20_000, 1_000)
    assert production.shared_prefix is not None
    assert production.shared_prefix.share == 0.6
    agents = found["agents"].traffic
    assert isinstance(agents, Sessions)
    assert not isinstance(agents.turns, int)
    assert (agents.turns.least, agents.turns.most) == (10, 30)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("share: 0.6", "traffic.prompts.shared_prefix.share: input should be less than or equal to 0.99"),
        ("groups: 8", "traffic.prompts.shared_prefix.groups: input should be a valid integer"),
        ("output_tokens: 1_000", "traffic.prompts.output_tokens"),
        ("settle_seconds: 60", "is missing"),
    ],
)
def test_a_wrong_profile_is_an_error_that_names_its_field(tmp_path: Path, text: str, said: str) -> None:
    shipped = (catalog_dir() / "replay" / "production.yaml").read_text()
    assert text in shipped
    wrong = {"share: 0.6": "share: 60", "groups: 8": "groups: all", "settle_seconds: 60": ""}.get(text, "output_tokens: none")
    path = tmp_path / "production.yaml"
    path.write_text(shipped.replace(text, wrong))
    with pytest.raises(ConfigurationError, match=r"production\.yaml") as caught:
        find_replay_profile(str(path), tmp_path)
    assert said in str(caught.value)


def test_an_unknown_name_is_told_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="did you mean production"):
        find_replay_profile("producton", catalog_dir())


def trace(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_trace_of_ones_own(tmp_path: Path) -> None:
    path = trace(tmp_path, '{"prompt_tokens": 90, "output_tokens": 5}', "", '{"prompt_tokens": 80, "output_tokens": 4}')
    traffic = read_trace(path).traffic
    assert isinstance(traffic, Trace)
    assert [request.prompt_tokens for request in traffic.requests] == [90, 80]


def test_a_published_kind_of_trace(tmp_path: Path) -> None:
    path = trace(tmp_path, '{"timestamp": 1500, "input_length": 900, "output_length": 50, "hash_ids": [4, 5]}')
    found = read_trace(path)
    assert isinstance(found.traffic, Trace)
    (request,) = found.traffic.requests
    assert (request.at_seconds, request.prompt_tokens, request.output_tokens) == (1.5, 900, 50)
    assert request.block_ids == (4, 5)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nonsense", "line 1: is not JSON"),
        ("[]", "line 1: must be an object"),
        ('{"prompt_tokens": 9}', "line 1: output_tokens"),
        ('{"prompt_tokens": 9, "output_tokens": 1, "prompt": "x"}', "line 1: prompt"),
        ('{"prompt_tokens": 9, "output_tokens": 1, "prefix_tokens": 4}', "belong together"),
        ('{"input_length": 9, "output_length": 1, "text": "x"}', "text: is not a field"),
        ("", "holds no request"),
    ],
)
def test_a_wrong_trace_is_an_error_that_names_its_line(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_trace(trace(tmp_path, line))
    assert said in str(caught.value)


def test_moments_must_not_fall(tmp_path: Path) -> None:
    lines = ['{"prompt_tokens": 9, "output_tokens": 1, "at_seconds": %s}' % moment for moment in (2.0, 1.0)]  # noqa: UP031
    with pytest.raises(ConfigurationError, match="must not fall"):
        read_trace(trace(tmp_path, *lines))
