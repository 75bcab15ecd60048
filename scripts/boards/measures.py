"""Figures that more than one dashboard shows: throughput of a node, dollars of a million tokens, tokens of a joule."""

from __future__ import annotations

from .queries import TARGET, rate

TOKENS_PER_SECOND = "suffix:tok/s"
TOKENS_PER_JOULE = "suffix:tok/J"
DOLLARS = "currencyUSD"
ALL = 'kind=~"prompt|output"'


def tokens(by: str, kinds: str, matchers: str = TARGET) -> str:
    """Tokens a second; `kinds` is a matcher of the label kind."""
    return f"sum by ({by}) ({rate('serving_tokens_total', f'{matchers}, {kinds}')})"


def nodes(by: str, matchers: str = TARGET) -> str:
    """How many nodes the accelerators make up; an engine on a part of one counts for that part."""
    labels = "namespace, model, pool, target"
    each = f"max by ({labels}) (serving_accelerators{{{matchers}}})"
    whole = f"max by ({labels}) (serving_accelerators_per_node{{{matchers}}})"
    return f"sum by ({by}) ({each} / {whole})"


def tokens_per_node(by: str, kinds: str, matchers: str = TARGET) -> str:
    return f"{tokens(by, kinds, matchers)} / {nodes(by, matchers)}"


def per_million(by: str, kind: str, matchers: str = TARGET) -> str:
    """Dollars of a million tokens, over all pools of what `by` names."""
    per_second = f'sum by ({by}) (serving:tokens:rate5m{{{matchers}, kind="{kind}"}})'
    if kind == "prompt":
        per_second += f' - (sum by ({by}) (serving:tokens:rate5m{{{matchers}, kind="cached"}}) or {per_second} * 0)'
    used = f'sum by ({by}) (serving:used_dollars_per_hour:rate5m{{{matchers}, kind="{kind}"}})'
    return f"{used} / (({per_second}) * 3600 / 1e6 > 0)"


def bill_per_million(by: str, kinds: str, matchers: str = TARGET) -> str:
    """The whole bill, idle time included, over the tokens of some kinds."""
    bill = f"sum by ({by}) (serving:bill_dollars_per_hour:rate5m{{{matchers}}})"
    return f"{bill} / (sum by ({by}) (serving:tokens:rate5m{{{matchers}, {kinds}}}) * 3600 / 1e6 > 0)"


def per_joule(by: str, matchers: str = TARGET) -> str:
    """Output tokens of a joule; the label source says whether the watts are measured."""
    made = f'sum by ({by}) (serving:tokens:rate5m{{{matchers}, kind="output"}})'
    return f"{made} / on ({by}) group_right () sum by ({by}, source) (serving:power_watts:now{{{matchers}}})"
