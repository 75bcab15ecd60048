"""The fields of a record that somebody has kept and perhaps edited: each is what it should be, or is named."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any


class NotRecorded(ValueError):
    """What was given holds no record of this version; the message says what is wrong."""


class Fields:
    """One object of a record. `place` is where it stands, as `fleet.0`. All methods raise NotRecorded."""

    def __init__(self, data: Any, place: str) -> None:
        if not isinstance(data, Mapping):
            raise NotRecorded(f"{place or 'it'}: must be an object")
        self._data = data
        self._place = f"{place}." if place else ""

    def __contains__(self, name: str) -> bool:
        return name in self._data

    def _named(self, name: str) -> Any:
        if name not in self._data:
            raise NotRecorded(f"{self._place}{name}: is missing")
        return self._data[name]

    def fields(self, name: str) -> Fields:
        return Fields(self._named(name), f"{self._place}{name}")

    def text(self, name: str) -> str:
        value = self._named(name)
        if not isinstance(value, str):
            raise NotRecorded(f"{self._place}{name}: must be a text")
        return value

    def items(self, name: str) -> list[Any]:
        value = self._named(name)
        if not isinstance(value, list):
            raise NotRecorded(f"{self._place}{name}: must be a list")
        return value

    def number(self, name: str) -> float:
        value = self._named(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise NotRecorded(f"{self._place}{name}: must be a number")
        return value

    def count(self, name: str, most: int) -> int:
        value = self.number(name)
        if value != int(value) or not 0 <= value <= most:
            raise NotRecorded(f"{self._place}{name}: must be a whole number from 0 to {most}")
        return int(value)

    def numbers(self, known: Collection[str] | None) -> dict[str, float]:
        """All of them, by their names, which must be `known` where that is given."""
        for name in self._data:
            if known is not None and name not in known:
                raise NotRecorded(f"{self._place}{name}: is none of {', '.join(known)}")
        return {name: self.number(name) for name in self._data}
