"""The digest of a configuration: the same where nothing that counts differs, another one where anything does."""

from __future__ import annotations

import pytest

from serving.gate.digest import Configuration, configuration_digest

BASE = {"image": "vllm/vllm-openai:v0.32.0", "checkpoint": "o/m@1", "argv": ("vllm", "serve", "/model"), "target": "cuda-b200"}


def digest(**changes: object) -> str:
    return Configuration.model_validate(BASE | changes).digest


def test_it_is_stable() -> None:
    # Verdicts of a cluster are found by it: it must not change with a version of the product.
    assert digest() == "6c013a4e50b2e171dd355ce53bc98163c57d075f57f05c049928490438e6c3dc"


@pytest.mark.parametrize(
    "change",
    [
        {"image": "vllm/vllm-openai:v0.31.0"},
        {"checkpoint": "o/m@2"},
        {"argv": ("vllm", "serve", "/model", "--enforce-eager")},
        {"argv": ("vllm", "serve", "/model", "--kv-cache-dtype", "fp8")},
        {"target": "cuda-b300"},
        {"environment": {"VLLM_USE_V2_MODEL_RUNNER": "1"}},
    ],
)
def test_anything_that_counts_changes_it(change: dict[str, object]) -> None:
    assert digest(**change) != digest()


@pytest.mark.parametrize("words", [("--port", "8001"), ("--port=8001",), ("--host", "::1"), ("--api-key", "s"), ("--api-key=s",)])
def test_addresses_and_secrets_do_not_count(words: tuple[str, ...]) -> None:
    assert digest(argv=(*BASE["argv"], *words)) == digest()


def test_words_do_not_run_together() -> None:
    joined = configuration_digest("i", "c", ("a b",), "t")
    assert joined != configuration_digest("i", "c", ("a", "b"), "t")


def test_what_is_not_known_is_said() -> None:
    assert Configuration.model_validate(BASE).is_known
    assert not Configuration.model_validate(BASE | {"target": "unknown"}).is_known
