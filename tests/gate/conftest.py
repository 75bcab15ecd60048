"""Collections of numeric engines, made once: asking for all passages takes a second."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from serving.catalog.gate_rules import Floor, GateRules
from serving.catalog.load import load_catalog
from serving.gate.address import Address
from serving.gate.collect import CollectOptions, collect
from serving.gate.collected import Collected
from tests.doubles.catalogs import SHIPPED
from tests.doubles.numeric_engine import NumericEngine

FLOOR = Floor(
    engine_version="0.32.0",
    matched_kl=0.0005,
    repeat_kl=0.0,
    decode_difference=0.0,
    tokens=3000,
    date="2026-11-30",
    source="made up for tests",
)


@functools.cache
def collected(**behaviour: Any) -> Collected:
    """Passages, templates and decoding of an engine that behaves so; no tasks."""
    with NumericEngine(**behaviour) as engine:
        options = CollectOptions(parts=("passages", "templates", "decode"))
        return collect(Address(engine.url, sleep=lambda seconds: None), options)


@pytest.fixture(scope="session")
def rules() -> GateRules:
    return load_catalog(SHIPPED).gates["default"]
