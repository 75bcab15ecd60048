"""Bytes in pieces, as a network delivers them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """The data cut at these places, each taken modulo its length; no piece is empty."""
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [piece for start, end in pairwise(edges) if (piece := data[start:end])]
