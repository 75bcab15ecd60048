"""Targets compared: the same work on two kinds of hardware, side by side."""

from __future__ import annotations

from .choices import BASELINE, FLEET
from .measures import (
    ALL,
    DOLLARS,
    TOKENS_PER_JOULE,
    TOKENS_PER_SECOND,
    bill_per_million,
    per_joule,
    per_million,
    tokens,
    tokens_per_node,
)
from .panels import Dashboard, Panel, Query, Row, bars, lines, stacked, table
from .queries import POOL, TARGET, quantile, rate, with_target

ANY_TARGET = POOL
"""Without the choice of targets, for what the others are compared with."""
OUTPUT = 'kind="output"'


def targets() -> Dashboard:
    return Dashboard(
        "serving-targets",
        "Serving / Targets compared",
        "Which target is better, and what does it cost? The first screen has throughput, latency, dollars and joules "
        "of each target "
        "side by side, and their ratio to the one chosen as `Compared with`.",
        (*FLEET, BASELINE),
        (*_side_by_side(), Row("Ratios"), *_ratios(), Row("Dollars"), *_dollars(), Row("Over time"), *_over_time()),
    )


def _side_by_side() -> tuple[Panel, ...]:
    return (
        bars(
            "Output tokens of a node now",
            "Tokens a second that one node of each target writes. What it could do shows only under full load.",
            TOKENS_PER_SECOND,
            Query(tokens_per_node("target", OUTPUT), "{{target}}"),
        ),
        bars(
            "First token now",
            "Half of the streams on a target have their first token within this time.",
            "s",
            Query(quantile(0.5, "serving_time_to_first_token_seconds", "target"), "{{target}}"),
        ),
        bars(
            "Dollars of a million output tokens now",
            "The whole bill, idle time included, over the output tokens: what benchmarks call the cost of a million tokens.",
            DOLLARS,
            Query(bill_per_million("target", OUTPUT), "{{target}}"),
            decimals=2,
        ),
        bars(
            "Output tokens of a joule now",
            "From measured watts where an exporter gives them for all accelerators, else estimated from the target's "
            "power; the name says "
            "which.",
            TOKENS_PER_JOULE,
            Query(per_joule("target"), "{{target}} ({{source}})"),
            decimals=3,
        ),
    )


def _against(figure: str, baseline: str) -> str:
    return f"{figure} / on () group_left () (sum({baseline}) > 0)"


def _ratios() -> tuple[Panel, ...]:
    base = f'{ANY_TARGET}, target="$baseline"'
    first = "serving_time_to_first_token_seconds"
    return (
        table(
            "Ratio to the compared target",
            "Each figure of a target over that of the one chosen above. More is better for tokens, less for dollars and seconds.",
            (
                (
                    Query(
                        _against(tokens_per_node("target", OUTPUT), tokens_per_node("target", OUTPUT, base)),
                        "tokens of a node",
                    ),
                    "suffix:×",
                ),
                (
                    Query(_against(bill_per_million("target", OUTPUT), bill_per_million("target", OUTPUT, base)), "dollars"),
                    "suffix:×",
                ),
                (
                    Query(
                        _against(
                            f"sum by (target) ({per_joule('target')})",
                            f"sum by (target) ({per_joule('target', base)})",
                        ),
                        "tokens of a joule",
                    ),
                    "suffix:×",
                ),
                (Query(_against(_mean_first(first, "$target"), _mean_first(first, "$baseline")), "first token"), "suffix:×"),
            ),
            "target",
            width=14,
            height=6,
        ),
        bars(
            "Times as dear as the cheapest",
            "Dollars of a million tokens, all kinds and idle time, over those of the cheapest target of the same model.",
            "suffix:×",
            Query(
                'serving:dollars_per_million_tokens:times_cheapest{namespace=~"$namespace", model=~"$model", target=~"$target", '
                'kind="total"}',
                "{{target}} {{model}}",
            ),
            width=10,
            height=6,
            decimals=2,
        ),
    )


