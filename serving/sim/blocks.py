"""The paged prefix cache: blocks of KV, shared by what they hold, counted by who uses them, evicted least recently used.

A block is known by the hash of its tokens and of all blocks before it, so equal prefixes are found block by block. Blocks
that nobody uses stay findable until their room is needed. Nothing is allocated before it is used: an engine that never fills
its cache costs no memory for it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    """The blocks of one engine.

    A held block is an integer: the hash of a full block that can be found again, or a unique negative number of one that cannot
    (not full, or the twin of a block that is held already). Hashes are not negative.
    """

    def __init__(self, capacity_blocks: int, *, keeps_prefixes: bool = True) -> None:
        self.capacity_blocks = capacity_blocks
        self._keeps_prefixes = keeps_prefixes
        self._uses: dict[int, int] = {}
        """How many requests use each held block."""
        self._idle: OrderedDict[int, None] = OrderedDict()
        """Blocks that nobody uses and that can be found, the next to be evicted first; all others are taken before them."""
        self._names = 0
        self.evicted_blocks = 0

    @property
    def used_blocks(self) -> int:
        return len(self._uses)

    @property
    def free_blocks(self) -> int:
        """What can be taken: never used, or used by nobody now."""
        return self.capacity_blocks - len(self._uses)

    @property
    def known_blocks(self) -> int:
        """Blocks that a prompt could still hit."""
        return sum(1 for name in self._uses if name >= 0) + len(self._idle)

    def find(self, hashes: Sequence[int]) -> int:
        """How many leading blocks of a prompt are held."""
        if not self._keeps_prefixes:
            return 0
        uses, idle = self._uses, self._idle
        for count, name in enumerate(hashes):
            if name not in uses and name not in idle:
                return count
        return len(hashes)

    def share(self, hashes: Sequence[int]) -> list[int]:
        """Use blocks that `find` has found."""
        for name in hashes:
            self._idle.pop(name, None)
            self._uses[name] = self._uses.get(name, 0) + 1
        return list(hashes)

    def idle_among(self, hashes: Sequence[int]) -> int:
        """How many of these are used by nobody: sharing them takes from the free ones."""
        return sum(1 for name in hashes if name in self._idle)

    def take(self, count: int) -> list[int] | None:
        """New blocks without a hash, or None and nothing changed if there are too few."""
        if count > self.free_blocks:
            return None
        surplus = len(self._uses) + len(self._idle) + count - self.capacity_blocks
        for _ in range(surplus):
            self._idle.popitem(last=False)
            self.evicted_blocks += 1
        taken = []
        for _ in range(count):
            self._names += 1
            self._uses[-self._names] = 1
            taken.append(-self._names)
        return taken

    def name(self, block: int, hash_: int) -> int:
        """A block is full: it can be found by its hash from now on.

        Returns:
            the block's new name; the old one if another block has that hash already
        """
        if not self._keeps_prefixes or hash_ in self._uses or hash_ in self._idle:
            return block
        del self._uses[block]
        self._uses[hash_] = 1
        return hash_

    def give_back(self, blocks: Sequence[int]) -> None:
        """Use no longer; of one request the last blocks are evicted first, since all others lead to them."""
        for name in reversed(blocks):
            uses = self._uses[name] - 1
            if uses:
                self._uses[name] = uses
            else:
                del self._uses[name]
                if name >= 0:
                    self._idle[name] = None

    def forget(self) -> None:
        """What nobody uses can no longer be found (a reset of the cache)."""
        self._idle.clear()
