"""The last minute, read off the series: rates, percentiles, shares and dollars; what is not known is never zero."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.context import RequestContext, Usage
from serving.core.outcomes import Outcome
from serving.core.routes import CHAT_COMPLETIONS
from serving.observability.metrics import Metrics
from serving.observability.series.definition import TTFT_SECONDS
from serving.observability.window import HISTORY_SECONDS, PERIOD_SECONDS, Figures, Ledgers, Money, Said, Window, percentile

POOL = ("tiny", "default", "cpu")
OTHER = ("tiny", "other", "gpu")


class Bench:
    """A window over metrics of its own, with a clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.metrics = Metrics()
        self.said: Said | None = None
        self.bill: dict[tuple[str, str, str], float] = {}
        self.used: dict[tuple[str, ...], float] = {}
        self.failed: dict[tuple[str, str, str], float] = {}
        ledgers = Ledgers(lambda: self.bill.items(), lambda: self.used.items(), lambda: self.failed.items())
        self.window = Window(self.metrics, ledgers=ledgers, said=lambda: self.said, clock=lambda: self.now)

    def request(self, *, pool: str = "default", target: str = "cpu", ttft: float = 0.2, **fields: object) -> None:
        ctx = RequestContext("r1", CHAT_COMPLETIONS, None, self.now)
        given: dict[str, object] = {
            "model": "tiny",
            "asked_model": "tiny",
            "pool": pool,
            "target": target,
            "outcome": Outcome.OK,
            "usage": Usage(100, 60, 10),
            "first_byte": self.now + ttft,
            "last_byte": self.now + ttft,
            "chunk_intervals": self.metrics.inter_chunk.new_row(),
        }
        for name, value in (given | fields).items():
            setattr(ctx, name, value)
        self.metrics.settle(ctx, self.now + ttft)

    def pass_(self, seconds: float) -> None:
        """Let time go by, with the samples that are taken meanwhile."""
        for _ in range(round(seconds / PERIOD_SECONDS)):
            self.now += PERIOD_SECONDS
            self.window.sample()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_nothing_is_known_of_a_pool_without_requests_but_that_it_writes_nothing(bench: Bench) -> None:
    bench.pass_(10)
    view = bench.window.look()
    assert view.figures([POOL]) == Figures(0.0, 0.0, None, None, None)
    assert view.money([POOL]) == Money()
    assert (view.requests_per_second, view.failed) == (0.0, 0)


def test_at_the_very_begin_there_is_no_time_to_divide_by(bench: Bench) -> None:
    bench.request()
    figures = bench.window.look().figures([POOL])
    assert (figures.prompt_tokens_per_second, figures.output_tokens_per_second) == (None, None)


def test_the_last_minute_and_not_what_was_before_it(bench: Bench) -> None:
    for _ in range(5):
        bench.request(ttft=20.0)
    bench.pass_(120)
    for _ in range(6):
        bench.request(ttft=0.2)
    bench.request(pool="other", target="gpu", usage=Usage(10, 0, 10))
    bench.request(outcome=Outcome.ENGINE_ERROR, first_byte=0.0)
    bench.request(outcome=Outcome.CLIENT_CANCELLED, first_byte=0.0)
    view = bench.window.look()
    assert view.seconds == 60
    assert view.figures([POOL]) == Figures(10.0, 1.0, 0.6, pytest.approx(0.175), pytest.approx(0.2425))
    assert view.figures([POOL, OTHER]).output_tokens_per_second == pytest.approx(70 / 60)
    assert view.requests_per_second == pytest.approx(9 / 60)
    assert view.failed == 1, "a client that leaves has not failed"


@pytest.mark.parametrize("outcome", Outcome)
def test_what_callers_did_wrong_has_not_failed(bench: Bench, outcome: Outcome) -> None:
    callers = {"invalid", "unauthorized", "not_found", "rate_limited", "client_slow", "client_cancelled"}
    bench.request(outcome=outcome, first_byte=0.0)
    assert bench.window.look().failed == (outcome not in {"ok", *callers})


def test_a_hit_rate_is_unknown_until_an_engine_has_told_of_one(bench: Bench) -> None:
    bench.request(usage=Usage(100, None, 10))
    bench.pass_(2)
    assert bench.window.look().figures([POOL]).cache_hit_rate is None
    bench.request(usage=Usage(100, 50, 10))
    bench.pass_(120)
    bench.request(usage=Usage(100, 0, 10))
    assert bench.window.look().figures([POOL]).cache_hit_rate == 0.0, "here it is one that was told"


