"""What EndpointSlices and pods say about engines. An object that makes no sense says nothing, and stops no reading of others."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from serving.fleet.membership import found_at
from serving.fleet.store import Endpoint, Withheld
from serving.settings import PoolSettings

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sighting:
    """An address of a pod, as one object tells it."""

    address: str
    port: int | None
    """None: the object does not say which, as `reason` tells."""
    pod: str
    uid: str
    reason: str
    """Why it gets no new requests; empty: it does get them."""


def sightings_in_slice(document: Document, port: int | str | None) -> list[Sighting]:
    """The engines in an EndpointSlice; `port` as in the settings."""
    found = _port_of_slice(document, port)
    return [sighting for each in _list(document, "endpoints") for sighting in _in_endpoint(each, found)]


def _in_endpoint(endpoint: Document, port: int | str) -> Iterator[Sighting]:
    """`port` is a number, or why there is none."""
    target = _dict(endpoint, "targetRef")
    conditions = _dict(endpoint, "conditions")
    # An absent condition is to be taken for the good one; a Service may publish addresses as ready that do not serve.
    if conditions.get("terminating") is True:
        reason = "terminating"
    elif conditions.get("ready") is False or conditions.get("serving") is False:
        reason = "not ready"
    else:
        reason = port if isinstance(port, str) else ""
    for address in _addresses(endpoint.get("addresses")):
        number = port if isinstance(port, int) else None
        yield Sighting(address, number, _text(target, "name"), _text(target, "uid"), reason)


def _port_of_slice(document: Document, port: int | str | None) -> int | str:
    """The port's number, or why there is none."""
    if isinstance(port, int):
        return port
    ports = _list(document, "ports")
    found = [each.get("port") for each in ports if port is None or each.get("name") == port]
    number = found[0] if len(found) == 1 else None
    if type(number) is int and 0 < number < 65536:
        return number
    if port is None and len(found) > 1:
        return f"its Service has {len(found)} ports; name one as kubernetes.port"
    return "its Service has no port" if port is None else f"its Service has no port {port}"


def sightings_in_pod(document: Document, port: int | str) -> list[Sighting]:
    """The engine in a pod: its addresses, of which there are none before it has a node."""
    metadata, status = _dict(document, "metadata"), _dict(document, "status")
    number = port if isinstance(port, int) else _port_of_pod(document, port)
    if status.get("phase") in ("Succeeded", "Failed"):
        return []
    ready = any(each.get("type") == "Ready" and each.get("status") == "True" for each in _list(status, "conditions"))
    if metadata.get("deletionTimestamp") is not None:
        reason = "terminating"
    elif not ready:
        reason = "not ready"
    else:
        reason = "" if number is not None else f"it has no port {port}"
    addresses = _addresses([status.get("podIP"), *(each.get("ip") for each in _list(status, "podIPs"))])
    return [Sighting(each, number, _text(metadata, "name"), _text(metadata, "uid"), reason) for each in addresses]


def _port_of_pod(document: Document, name: str) -> int | None:
    for container in _list(_dict(document, "spec"), "containers"):
        for each in _list(container, "ports"):
            number = each.get("containerPort")
            if each.get("name") == name and type(number) is int and 0 < number < 65536:
                return int(number)
    return None


def members(pool: PoolSettings, sightings: Iterable[Sighting]) -> tuple[list[Endpoint], list[Withheld]]:
    """The endpoints of a pool, and the engines that get no new requests, in the order of their names.

    A pod is one engine at each port, however many addresses it has (two families have two slices), and however many slices name
    it while they are rewritten. What any of them says against it counts, but for that its port is not told there.
    """
    pods: dict[tuple[str, int | None], list[Sighting]] = {}
    for sighting in sightings:
        pods.setdefault((sighting.uid or sighting.address, sighting.port), []).append(sighting)
    for pod in {pod for pod, port in pods if port is not None}:
        pods.pop((pod, None), None)
    endpoints, withheld = [], []
    for found in pods.values():
        first = min(found, key=lambda each: (":" in each.address, each.address))
        reason = max(each.reason for each in found)
        endpoint = found_at(pool, first.address, first.port, pod=first.pod, uid=first.uid)
        if reason:
            withheld.append(Withheld(endpoint.name, pool.name, pool.model, endpoint.pod, reason))
        else:
            endpoints.append(endpoint)
    return sorted(endpoints, key=lambda each: each.name), sorted(withheld, key=lambda each: each.name)


def _addresses(found: Any) -> list[str]:
    """The IP addresses among values of any kind, each once."""
    addresses: list[str] = []
    for each in found if isinstance(found, list) else ():
        try:
            address = str(ipaddress.ip_address(each)) if isinstance(each, str) else ""
        except ValueError:
            continue
        if address and "%" not in address and address not in addresses:
            addresses.append(address)
    return addresses


def _dict(document: Document, key: str) -> Document:
    value = document.get(key)
    return value if isinstance(value, dict) else {}


def _list(document: Document, key: str) -> list[Document]:
    value = document.get(key)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _text(document: Document, key: str) -> str:
    value = document.get(key)
    return value if isinstance(value, str) else ""
