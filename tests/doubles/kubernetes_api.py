"""Kubernetes' API server on a real socket, as far as ours see it: lists in pages, watches, versions, bookmarks, writes, faults.

async with KubernetesApi() as api:
    api.add_pod("e-1", "127.0.0.1", labels={"app": "engine"})      # and its place in the EndpointSlices of each Service
    api.stalled = True                                             # watches fall silent
    api.remove_pod("e-1")
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from tests.doubles.kubernetes_writes import VERBS, Write, judge_readiness, place_of, write

Document = dict[str, Any]
PODS = "/api/v1/namespaces/serving/pods"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/serving/endpointslices"
CONFIG_MAPS = "/api/v1/namespaces/serving/configmaps"
EVENTS = "/api/v1/namespaces/serving/events"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/serving/leases"
KINDS = {PODS: "Pod", SLICES: "EndpointSlice", CONFIG_MAPS: "ConfigMap", EVENTS: "Event", LEASES: "Lease"}
VERSIONS = {PODS: "v1", SLICES: "discovery.k8s.io/v1", CONFIG_MAPS: "v1", EVENTS: "v1", LEASES: "coordination.k8s.io/v1"}


@dataclass
class Event:
    version: int
    kind: str
    path: str
    before: Document | None
    after: Document | None


@dataclass
class Asked:
    """One request: its verb (get, list, watch, create, update, patch, delete), path, query, headers and body."""

    verb: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes = b""


@dataclass(eq=False)
class Watch:
    query: dict[str, str]
    path: str
    events: asyncio.Queue[Event | None] = field(default_factory=asyncio.Queue)
    task: asyncio.Task[None] | None = None


class KubernetesApi:
    """Everything public may be changed while it runs."""

    def __init__(
        self, *, port: int = 0, tls: ssl.SSLContext | None = None, services: Mapping[str, Mapping[str, str]] | None = None
    ):
        self.port = port
        self.tls = tls
        self.services = {name: dict(selector) for name, selector in (services or {"engines": {"app": "engine"}}).items()}
        """The pods that each Service selects."""
        self.token: str | None = None
        """The one that is wanted; None: none."""
        self.forbidden: set[str] = set()
        """Verbs that the role does not have, for all that there is or as `patch pods/status`."""
        self.failing: int | None = None
        """The status of every answer."""
        self.silent = False
        """Requests are taken and not answered."""
        self.stalled = False
        """Watches stay open and say nothing any more, not even their end."""
        self.losing = False
        """Watches leave events out."""
        self.page_objects: int | None = None
        """Fewer objects a page than was asked for."""
        self.expires_continues = False
        self.compacted = 0
        """Versions below are too old for a watch."""
        self.asked: list[Asked] = []
        self.objects: dict[str, dict[str, Document]] = {path: {} for path in KINDS}
        self.watches: set[Watch] = set()
        self._version = 100
        self._history: list[Event] = []
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None
        self._faults: list[Exception] = []
        for service in self.services:
            self._write_slices(service)

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._connections.values()):
            writer.transport.abort()
        await asyncio.gather(*self._connections, return_exceptions=True)
        self._connections.clear()
        self.watches.clear()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()
        if self._faults and error is None:
            raise self._faults[0]

    def drop_watches(self) -> None:
        """End them as a load balancer does."""
        for watch in list(self.watches):
            watch.events.put_nowait(None)

    def count(self, verb: str) -> int:
        return sum(each.verb == verb for each in self.asked)

    # The cluster

    def add_pod(
        self,
        name: str,
        address: str,
        *,
        port: int = 8000,
        labels: Mapping[str, str] | None = None,
        uid: str = "",
        ready: bool = True,
        gates: Sequence[str] = (),
        **engine: Any,
    ) -> None:
        """`gates`: types of conditions without which it is not ready. `engine`: more fields of its container, and annotations."""
        annotations = engine.pop("annotations", {})
        container = {"name": "engine", "ports": [{"name": "http", "containerPort": port}], **engine}
        labels = dict(labels or {"app": "engine"})
        pod: Document = {
            "metadata": {"name": name, "uid": uid or f"{name}-uid-0", "labels": labels, "annotations": annotations},
            "spec": {"containers": [container], "readinessGates": [{"conditionType": gate} for gate in gates]},
            "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": []},
        }
        self._set_containers_ready(pod, ready)
        self._write_pod(pod)

    @staticmethod
    def _set_containers_ready(pod: Document, ready: bool) -> None:
        """What the kubelet says; the pod is ready when its gates say so, too."""
        rest = [each for each in pod["status"]["conditions"] if each["type"] not in ("Ready", "ContainersReady")]
        own = [{"type": name, "status": str(ready)} for name in ("Ready", "ContainersReady")]
        pod["status"]["conditions"] = [*own, *rest]
        judge_readiness(pod)

    def set_ready(self, name: str, ready: bool) -> None:
        pod = self._pod(name)
        self._set_containers_ready(pod, ready)
        self._write_pod(pod)

    def set_labels(self, name: str, labels: Mapping[str, str]) -> None:
        pod = self._pod(name)
        pod["metadata"]["labels"] = dict(labels)
        self._write_pod(pod)

    def terminate_pod(self, name: str) -> None:
        """It was told to end, and does not say so of itself: it is still ready."""
        pod = self._pod(name)
        pod["metadata"]["deletionTimestamp"] = "2026-11-30T00:00:00Z"
        self._write_pod(pod)

    def remove_pod(self, name: str) -> None:
        pod = self.objects[PODS].pop(name)
        self._happened("DELETED", PODS, pod, None)
        self._write_all_slices()

    def write(self, path: str, document: Document) -> None:
        """Any object at all, as one of another controller's."""
        before = self.objects[path].get(document["metadata"]["name"])
        self.objects[path][document["metadata"]["name"]] = document
        self._happened("ADDED" if before is None else "MODIFIED", path, before, document)

    def remove(self, path: str, name: str) -> None:
        self._happened("DELETED", path, self.objects[path].pop(name), None)

    def wrote(self, path: str, document: Document) -> None:
        """What a client wrote, with what follows from it."""
        if path == PODS:
            judge_readiness(document)
            self._write_pod(document)
        else:
            self.write(path, document)

    def is_ready(self, name: str) -> bool:
        return bool(self.objects[PODS][name]["status"]["conditions"][0]["status"] == "True")

    def _pod(self, name: str) -> Document:
        return dict(json.loads(json.dumps(self.objects[PODS][name])))

    def _write_pod(self, pod: Document) -> None:
        self.write(PODS, pod)
        self._write_all_slices()

    def _write_all_slices(self) -> None:
        for service in self.services:
            self._write_slices(service)

    def _write_slices(self, service: str) -> None:
        """As the EndpointSlice controller: one slice for each port of the pods, and none of it without a change."""
        selector = self.services[service]
        by_port: dict[int, list[Document]] = {}
        for pod in self.objects[PODS].values():
            if selector.items() <= pod["metadata"]["labels"].items():
                ready = pod["status"]["conditions"][0]["status"] == "True"
                leaving = "deletionTimestamp" in pod["metadata"]
                endpoint = {
                    "addresses": [pod["status"]["podIP"]],
                    "conditions": {"ready": ready and not leaving, "serving": ready, "terminating": leaving},
                    "targetRef": {"kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]},
                }
                by_port.setdefault(pod["spec"]["containers"][0]["ports"][0]["containerPort"], []).append(endpoint)
        slices = {
            f"{service}-{port}": {
                "metadata": {"name": f"{service}-{port}", "labels": {"kubernetes.io/service-name": service}},
                "addressType": "IPv4",
                "endpoints": endpoints,
                "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
            }
            for port, endpoints in by_port.items()
        }
        mine = {
            n: d for n, d in self.objects[SLICES].items() if d["metadata"]["labels"].get("kubernetes.io/service-name") == service
        }
        for name in mine.keys() - slices.keys():
            self._happened("DELETED", SLICES, self.objects[SLICES].pop(name), None)
        for name, document in slices.items():
            if mine.get(name, {}).get("endpoints") != document["endpoints"]:
                self.write(SLICES, document)

    def _happened(self, kind: str, path: str, before: Document | None, after: Document | None) -> None:
        self._version += 1
        for document in (before, after):
            if document is not None:
                document["metadata"]["resourceVersion"] = str(self._version)
        event = Event(self._version, kind, path, before, after)
        self._history.append(event)
        if self.losing:
            return
        for watch in self.watches:
            watch.events.put_nowait(event)

    # The server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        try:
            while await self._answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except Exception as error:  # noqa: BLE001 raised at the end
            # To write to a client that has just gone is a RuntimeError of uvloop's.
            if not (isinstance(error, RuntimeError) and writer.transport.is_closing()):
                self._faults.append(error)
        finally:
            self._connections.pop(task, None)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii")
        first, *lines = head.split("\r\n")[:-2]
        method, target, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        collection, name, subresource = place_of(parts.path, self.objects)
        verb = VERBS[method] if method != "GET" or name else "list"
        verb = "watch" if query.get("watch") in ("1", "true") else verb
        self.asked.append(Asked(verb, parts.path, query, headers, body))
        if self.silent:
            await reader.read()
            return False
        if self.token is not None and headers.get("authorization") != f"Bearer {self.token}":
            return await _status(writer, 401, "Unauthorized")
        if self.failing is not None:
            return await _status(writer, self.failing, "the server is unable to handle the request")
        resource = "/".join(filter(None, (collection.rpartition("/")[2], subresource)))
        if self.forbidden & {verb, f"{verb} {resource}"}:
            return await _status(writer, 403, f'{resource} is forbidden: User "system:serviceaccount:serving:x" cannot {verb}')
        if collection not in self.objects:
            return await _status(writer, 404, "the server could not find the requested resource")
        if verb not in ("list", "watch"):
            document = json.loads(body) if body else {}
            kind = headers.get("content-type", "")
            return await _send(writer, *write(self, Write(verb, collection, name, subresource, document, kind)))
        if verb == "list":
            return await self._list(writer, parts.path, query)
        return await self._watch(reader, writer, parts.path, query)

    async def _list(self, writer: asyncio.StreamWriter, path: str, query: dict[str, str]) -> bool:
        if "continue" in query and self.expires_continues:
            return await _status(writer, 410, "The provided continue parameter is too old")
        found = [each for _, each in sorted(self.objects[path].items()) if _matches(query, each)]
        begin, size = int(query.get("continue", 0)), min(int(query.get("limit", 500)), self.page_objects or 500)
        page = found[begin : begin + size]
        metadata: Document = {"resourceVersion": str(self._version)}
        if begin + size < len(found):
            metadata |= {"continue": str(begin + size), "remainingItemCount": len(found) - begin - size}
        document = {"kind": f"{KINDS[path]}List", "apiVersion": VERSIONS[path], "metadata": metadata, "items": page or None}
        return await _send(writer, 200, document)

    async def _watch(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, query: dict[str, str]) -> bool:
        watch = Watch(query, path)
        since = int(query["resourceVersion"])
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        if since < self.compacted:
            words = {"kind": "Status", "code": 410, "reason": "Expired", "message": f"too old resource version: {since}"}
            _write_line(writer, {"type": "ERROR", "object": words})
        else:
            for event in self._history:
                if event.version > since:
                    watch.events.put_nowait(event)
            self.watches.add(watch)
            left = asyncio.create_task(reader.read())  # the client leaves
            try:
                async with asyncio.timeout(float(query["timeoutSeconds"])):
                    await self._tell(writer, watch, left)
            except TimeoutError:
                if self.stalled:
                    await left
                    return False
                _write_line(writer, {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(self._version)}}})
            finally:
                self.watches.discard(watch)
                left.cancel()
                await asyncio.gather(left, return_exceptions=True)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _tell(self, writer: asyncio.StreamWriter, watch: Watch, left: asyncio.Task[bytes]) -> None:
        while True:
            waiting = asyncio.create_task(watch.events.get())
            try:
                await asyncio.wait({waiting, left}, return_when=asyncio.FIRST_COMPLETED)
                if left.done():
                    raise ConnectionResetError
                event = waiting.result()
            finally:
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
            if event is None:
                return
            line = _event_line(watch, event)
            if line is not None and not self.stalled:
                _write_line(writer, line)
                await writer.drain()


