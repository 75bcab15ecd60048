"""Every Prometheus series of the gateway is defined in this package, as data; `docs/metrics.md` is made of it.

Label values come from closed sets: names of the settings and words of ours, never what a client wrote. Histograms carry model
and pool only; tenants and endpoints have counters and gauges.
"""

from __future__ import annotations

from serving.observability.series import fleet, money, peers, process, quality, requests, routing, tenants
from serving.observability.series.definition import Series, defined_in

GROUPS: dict[str, tuple[Series, ...]] = {
    "Requests": defined_in(requests),
    "Pools and endpoints": defined_in(fleet),
    "Answers": defined_in(quality),
    "Routing": defined_in(routing),
    "Several gateways": defined_in(peers),
    "Tenants": defined_in(tenants),
    "Money and energy": defined_in(money),
    "The process": defined_in(process),
}

LABELS: dict[str, str] = {
    "model": "a model that endpoints serve; empty where the request named none that exists",
    "pool": "a pool of the settings",
    "target": "the target of endpoints, as the settings name it",
    "endpoint": "an endpoint of the settings, or one that discovery found; gone some time after it has left",
    "tenant": "a tenant that keys name; of more than 500 in the life of a process the later ones are `other`",
    "route": "one of the routes that engines answer",
    "outcome": "how a request ended, one of a closed set",
    "result": "how an attempt at an engine, a trace or a record ended; what became of news between gateways",
    "reason": "a word of ours: an error's code, why an endpoint was chosen or left out, why news of a gateway were not believed",
    "kind": "prompt, cached or output",
    "asked": "a name under `models`",
    "served": "a model that endpoints serve",
    "state": "closed, open or half_open",
    "class": "interactive, standard or batch",
    "objective": "ttft or inter_chunk",
    "met": "true or false",
    "limit": "requests, tokens, concurrency or dollars",
    "source": "estimated: from the target's rated power. What exporters measure is no series of the gateway's",
    "version": "the gateway's own",
}
