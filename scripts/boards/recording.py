"""The recording rules: what a token costs, how well objectives are kept, what it takes in watts."""

from __future__ import annotations

from dataclasses import dataclass

from .queries import OURS, POOL_INFO, POOL_LABELS, rate, summed

FAST, SLOW = ("5m", "1h"), ("30m", "6h")
"""Short and long window of an alert on a budget that burns: one of 30 days is gone in 2 days (14.4 times) or in 5 (6 times)."""
WINDOWS = (FAST[0], SLOW[0], FAST[1], SLOW[1])
PER_HOUR = "* 3600"
PER_MILLION = "* 3600 / 1e6"
"""Makes of tokens a second what stands under dollars an hour for dollars per million."""
DEVICES = "DCGM_FI_DEV_POWER_USAGE|(amd_)?gpu_package_power"
"""Watts of one accelerator, by NVIDIA's DCGM exporter and by AMD's device metrics exporter, whose chart adds a prefix."""
EXPORTED = f'{{__name__=~"{DEVICES}", exported_pod!=""}}'
OWN = f'{{__name__=~"{DEVICES}", exported_pod=""}}'


@dataclass(frozen=True)
class Recorded:
    """One rule; `why` stands over it in the file."""

    name: str
    expression: str
    why: str
    labels: tuple[tuple[str, str], ...] = ()


def pools() -> list[Recorded]:
    several = "count by (namespace, model, pool) (max by (namespace, model, pool, target) (serving_pool_info))"
    return [
        Recorded(
            POOL_INFO,
            f"(max by ({POOL_LABELS}) (serving_pool_info) and on (namespace, model, pool) {several} == 1)"
            f" or label_replace(max by (namespace, model, pool) (serving_pool_info) and {several} > 1"
            ', "target", "mixed", "", "")',
            "The target of each pool, to join with what is counted by pool only; `mixed` where its endpoints are of several.",
        ),
        Recorded(
            "serving:tokens:rate5m",
            summed(f"{POOL_LABELS}, kind", rate("serving_tokens_total", window="5m")),
            "Tokens a second by kind; prompt includes cached.",
        ),
        Recorded(
            "serving:queued_requests:now",
            "sum by (namespace, model) (serving_queued_requests)"
            " + on (namespace, model) (sum by (namespace, model) (max by (namespace, model, pool, endpoint)"
            " (serving_engine_waiting_requests))"
            " or on (namespace, model) sum by (namespace, model) (serving_queued_requests) * 0)",
            "Requests that wait: in gateways for a slot, and in engines, of which each gateway says the same.",
        ),
        *(
            Recorded(
                f"serving:cache_hit_ratio:rate{window}",
                summed(POOL_LABELS, rate("serving_tokens_total", 'kind="cached"', window))
                + " / "
                + summed(POOL_LABELS, rate("serving_tokens_total", 'kind="prompt"', window)),
                f"Share of the prompt tokens that the engines had cached, over {window}.",
            )
            for window in ("30m", "1d")
        ),
    ]


def money() -> list[Recorded]:
    by_pool = f"by ({POOL_LABELS})"
    used, tokens = "serving:used_dollars_per_hour:rate5m", "serving:tokens:rate5m"
    bill = "serving:bill_dollars_per_hour:rate5m"
    every_used = f"(sum {by_pool} ({used}) or {bill} * 0)"
    failed = f"(serving:failed_dollars_per_hour:rate5m or {bill} * 0)"
    return [
        Recorded(
            bill,
            f"avg_over_time((max {by_pool} (serving_accelerators * serving_accelerator_price_dollars_per_hour))[5m:15s])",
            "What a pool costs an hour. Every gateway knows all of its machines, so that the highest counts and never the sum."
            " From gauges: where one gateway replaces another, no counter spans the window.",
        ),
        Recorded(
            used,
            f"{summed(f'{POOL_LABELS}, kind', rate('serving_used_dollars_total', window='5m'))} {PER_HOUR}",
            "The part of it that requests used, by kind of token; prompt is what had to be computed. Sums over gateways.",
        ),
        Recorded(
            "serving:failed_dollars_per_hour:rate5m",
            f"{summed(POOL_LABELS, rate('serving_failed_dollars_total', window='5m'))} {PER_HOUR}",
            "The part that went into attempts without an answer.",
        ),
        Recorded(
            "serving:idle_dollars_per_hour:rate5m",
            f"clamp_min({bill} - {every_used} - {failed}, 0)",
            "What nobody used.",
        ),
        Recorded("serving:utilisation:rate5m", f"{every_used} / {bill}", "Share of the bill that requests used."),
        *_per_million(by_pool, used, tokens, bill),
        *_compared(used, tokens, bill),
    ]