def _mean_first(series: str, target: str) -> str:
    rates = (with_target("", rate(f"{series}_{part}", POOL)) for part in ("sum", "count"))
    parts = [f"sum by (target) ({each})".replace("$target", target) for each in rates]
    return " / ".join(parts)


def _dollars() -> tuple[Panel, ...]:
    kinds = (("prompt", "computed prompt"), ("cached", "cached prompt"), ("output", "output"))
    parts = (("used_dollars_per_hour", "used"), ("failed_dollars_per_hour", "failed"), ("idle_dollars_per_hour", "idle"))
    return (
        bars(
            "Dollars of a million tokens by kind",
            "The part of the bill that each kind of token used, without idle time.",
            DOLLARS,
            *(Query(per_million("target", kind), f"{words} {{{{target}}}}") for kind, words in kinds),
            width=8,
            height=8,
            decimals=3,
        ),
        stacked(
            "Where an hour's dollars go",
            "The bill in parts: used by requests, lost in attempts without an answer, and idle. They sum to the price.",
            DOLLARS,
            *(Query(f"sum by (target) (serving:{name}:rate5m{{{TARGET}}})", f"{words} {{{{target}}}}") for name, words in parts),
            width=8,
            height=8,
        ),
        lines(
            "Utilisation",
            "Share of the bill that requests used.",
            "percentunit",
            Query(
                f"sum by (target) (serving:used_dollars_per_hour:rate5m{{{TARGET}}})"
                f" / sum by (target) (serving:bill_dollars_per_hour:rate5m{{{TARGET}}})",
                "{{target}}",
            ),
            width=8,
            height=8,
            most=1,
        ),
    )


def _over_time() -> tuple[Panel, ...]:
    chunks = "serving_inter_chunk_seconds"
    return (
        lines(
            "Output tokens of a node",
            "Tokens a second that one node of each target writes.",
            TOKENS_PER_SECOND,
            Query(tokens_per_node("target", OUTPUT), "{{target}}"),
        ),
        lines(
            "All tokens of a node",
            "Prompt and output tokens a second of one node.",
            TOKENS_PER_SECOND,
            Query(tokens_per_node("target", ALL), "{{target}}"),
        ),
        lines(
            "Time between chunks",
            "Half of the gaps between two chunks of a stream are shorter, and all but one in a hundred.",
            "s",
            Query(quantile(0.5, chunks, "target"), "p50 {{target}}"),
            Query(quantile(0.99, chunks, "target"), "p99 {{target}}"),
        ),
        lines(
            "Dollars of a million tokens",
            "The whole bill, idle time included, over prompt and output tokens.",
            DOLLARS,
            Query(bill_per_million("target", ALL), "{{target}}"),
        ),
        lines(
            "Watts",
            "Of all accelerators of a target; the name says whether they are measured.",
            "watt",
            Query(f"sum by (target, source) (serving:power_watts:now{{{TARGET}}})", "{{target}} ({{source}})"),
        ),
        lines(
            "Price of an accelerator",
            "Dollars an hour that are reckoned with, by pool.",
            DOLLARS,
            Query(f"max by (pool) (serving_accelerator_price_dollars_per_hour{{{TARGET}}})", "{{pool}}"),
        ),
        lines(
            "Share of the work",
            "Which part of all output tokens each target writes.",
            "percentunit",
            Query(f"{tokens('target', OUTPUT)} / on () group_left () sum({tokens('target', OUTPUT)})", "{{target}}"),
            most=1,
        ),
        lines(
            "Accelerators",
            "How many the endpoints of each target have.",
            "none",
            Query(f"sum by (target) (max by (namespace, model, pool, target) (serving_accelerators{{{TARGET}}}))", "{{target}}"),
        ),
        lines(
            "First token",
            "All but one in twenty streams have their first token within this time.",
            "s",
            Query(quantile(0.95, "serving_time_to_first_token_seconds", "target"), "p95 {{target}}"),
        ),
    )
