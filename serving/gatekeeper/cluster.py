"""What the controller reads and writes in Kubernetes."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Protocol
from urllib.parse import quote

import orjson

from serving.fleet.mirror import ApiFailed, Document
from serving.gatekeeper.pods import CONDITION, Condition, GatedPod

COMPONENT = "serving-gate"
NOT_FOUND, CONFLICT = 404, 409
_MERGED_BY_TYPE = "application/strategic-merge-patch+json"
"""Conditions of other types are left alone."""


class WritingApi(Protocol):
    """The API server. Raises: ApiFailed."""

    async def get(self, path: str, *, timeout_seconds: float) -> bytes: ...

    def lines(self, path: str, *, timeout_seconds: float) -> AsyncGenerator[bytes, None]: ...

    async def send(
        self, method: str, path: str, document: object, *, content_type: str = "application/json", timeout_seconds: float
    ) -> bytes: ...


class Cluster:
    """One namespace. Every method raises ApiFailed."""

    def __init__(self, api: WritingApi, namespace: str, timeout_seconds: float) -> None:
        self.api = api
        self.namespace = namespace
        self._timeout_seconds = timeout_seconds
        where = quote(namespace, safe="")
        self.core = f"/api/v1/namespaces/{where}"
        self.leases = f"/apis/coordination.k8s.io/v1/namespaces/{where}/leases"

    async def find(self, path: str) -> Document | None:
        """An object; None: there is none."""
        try:
            return _object(await self.api.get(path, timeout_seconds=self._timeout_seconds))
        except ApiFailed as error:
            if error.status == NOT_FOUND:
                return None
            raise

    async def create(self, path: str, document: Document) -> Document:
        return _object(await self.api.send("POST", path, document, timeout_seconds=self._timeout_seconds))

    async def replace(self, path: str, document: Document) -> Document:
        """Only the version that the document says it is."""
        return _object(await self.api.send("PUT", path, document, timeout_seconds=self._timeout_seconds))

    async def config_map(self, name: str) -> Document | None:
        return await self.find(f"{self.core}/configmaps/{quote(name, safe='')}")

    async def keep_config_map(self, document: Document) -> str:
        """Create it, under another name where that one is taken, since nothing is overwritten. Returns the name."""
        path = f"{self.core}/configmaps"
        try:
            await self.create(path, document)
        except ApiFailed as error:
            if error.status != CONFLICT:
                raise
            document["metadata"]["name"] += f"-{secrets.token_hex(2)}"
            await self.create(path, document)
        return str(document["metadata"]["name"])

    async def set_condition(self, pod: GatedPod, condition: Condition) -> None:
        """Nothing happens to another pod of the same name: the server refuses the uid."""
        changes = pod.condition is None or pod.condition.status != condition.status
        shown = {"type": CONDITION, "status": condition.status, "reason": condition.reason, "message": condition.message}
        if changes:
            shown["lastTransitionTime"] = now()
        patch = {"metadata": {"uid": pod.uid}, "status": {"conditions": [shown]}}
        path = f"{self.core}/pods/{quote(pod.name, safe='')}/status"
        await self.api.send("PATCH", path, patch, content_type=_MERGED_BY_TYPE, timeout_seconds=self._timeout_seconds)

    async def event(self, kind: str, name: str, uid: str, *, warning: bool, reason: str, message: str) -> None:
        """An Event on an object of the core API, as `kubectl describe` shows it."""
        at = now()
        await self.create(
            f"{self.core}/events",
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": f"{name[:200]}.{secrets.token_hex(8)}", "namespace": self.namespace},
                "involvedObject": {"apiVersion": "v1", "kind": kind, "namespace": self.namespace, "name": name, "uid": uid},
                "type": "Warning" if warning else "Normal",
                "reason": reason,
                "message": message[:1024],
                "source": {"component": COMPONENT},
                "firstTimestamp": at,
                "lastTimestamp": at,
                "count": 1,
            },
        )


def now() -> str:
    """As Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _object(body: bytes) -> Document:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = None
    if not isinstance(document, dict):
        raise ApiFailed("the answer is not a JSON object")
    return document