def _per_million(by_pool: str, used: str, tokens: str, bill: str) -> list[Recorded]:
    """Of each pool, by kind as used; `total` and the bill's by all that is paid, idle time included."""
    kinds = {
        "prompt": (_computed(by_pool, tokens), "Of prompt tokens that had to be computed."),
        "cached": (f'sum {by_pool} ({tokens}{{kind="cached"}})', "Of prompt tokens that were cached."),
        "output": (f'sum {by_pool} ({tokens}{{kind="output"}})', "Of output tokens."),
    }
    made = [
        Recorded(
            f"serving:dollars_per_million_{kind}_tokens:rate5m",
            f'sum {by_pool} ({used}{{kind="{kind}"}}) / (({per_second}) {PER_MILLION} > 0)',
            why,
        )
        for kind, (per_second, why) in kinds.items()
    ]
    every = f'sum {by_pool} ({tokens}{{kind=~"prompt|output"}})'
    output = f'sum {by_pool} ({tokens}{{kind="output"}})'
    return [
        *made,
        Recorded(
            "serving:dollars_per_million_total_tokens:rate5m",
            f"{bill} / ({every} {PER_MILLION} > 0)",
            "The whole bill, idle time included, over all tokens.",
        ),
        Recorded(
            "serving:bill_dollars_per_million_output_tokens:rate5m",
            f"{bill} / ({output} {PER_MILLION} > 0)",
            "The whole bill over the output tokens alone: what vendors and benchmarks call the cost of a million tokens.",
        ),
    ]


def _computed(by: str, tokens: str) -> str:
    cached = f'sum {by} ({tokens}{{kind="cached"}})'
    prompt = f'sum {by} ({tokens}{{kind="prompt"}})'
    return f"{prompt} - ({cached} or {prompt} * 0)"


def _compared(used: str, tokens: str, bill: str) -> list[Recorded]:
    """Targets beside each other, each over all of its pools of a model."""
    by = "by (namespace, model, target)"
    every = f'sum {by} ({tokens}{{kind=~"prompt|output"}})'
    name = "serving:dollars_per_million_tokens:target_rate5m"
    made = [
        Recorded(
            name,
            f'sum {by} ({used}{{kind="{kind}"}}) / (({per_second}) {PER_MILLION} > 0)',
            f"Dollars of a million {kind} tokens on each target.",
            (("kind", kind),),
        )
        for kind, per_second in (
            ("prompt", _computed(by, tokens)),
            ("cached", f'sum {by} ({tokens}{{kind="cached"}})'),
            ("output", f'sum {by} ({tokens}{{kind="output"}})'),
        )
    ]
    whole = f"sum {by} ({bill}) / ({every} {PER_MILLION} > 0)"
    cheapest = f"min by (namespace, model, kind) ({name})"
    return [
        *made,
        Recorded(name, whole, "The whole bill of a target, idle time included, over all of its tokens.", (("kind", "total"),)),
        Recorded(
            "serving:dollars_per_million_tokens:times_cheapest",
            f"{name} / on (namespace, model, kind) group_left () ({cheapest} > 0)",
            "The ratio of targets: how many times as dear each is as the cheapest one of the same model.",
        ),
    ]