def _event_line(watch: Watch, event: Event) -> Document | None:
    """An event as a watch with a selector tells it: what matches no longer is deleted, what begins to match is added."""
    if event.path != watch.path:
        return None
    was = event.before is not None and _matches(watch.query, event.before)
    is_now = event.after is not None and _matches(watch.query, event.after)
    if is_now:
        return {"type": "MODIFIED" if was else "ADDED", "object": event.after}
    return {"type": "DELETED", "object": event.after or event.before} if was else None


def _matches(query: Mapping[str, str], document: Document) -> bool:
    wanted = [pair.partition("=") for pair in query.get("labelSelector", "").split(",") if pair]
    labels = document["metadata"].get("labels", {})
    return all(labels.get(name) == value for name, _, value in wanted)


async def _status(writer: asyncio.StreamWriter, code: int, message: str) -> bool:
    return await _send(
        writer, code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
    )


async def _send(writer: asyncio.StreamWriter, status: int, document: Document) -> bool:
    body = json.dumps(document).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    return True


def _write_line(writer: asyncio.StreamWriter, document: Document) -> None:
    line = json.dumps(document).encode() + b"\n"
    # In two chunks: a line need not come whole.
    for piece in (line[: len(line) // 2], line[len(line) // 2 :]):
        writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
