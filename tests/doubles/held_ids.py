"""What of ended requests a process still holds: every container and object that the garbage collector knows is looked at."""

from __future__ import annotations

import gc
from collections import Counter, deque
from typing import Any

from serving.observability.last_errors import RequestFailure

MARK = "unique-"
"""Every request id of the tests that look for held ids begins like this, and nothing else does."""


def held_ids() -> list[str]:
    """The kinds of containers that hold an id of ours, with counts. Empty when all bookkeeping is gone.

    Left out are the last errors, a fixed number of which is kept for operators to see.
    """
    gc.unfreeze()  # what is frozen is not listed
    gc.collect()
    found: Counter[str] = Counter()
    for container in gc.get_objects():
        kind = type(container)
        if kind is RequestFailure:
            continue
        if isinstance(container, dict):
            held = any(map(_is_ours, container.keys())) or any(map(_is_ours, container.values()))
        elif isinstance(container, list | set | frozenset | tuple | deque):
            held = any(map(_is_ours, container))
        else:
            held = any(_is_ours(getattr(container, name, None)) for name in getattr(kind, "__slots__", ()) if name != "__dict__")
        if held:
            found[f"{kind.__module__}.{kind.__qualname__}"] += 1
    return [f"{count} × {kind}" for kind, count in found.most_common()]


def _is_ours(value: Any) -> bool:
    if type(value) is str:
        return value.startswith(MARK) and value != MARK
    return type(value) is bytes and value.startswith(MARK.encode())