def energy() -> list[Recorded]:
    engines = 'max by (namespace, pod, pool, target) (up{serving="engine"} >= bool 0)'
    by_pool = "namespace, pool, target"
    complete = (
        f"sum by ({by_pool}) (serving:device_watts:count * on (namespace, pod) group_left (pool, target) {engines})"
        f" >= on ({by_pool}) max by ({by_pool}) (serving_accelerators)"
    )
    watts = f"sum by ({by_pool}) (serving:device_watts:sum * on (namespace, pod) group_left (pool, target) {engines})"
    power = f"sum by ({POOL_LABELS}) (serving:power_watts:now)"
    tokens = "serving:tokens:rate5m"
    return [
        *(
            Recorded(
                f"serving:device_watts:{how}",
                f"{how} by (namespace, pod) ({OWN} > 0) or {how} by (namespace, pod) ({_as_ours(EXPORTED)} > 0)",
                why,
            )
            for how, why in (
                ("sum", "Watts of the accelerators of a pod, as an exporter on its node measures them."),
                ("count", "How many accelerators of the pod are measured."),
            )
        ),
        Recorded(
            "serving:power_watts:measured",
            f"max by ({POOL_LABELS}) (serving_pool_info) * on ({by_pool}) group_left () ({watts} and on ({by_pool}) {complete})",
            "Of a pool; only where every one of its accelerators is measured, so that no engine of several pods counts for half.",
            (("source", "measured"),),
        ),
        Recorded(
            "serving:power_watts:now",
            f"serving:power_watts:measured or on ({POOL_LABELS})"
            f' max by ({POOL_LABELS}, source) (serving_power_watts{{source="estimated"}})',
            "Measured where it is, else the gateway's estimate; the label source says which.",
        ),
        Recorded(
            "serving:output_tokens_per_joule:rate5m",
            f'sum by ({POOL_LABELS}) ({tokens}{{kind="output"}}) * on ({POOL_LABELS}) group_right ()'
            f" (1 / (serving:power_watts:now > 0))",
            "Output tokens a second over watts.",
        ),
        Recorded(
            "serving:tokens_per_joule:rate5m",
            f'sum by ({POOL_LABELS}) ({tokens}{{kind=~"prompt|output"}}) * on ({POOL_LABELS}) group_right ()'
            f" (1 / (serving:power_watts:now > 0))",
            "Prompt and output tokens a second over watts.",
        ),
        Recorded("serving:watts:sum", f"sum by (namespace, target) ({power})", "Watts of each target."),
    ]


def _as_ours(series: str) -> str:
    """With the labels of the measured pod, where the scrape kept the exporter's own pod under their names."""
    inner = f'label_replace({series}, "pod", "$1", "exported_pod", "(.+)")'
    return f'label_replace({inner}, "namespace", "$1", "exported_namespace", "(.+)")'


def objectives() -> list[Recorded]:
    made = [
        Recorded(
            "serving:objective_attainment:rate5m",
            "(sum by (namespace, model, pool, class, objective) ("
            + rate("serving_objective_requests_total", 'met="true"', "5m")
            + ") or sum by (namespace, model, pool, class, objective) ("
            + rate("serving_objective_requests_total", window="5m")
            + ") * 0) / (sum by (namespace, model, pool, class, objective) ("
            + rate("serving_objective_requests_total", window="5m")
            + ") > 0)",
            "Share of requests that met their objective, by class, objective and pool.",
        )
    ]
    for window in WINDOWS:
        every = summed("namespace, model", rate("serving_requests_total", f'outcome=~"ok|{OURS}"', window))
        failed = summed("namespace, model", rate("serving_requests_total", f'outcome=~"{OURS}"', window))
        labels = "namespace, model, class, objective"
        asked = summed(labels, rate("serving_objective_requests_total", window=window))
        missed = summed(labels, rate("serving_objective_requests_total", 'met="false"', window))
        made += [
            Recorded(
                f"serving:requests_failed:ratio_rate{window}",
                f"({failed} or {every} * 0) / ({every} > 0)",
                f"Share of requests that failed through this side's fault, over {window}; who asked wrongly is in neither part.",
            ),
            Recorded(
                f"serving:objective_missed:ratio_rate{window}",
                f"({missed} or {asked} * 0) / ({asked} > 0)",
                f"Share of requests that missed their objective, over {window}.",
            ),
        ]
    return made


GROUPS = {"pools": pools, "money": money, "energy": energy, "objectives": objectives}
