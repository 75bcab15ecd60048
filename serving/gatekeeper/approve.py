"""`serving gate approve` and `serving gate verdicts`: what people say about configurations, and what they see of them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from serving.core.errors import ConfigurationError
from serving.fleet.mirror import ApiFailed, Mirror
from serving.fleet_settings import KubernetesSettings
from serving.gatekeeper.cluster import Cluster, WritingApi, now
from serving.gatekeeper.records import Approval, Kept, config_map, kept, selector
from serving.gatekeeper.standing import Standing, Standings

LEAST_DIGITS = 8


@dataclass(frozen=True, slots=True)
class Place:
    """Where the records of one controller are."""

    api: WritingApi
    namespace: str
    name: str
    access: KubernetesSettings
    owner: str | None = None


async def read_standings(place: Place) -> Standings:
    """Raises: ConfigurationError."""
    path = Cluster(place.api, place.namespace, place.access.timeout_seconds).core + "/configmaps"
    mirror: Mirror[Kept] = Mirror(path, {"labelSelector": selector(place.name)}, kept, place.api, place.access)
    try:
        await mirror.read_list()
    except ApiFailed as error:
        raise ConfigurationError(f"the verdicts cannot be listed: {error}") from None
    return Standings.of(mirror.objects.values())


async def approve(place: Place, digest: str, *, reason: str, by: str) -> Approval:
    """Let a configuration serve whatever the gate said of it, by an immutable ConfigMap and an Event.

    `digest`: at least 8 of its first digits.

    Raises:
        ConfigurationError: there is no such verdict, it needs no approval, or it cannot be written.
    """
    standings = await read_standings(place)
    found, standing = _find(standings, digest)
    verdict = standing.verdict
    assert verdict is not None
    if verdict.outcome == "pass":
        raise ConfigurationError(f"{found[:16]} has passed: it needs no approval")
    if standing.approval is not None:
        raise ConfigurationError(f"{found[:16]} was approved by {standing.approval.by} at {standing.approval.at} already")
    said = f"{verdict.outcome}: {verdict.reason}"
    approval = Approval(digest=found, reason=reason, by=by, at=now(), said=said)
    cluster = Cluster(place.api, place.namespace, place.access.timeout_seconds)
    try:
        owner = await cluster.config_map(place.owner) if place.owner is not None else None
        document = config_map(place.name, standing.pool, approval, owner=owner)
        written = await cluster.create(f"{cluster.core}/configmaps", document)
    except ApiFailed as error:
        raise ConfigurationError(f"the approval cannot be written: {error}") from None
    name, uid = document["metadata"]["name"], str(written.get("metadata", {}).get("uid", ""))
    with contextlib.suppress(ApiFailed):  # the approval holds without it, and the pods get events of their own
        message = f"{by} lets {found[:16]} serve ({said}): {reason}"
        await cluster.event("ConfigMap", name, uid, warning=True, reason="QualityApproved", message=message)
    return approval


def _find(standings: Standings, digest: str) -> tuple[str, Standing]:
    judged = {full: standing for full, standing in standings.by_digest.items() if standing.verdict is not None}
    wanted = digest.lower()
    found = [full for full in judged if full.startswith(wanted)]
    if len(wanted) < LEAST_DIGITS or len(found) != 1:
        known = ", ".join(sorted(full[:16] for full in judged)) or "none"
        raise ConfigurationError(
            f"DIGEST: {digest!r} must be the first {LEAST_DIGITS} digits or more of one judged configuration; there are: {known}"
        )
    return found[0], judged[found[0]]