def test_two_targets_of_a_pool_are_apart(bench: Bench) -> None:
    bench.request()
    bench.request(target="gpu", usage=Usage(100, 60, 50))
    bench.pass_(10)
    view = bench.window.look()
    assert view.figures([("tiny", "default", "gpu")]).output_tokens_per_second == 5.0
    assert view.figures([POOL, ("tiny", "default", "gpu")]).ttft_p50_seconds == view.figures([POOL]).ttft_p50_seconds


def test_dollars_are_of_the_window_and_their_parts_sum_up(bench: Bench) -> None:
    bench.bill = {POOL: 5.0}
    bench.pass_(120)
    bench.bill = {POOL: 5.6}
    bench.used = {(*POOL, "prompt"): 0.2, (*POOL, "cached"): 0.01, (*POOL, "output"): 0.1}
    bench.failed = {POOL: 0.09}
    bench.request(usage=Usage(1000, 600, 50))
    money = bench.window.look().money([POOL, OTHER])
    assert money.per_hour == pytest.approx(36.0)
    assert money.used_per_hour == pytest.approx(0.31 * 60)
    assert money.idle_per_hour == pytest.approx((0.6 - 0.31 - 0.09) * 60)
    assert money.per_million_prompt_tokens == pytest.approx(0.2 / 400 * 1e6)
    assert money.per_million_cached_tokens == pytest.approx(0.01 / 600 * 1e6)
    assert money.per_million_output_tokens == pytest.approx(0.1 / 50 * 1e6)
    assert bench.window.look().money([OTHER]) == Money(), "a machine without a price costs an unknown sum"


def test_tokens_of_unpriced_machines_do_not_make_those_of_priced_ones_cheaper(bench: Bench) -> None:
    bench.bill = {POOL: 1.0}
    bench.pass_(10)
    bench.used = {(*POOL, "output"): 0.1}
    bench.request(usage=Usage(100, 0, 50))
    bench.request(pool="other", target="gpu", usage=Usage(100, 0, 1_000_000))
    assert bench.window.look().money([POOL, OTHER]).per_million_output_tokens == pytest.approx(0.1 / 50 * 1e6)


def test_the_history_is_what_engines_say_and_else_what_was_counted(bench: Bench) -> None:
    bench.request()
    bench.pass_(2)
    bench.said = (7.0, 8.0)
    bench.pass_(2)
    counted, said = bench.window.look().history
    assert (counted.prompt_tokens_per_second, counted.output_tokens_per_second, counted.ago_seconds) == (50.0, 5.0, 2.0)
    assert (said.prompt_tokens_per_second, said.output_tokens_per_second, said.ago_seconds) == (7.0, 8.0, 0.0)


def test_no_more_is_kept_than_is_shown(bench: Bench) -> None:
    bench.pass_(2 * HISTORY_SECONDS)
    history = bench.window.look().history
    assert len(history) <= HISTORY_SECONDS / PERIOD_SECONDS + 1
    assert history[0].ago_seconds <= HISTORY_SECONDS


def test_what_is_not_counted_yet_is_brought_in_first(bench: Bench) -> None:
    bench.pass_(2)
    bench.metrics.before_scrape = bench.request
    assert bench.window.look().figures([POOL]).output_tokens_per_second == 5.0


@given(st.lists(st.floats(0.0, 400.0), min_size=1, max_size=50), st.floats(0.01, 1.0))
def test_a_percentile_lies_in_the_bucket_that_holds_it(values: list[float], share: float) -> None:
    metrics = Metrics()
    for value in values:
        metrics.ttft.observe(("m", "p"), value)
    (row,) = metrics.ttft.rows().values()
    found = percentile(TTFT_SECONDS, row, share)
    assert found is not None
    exact = _at_rank(sorted(values), share)
    below = [bound for bound in TTFT_SECONDS if bound < exact]
    least, most = (below[-1] if below else 0.0), next((b for b in TTFT_SECONDS if b >= exact), TTFT_SECONDS[-1])
    assert least <= found <= most


def _at_rank(values: Iterable[float], share: float) -> float:
    ordered = list(values)
    rank = share * len(ordered)
    return next(value for place, value in enumerate(ordered, start=1) if place >= rank)


def test_a_percentile_of_nothing_is_unknown() -> None:
    assert percentile(TTFT_SECONDS, [0] * 16, 0.5) is None
