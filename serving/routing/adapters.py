"""Which LoRA adapters an engine has in its memory, and how long it takes until another one is there.

An engine holds as many at once as it has slots. One that is not there is loaded in the place of the one that was used longest
ago among those that no running request uses; while all are in use its requests wait.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Any

from serving.routing.predict import Mean

SLOTS = 1
"""vLLM's own number (`max-loras`) where an engine was not heard yet."""


class AdapterSlots:
    """Those of one endpoint, as far as this gateway knows: by the requests that it sent there and by what the engine says."""

    __slots__ = ("_loaded", "_waiting", "load_seconds", "slots")

    def __init__(self, load_seconds: Mean) -> None:
        self.load_seconds = load_seconds
        """How long one takes to be loaded, learned for the pool."""
        self.slots = SLOTS
        self._loaded: OrderedDict[str, int] = OrderedDict()
        """With the number of requests under way, the one that was used longest ago first."""
        self._waiting: dict[str, int] = {}
        """The same for those that wait for a slot, in the order in which they came."""

    def seconds(self, adapter: str, answer_seconds: float) -> float:
        """Until the adapter is there for a new request; `answer_seconds` is how long requests run.

        A slot is free when the last of its adapter's requests ends. So many ends, evenly spread over an answer's time, have
        their last one at n / (n + 1) of it.
        """
        if adapter in self._loaded:
            return 0.0
        used = [count for count in self._loaded.values() if count]
        if len(used) < self.slots and adapter not in self._waiting:
            return self.load_seconds.value
        fewest = min(used, default=1)
        return self.load_seconds.value + answer_seconds * (fewest / (fewest + 1) + len(self._waiting.keys() - {adapter}))

    def has(self, adapter: str) -> bool:
        return adapter in self._loaded

    def begin(self, adapter: str) -> None:
        """A request with the adapter begins there."""
        if adapter in self._loaded:
            self._loaded[adapter] += 1
            self._loaded.move_to_end(adapter)
        elif adapter in self._waiting:
            self._waiting[adapter] += 1
        elif self._make_room():
            self._loaded[adapter] = 1
        else:
            self._waiting[adapter] = 1

    def end(self, adapter: str) -> None:
        """It has ended, and perhaps its slot is another one's now."""
        counts = self._waiting if adapter in self._waiting else self._loaded
        if adapter not in counts:
            return
        counts[adapter] -= 1
        if counts is self._waiting and not counts[adapter]:
            del counts[adapter]
        while self._waiting and self._make_room():
            next_one = next(iter(self._waiting))
            self._loaded[next_one] = self._waiting.pop(next_one)

    def hear(self, slots: int, running: Collection[str]) -> None:
        """What the engine says: how many it holds at once, and which of them run. Others than this gateway may use it."""
        self.slots = max(1, slots)
        for adapter in running:
            if adapter in self._waiting:
                self._loaded[adapter] = self._waiting.pop(adapter)
            elif adapter not in self._loaded:
                self._make_room()
                self._loaded[adapter] = 0
            self._loaded.move_to_end(adapter)
        self._make_room(0)

    def as_data(self) -> dict[str, Any]:
        """The same as JSON has it; `restore` takes it up again."""
        return {
            "slots": self.slots,
            "load_seconds": round(self.load_seconds.value, 6),
            "loaded": dict(self._loaded),
            "waiting": dict(self._waiting),
        }

    def restore(self, data: Mapping[str, Any]) -> None:
        self.slots = int(data["slots"])
        self.load_seconds.value = float(data["load_seconds"])
        self._loaded = OrderedDict(data["loaded"])
        self._waiting = dict(data["waiting"])

    def forget(self) -> None:
        """The engine began anew; what is under way is counted on."""
        for adapter in [each for each, count in self._loaded.items() if not count]:
            del self._loaded[adapter]

    def _make_room(self, places: int = 1) -> bool:
        """Let those go that nobody uses, until so many places are free. Returns whether they are."""
        loaded = self._loaded
        while len(loaded) + places > self.slots:
            idle = next((each for each, count in loaded.items() if not count), None)
            if idle is None:
                return False
            del loaded[idle]
        return True
