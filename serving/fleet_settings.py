"""The settings of where a pool's engines are found in Kubernetes, and of what is read from their metrics."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from serving.setting_types import Seconds, Section

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its token, the API server's authority and its own namespace."""

_DnsLabel = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
_PortName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?$")]


def _selector(selector: str) -> str:
    if not selector.strip() or not selector.isascii() or not selector.isprintable():
        raise ValueError("must be a label selector as kubectl takes it, as app=vllm,tier in (a,b)")
    return selector.strip()


def _api_url(url: str) -> str:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("must be https://HOST:PORT or http://HOST:PORT") from None
    is_plain = parts.path in ("", "/") and not parts.query and not parts.fragment and not parts.username
    is_printable = re.fullmatch(r"[!-~]+", url) is not None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or not is_plain or not is_printable:
        raise ValueError("must be https://HOST:PORT or http://HOST:PORT, without a path, query or user")
    return url.rstrip("/")


class KubernetesPoolSettings(Section):
    """Which of a cluster's pods are the engines of a pool: those behind a Service, or those with certain labels."""

    service: _DnsLabel | None = None
    """A Service; its EndpointSlices are read. Cheaper for the API server than `selector`."""
    selector: Annotated[str, AfterValidator(_selector)] | None = None
    """A label selector as kubectl takes it; the pods themselves are read."""
    namespace: _DnsLabel | None = None
    """None: the gateway's own."""
    port: Annotated[int, Field(ge=1, le=65535)] | _PortName | None = None
    """The engine's port by number, or by its name in the Service or the pod; None: the only one that the Service has."""

    @model_validator(mode="after")
    def _one_way(self) -> KubernetesPoolSettings:
        if (self.service is None) == (self.selector is None):
            raise ValueError("give exactly one of service and selector")
        if self.selector is not None and self.port is None:
            raise ValueError("port: is missing; with a selector, say the port's number or its name in the pod")
        return self


class KubernetesSettings(Section):
    """The API server that pools with `kubernetes` are read from."""

    api_url: Annotated[str, AfterValidator(_api_url)] | None = None
    """As https://HOST:PORT. None: the server of the cluster in which this process runs, with its pod's token and authority."""
    token_file: Path | None = None
    """A bearer token; read again for each request, since tokens are renewed in place. None beside `api_url`: none is sent."""
    ca: Path | None = None
    """PEM file of the authorities that the server is verified with. None beside `api_url`: those of the machine."""
    list_seconds: Annotated[float, Field(ge=1, le=3600)] = 5.0
    """Between two full lists, which are the truth; a watch tells of changes in between, at once."""
    timeout_seconds: Seconds = 5.0
    """For connecting, and for each answer to a list."""


class LoadSettings(Section):
    """The reading of the engines' own metrics: how many requests they run and hold, and how full their caches are."""

    enabled: bool = True
    period_seconds: Seconds = 2.0
    """Between two reads of one engine."""
    timeout_seconds: Seconds = 2.0
    stale_seconds: Seconds = 10.0
    """What is older says nothing any more: the engine's load is then unknown, not zero."""

    @model_validator(mode="after")
    def _not_stale_at_once(self) -> LoadSettings:
        if self.stale_seconds <= self.period_seconds:
            raise ValueError("stale_seconds must be more than period_seconds, or every load would be unknown between two reads")
        return self
