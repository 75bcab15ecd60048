"""Verdicts and approvals as ConfigMaps, one of each for a digest of configuration, which nobody can change afterwards.

They are immutable, so that the API server itself refuses an edit; another verdict is another object, and the newest counts. One
whose digest is not that of its configuration, or whose name is not that of its digest, counts as none.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from serving.catalog.records import Record, Text
from serving.core.errors import ConfigurationError
from serving.fleet.mirror import Document
from serving.gate.digest import Sha256
from serving.gate.verdict import Verdict, from_json, to_json

log = logging.getLogger("serving.gate")

NAME_DIGITS = 16
"""Of a digest in names and labels."""
MANAGER_LABEL, MANAGER = "app.kubernetes.io/managed-by", "serving-gate"
BASE_LABEL, RECORD_LABEL, DIGEST_LABEL = "serving/gate", "serving/gate-record", "serving/gate-digest"
_KEY = {"verdict": "verdict.json", "approval": "approval.json"}
Kind = Literal["verdict", "approval"]


class Approval(Record):
    """A person's word that a configuration may serve, whatever the gate said."""

    digest: Sha256
    reason: Annotated[str, Field(min_length=1, max_length=1000)]
    by: Text
    at: Text
    """In UTC, as 2026-11-30T20:15:00Z."""
    said: Text
    """What the gate had said."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What one ConfigMap holds."""

    name: str
    pool: str
    """In which the configuration was first seen."""
    record: Verdict | Approval


def kept(document: Document) -> Kept | None:
    """None, with a warning: it is no record of ours, or was changed by hand."""
    metadata = document.get("metadata") or {}
    name, labels = str(metadata.get("name")), metadata.get("labels") or {}
    kind, data = labels.get(RECORD_LABEL), document.get("data") or {}
    if kind not in _KEY:
        return None
    text = data.get(_KEY[kind], "")
    try:
        record = from_json(text, name) if kind == "verdict" else Approval.model_validate_json(text)
    except (ConfigurationError, ValidationError) as error:
        log.warning("the ConfigMap %s counts as none: %s", name, str(error).splitlines()[0])
        return None
    if f"-{kind}-{record.digest[:NAME_DIGITS]}" not in name:
        log.warning("the ConfigMap %s counts as none: it holds the %s on %s", name, kind, record.digest[:NAME_DIGITS])
        return None
    return Kept(name, str(labels.get("serving/pool", "")), record)


def selector(base: str) -> str:
    """Of the records of one controller, whose name is `base`."""
    return f"{MANAGER_LABEL}={MANAGER},{BASE_LABEL}={base}"


def config_map(base: str, pool: str, record: Verdict | Approval, *, owner: Document | None = None) -> Document:
    """The object that keeps a record. `owner`: the ConfigMap with which it goes, as the API server tells it."""
    kind: Kind = "verdict" if isinstance(record, Verdict) else "approval"
    text = to_json(record) if isinstance(record, Verdict) else record.model_dump_json(indent=2)
    metadata: Document = {
        "name": record_name(base, kind, record.digest),
        "labels": {
            MANAGER_LABEL: MANAGER,
            BASE_LABEL: base,
            RECORD_LABEL: kind,
            DIGEST_LABEL: record.digest[:NAME_DIGITS],
            "serving/pool": pool,
        },
    }
    if owner is not None:
        name, uid = owner["metadata"]["name"], owner["metadata"]["uid"]
        metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid}]
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True, "data": {_KEY[kind]: text}}


def record_name(base: str, kind: Kind, digest: str) -> str:
    return f"{base}-{kind}-{digest[:NAME_DIGITS]}"
