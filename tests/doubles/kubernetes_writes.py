"""What writing to Kubernetes' API server does, and what it refuses, as far as ours write to it."""

from __future__ import annotations

import copy
import json
from collections.abc import Collection
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

Document = dict[str, Any]
VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
MERGED_BY_TYPE = "application/strategic-merge-patch+json"
_uids = count()


class Holder(Protocol):
    objects: dict[str, dict[str, Document]]

    def wrote(self, path: str, document: Document) -> None: ...

    def remove(self, path: str, name: str) -> None: ...


@dataclass
class Write:
    verb: str
    collection: str
    name: str
    subresource: str
    document: Document
    content_type: str


def place_of(path: str, collections: Collection[str]) -> tuple[str, str, str]:
    """The collection of a path, the object's name and its subresource, each empty where there is none."""
    if path in collections:
        return path, "", ""
    for end in (1, 2):
        parts = path.rsplit("/", end)
        if parts[0] in collections:
            return parts[0], parts[1], parts[2] if end == 2 else ""
    return path, "", ""


def judge_readiness(pod: Document) -> None:
    """As the kubelet: ready when the containers are and each readiness gate's condition is True. Ready stays the first."""
    conditions = {each["type"]: each for each in pod["status"]["conditions"]}
    wanted = ["ContainersReady", *(gate["conditionType"] for gate in pod["spec"].get("readinessGates", []))]
    conditions["Ready"]["status"] = str(all(conditions.get(name, {}).get("status") == "True" for name in wanted))


def write(api: Holder, asked: Write) -> tuple[int, Document]:
    """The answer's status and body."""
    there = api.objects[asked.collection]
    if asked.verb == "create":
        return _create(api, asked)
    if asked.name not in there:
        return _status(404, f'"{asked.name}" not found')
    before = there[asked.name]
    if asked.verb == "get":
        return 200, before
    if asked.verb == "delete":
        api.remove(asked.collection, asked.name)
        return 200, {"kind": "Status", "status": "Success"}
    if asked.verb == "update":
        return _update(api, asked, before)
    return _patch(api, asked, before)


def _create(api: Holder, asked: Write) -> tuple[int, Document]:
    document = copy.deepcopy(asked.document)
    name = document["metadata"]["name"]
    if name in api.objects[asked.collection]:
        return _status(409, f'"{name}" already exists')
    document["metadata"].setdefault("uid", f"{name}-uid-{next(_uids)}")
    api.wrote(asked.collection, document)
    return 201, document


def _update(api: Holder, asked: Write, before: Document) -> tuple[int, Document]:
    document = copy.deepcopy(asked.document)
    wanted = document["metadata"].get("resourceVersion")
    if wanted is not None and wanted != before["metadata"]["resourceVersion"]:
        return _status(409, "the object has been modified; please apply your changes to the latest version and try again")
    if before.get("immutable") and document.get("data") != before.get("data"):
        return _status(422, "data: Forbidden: field is immutable when `immutable` is set")
    document["metadata"]["uid"] = before["metadata"].get("uid")
    api.wrote(asked.collection, document)
    return 200, document


def _patch(api: Holder, asked: Write, before: Document) -> tuple[int, Document]:
    """Of a status; conditions are merged by their type."""
    assert (asked.subresource, asked.content_type) == ("status", MERGED_BY_TYPE), asked
    if asked.document["metadata"].get("uid", before["metadata"]["uid"]) != before["metadata"]["uid"]:
        return _status(409, "metadata.uid: Invalid value: field is immutable")
    document = json.loads(json.dumps(before))
    conditions = document["status"]["conditions"]
    for new in asked.document["status"]["conditions"]:
        old = next((each for each in conditions if each["type"] == new["type"]), None)
        if old is None:
            conditions.append(new)
        else:
            old.update(new)
    if document != before:
        api.wrote(asked.collection, document)
    return 200, document


def _status(code: int, message: str) -> tuple[int, Document]:
    return code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
