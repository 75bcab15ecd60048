"""Tenants: who uses it, and what is left of their limits."""

from __future__ import annotations

from .choices import NAMESPACE, TENANT
from .measures import DOLLARS
from .panels import Dashboard, Panel, Query, Row, bars, lines, stacked, stat, table
from .queries import TENANT as OF_TENANT
from .queries import rate, summed

SPACE = 'namespace=~"$namespace"'


def tenants() -> Dashboard:
    return Dashboard(
        "serving-tenants",
        "Serving / Tenants",
        "Who uses it? Requests, tokens and dollars of each tenant, what they are refused and what they have left.",
        (NAMESPACE, TENANT),
        (*_totals(), *_use(), Row("Limits"), *_limits(), Row("Dollars"), *_dollars()),
    )


def _tokens(kinds: str) -> str:
    return summed("tenant", rate("serving_tenant_tokens_total", f"{OF_TENANT}, {kinds}"))


def _per_hour(series: str) -> str:
    return f"{summed('tenant', rate(series, OF_TENANT))} * 3600"


def _totals() -> tuple[Panel, ...]:
    table_of_all = table(
        "Tenants",
        "What each tenant uses now. Dollars are machine time, not what the tenant is charged.",
        (
            (Query(summed("tenant", rate("serving_tenant_requests_total", OF_TENANT)), "requests"), "reqps"),
            (Query(_tokens('kind="prompt"'), "prompt tokens"), "suffix:tok/s"),
            (Query(_tokens('kind="cached"'), "of them cached"), "suffix:tok/s"),
            (Query(_tokens('kind="output"'), "output tokens"), "suffix:tok/s"),
            (Query(_per_hour("serving_tenant_dollars_total"), "machine dollars an hour"), DOLLARS),
        ),
        "tenant",
        width=18,
        height=8,
    )
    active = f"count({summed('tenant', rate('serving_tenant_requests_total', OF_TENANT))} > 0) or on () vector(0)"
    asked = f"sum({rate('serving_tenant_requests_total', OF_TENANT)})"
    refused = f"sum({rate('serving_limit_refusals_total', OF_TENANT)}) / {asked} or on () vector(0)"
    return (
        table_of_all,
        stat("Active tenants", "That ended a request just now.", "none", Query(active, "active"), height=8),
        stat(
            "Refused", "Share of the requests that were refused for a limit.", "percentunit", Query(refused, "refused"), height=8
        ),
    )


def _use() -> tuple[Panel, ...]:
    return (
        stacked(
            "Requests by tenant",
            "Ended requests a second.",
            "reqps",
            Query(summed("tenant", rate("serving_tenant_requests_total", OF_TENANT)), "{{tenant}}"),
        ),
        stacked(
            "Output tokens by tenant",
            "Tokens a second that engines wrote for each.",
            "suffix:tok/s",
            Query(_tokens('kind="output"'), "{{tenant}}"),
        ),
        stacked(
            "Prompt tokens by tenant",
            "Tokens a second that engines read for each, cached ones included.",
            "suffix:tok/s",
            Query(_tokens('kind="prompt"'), "{{tenant}}"),
        ),
    )


def _limits() -> tuple[Panel, ...]:
    labels = "namespace, tenant, limit"
    left = f"min by ({labels}) (serving_limit_left{{{OF_TENANT}}})"
    most = f"max by ({labels}) (serving_tenant_limit{{{OF_TENANT}}})"
    return (
        lines(
            "Limits left",
            "What is left of each limit, as a share of it, at the gateway that let most through. Below a tenth of the "
            "dollars it is an "
            "alert.",
            "percentunit",
            Query(f"{left} / {most}", "{{tenant}} {{limit}}"),
            most=1,
        ),
        stacked(
            "Refused for a limit",
            "Requests a second that were refused since their tenant had used up a limit.",
            "reqps",
            Query(
                f"{summed('tenant, limit', rate('serving_limit_refusals_total', OF_TENANT))} or {_no_refusals()}",
                "{{tenant}} {{limit}}",
            ),
        ),
        stacked(
            "Refused at the door",
            "Requests a second that no engine saw, by the error's code, of all tenants and of nobody.",
            "reqps",
            Query(f"{summed('reason', rate('serving_rejections_total', SPACE))} or on () vector(0)", "{{reason}}"),
        ),
    )


def _no_refusals() -> str:
    """Zero for each tenant that has a limit."""
    return f"max by (tenant, limit) (serving_tenant_limit{{{OF_TENANT}}}) * 0"


def _dollars() -> tuple[Panel, ...]:
    spent = summed("tenant", f"increase(serving_tenant_dollars_total{{{OF_TENANT}}}[$__range])")
    used = f"{summed('tenant', rate('serving_tenant_dollars_total', OF_TENANT))}"
    return (
        bars(
            "Spent in the time shown",
            "Machine dollars of each tenant over the whole time of this page.",
            DOLLARS,
            Query(spent, "{{tenant}}"),
            width=8,
            height=7,
            decimals=2,
        ),
        stacked(
            "Dollars an hour",
            "The part of the machines' price that each tenant's requests used.",
            DOLLARS,
            Query(_per_hour("serving_tenant_dollars_total"), "{{tenant}}"),
        ),
        lines(
            "Charged for a dollar used",
            "What the tenant is charged by the price list over the machine dollars that it used; only where prices are "
            "configured.",
            "suffix:×",
            Query(f"{summed('tenant', rate('serving_tenant_charged_dollars_total', OF_TENANT))} / ({used} > 0)", "{{tenant}}"),
        ),
    )
