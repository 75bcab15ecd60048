from __future__ import annotations

import pytest

from serving.replay.counters import CacheFacts, Counters, info_labels, read_cache_facts, read_counters

TEXT = """\
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 100.0
vllm:prompt_tokens_total{engine="1",model_name="tiny"} 20.0
vllm:generation_tokens_total{engine="0",model_name="tiny"} 7.0
vllm:prefix_cache_queries_total{engine="0"} 120.0
vllm:prefix_cache_hits_total{engine="0"} 60.0
vllm:num_preemptions_total{engine="0"} 1.0
vllm:cache_config_info{block_size="128",enable_prefix_caching="True",kv_cache_size_tokens="97000",model="a\\"b"} 1.0
serving_sim_info{profile="p",speed="10"} 1
"""


def test_counters_are_summed_over_labels_and_engines() -> None:
    one = read_counters([TEXT])
    assert one == Counters(120.0, 7.0, 120.0, 60.0, 1.0)
    both = read_counters([TEXT, TEXT])
    assert both is not None
    assert both.since(one) == one
    assert both.cached_share == 0.5
    assert one.since(both).went_back


def test_without_counters_of_an_engine_there_are_none() -> None:
    assert read_counters([TEXT, "serving_requests_total 4\n"]) is None


@pytest.mark.parametrize("value", ["", "many", "NaN", "+Inf"])
def test_a_counter_that_is_no_number_is_none(value: str) -> None:
    assert read_counters([TEXT.replace("100.0", value)]) is None


def test_what_the_cache_is() -> None:
    assert read_cache_facts([TEXT, TEXT]) == CacheFacts(128, 194_000, True)
    off = TEXT.replace('caching="True"', 'caching="False"')
    assert read_cache_facts([TEXT, off]).is_enabled is False
    assert read_cache_facts(["x 1\n"]) == CacheFacts(None, None, None)


def test_labels_of_an_information_series() -> None:
    assert info_labels(TEXT, "serving_sim_info") == {"profile": "p", "speed": "10"}
    assert info_labels(TEXT, "vllm:prompt_tokens") == {}
