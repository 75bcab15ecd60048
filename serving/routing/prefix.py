"""Which prefixes each endpoint probably holds in its cache: a tree of hash chains, bounded in bytes.

Prompts that begin alike share the nodes of their common prefix. Each endpoint has a model of its engine's cache: the prefixes
of running requests are pinned, the others are in the order in which the engine would evict them, ends before beginnings.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence

from serving.routing.chain import ENDS, START

STRIDE = 8
"""Of so many pieces of a chain one is in the index, and the first one of each node: the others are found from those."""
PIECE_BYTES = 60
"""Of memory: a hash and its place in its node."""
KEY_BYTES = 190
"""Of memory: a place in the index. Measured, at the moment when a table makes itself room."""
NODE_BYTES = 900
"""Of memory: a node, its places in the orders of eviction and one endpoint that holds it."""
HOLDER_BYTES = 250
"""Of memory: one more endpoint that holds a node."""
SHRINK = 0.95
GROW = 1.05
CLOSE_TO_FULL = 0.7


class Node:
    """A run of pieces that were added together; it ends where a request ended, or where two requests parted."""

    __slots__ = ("hashes", "holders", "late", "parent", "start", "uses")

    def __init__(self, parent: Node | None, start: int, hashes: list[int]) -> None:
        self.parent = parent
        self.start = start
        """How many pieces come before it."""
        self.hashes = hashes
        self.holders: dict[Cache, int] = {}
        """How many of its pieces each cache holds, counted from its beginning."""
        self.late: list[Node] = []
        """Nodes below it that may come after it in a cache's order, though they have to be evicted before it."""
        self.uses = 0
        """Requests that began with it."""

    @property
    def end(self) -> int:
        return self.start + len(self.hashes)

    def found_by(self) -> list[int]:
        """Those of its hashes by which it is found."""
        first = (STRIDE - 1 - self.start) % STRIDE
        keys = self.hashes[first::STRIDE]
        if first:
            keys.append(self.hashes[0])
        return keys


class Cache:
    """What one engine's cache holds by this model of it. Sizes are bytes of text."""

    __slots__ = ("capacity_bytes", "flow_bytes", "index", "order", "pinned", "used_bytes")

    def __init__(self, index: PrefixIndex, capacity_bytes: float) -> None:
        self.index = index
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.flow_bytes = 0
        """All that was ever put in or used again: a clock by which entries are old."""
        self.order: OrderedDict[Node | _Filler, int] = OrderedDict()
        """What may be evicted, the next one first, with the time of its last use by that clock."""
        self.pinned: dict[Node, int] = {}

    def clear(self) -> None:
        """The engine began anew, or is gone."""
        for node in [*self.order, *self.pinned]:
            if isinstance(node, Node):
                self.index.drop(node, self)
        self.order.clear()
        self.pinned.clear()
        self.used_bytes = 0

    def forget_older(self, stamp: int) -> None:
        """Something that was used last at `stamp` has turned out to be evicted: so is all that was used before it."""
        order = self.order
        if self.flow_bytes - stamp < self.capacity_bytes:
            self.capacity_bytes *= SHRINK
        while order:
            entry = next(iter(order))
            if order[entry] > stamp:
                break
            self._evict(entry)

    def grow(self) -> None:
        """Something was there that was taken to be evicted."""
        self.capacity_bytes *= GROW

    def confirm(self, stamp: int) -> None:
        """Something that was used last at `stamp` was still there. Where it was to go soon, the cache is larger than thought."""
        if self.flow_bytes - stamp > CLOSE_TO_FULL * self.capacity_bytes:
            self.grow()

    def fit(self) -> None:
        """Evict what is beyond the capacity, as far as it is not pinned."""
        order = self.order
        while self.used_bytes > self.capacity_bytes and order:
            entry = next(iter(order))
            if isinstance(entry, Node):
                if entry.late and self._evict_late(entry):
                    continue
                kept = entry.holders.get(self, 0)
                excess = self.used_bytes - self.capacity_bytes
                begin, end = START[entry.start], START[entry.start + kept]
                left = bisect_right(START, end - excess) - 1 - entry.start
                if left > 0 and end - begin > excess:
                    entry.holders[self] = left
                    self.used_bytes -= end - START[entry.start + left]
                    continue
            self._evict(entry)

    def _evict_late(self, node: Node) -> bool:
        """Evict what is below the node and would come after it. Returns whether there was any."""
        late = [below for below in node.late if self in below.holders]
        for below in late:
            self._evict(below)
        return bool(late)

    def _evict(self, entry: Node | _Filler) -> None:
        del self.order[entry]
        if isinstance(entry, Node):
            if entry.late:
                self._evict_late(entry)
            kept = entry.holders[self]
            self.used_bytes -= START[entry.start + kept] - START[entry.start]
            self.index.drop(entry, self)
        else:
            self.used_bytes -= entry.size_bytes


class _Filler:
    """Part of a cache that no prompt can be matched with: an answer, the end of a prompt."""

    __slots__ = ("size_bytes",)

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes


class Match:
    """What is known of a chain: the deepest node on its way and how many pieces of the chain are in the index."""

    __slots__ = ("chain", "known", "node")

    def __init__(self, chain: Sequence[int], known: int, node: Node | None) -> None:
        self.chain = chain
        self.known = known
        self.node = node

    def depths(self) -> dict[Cache, int]:
        """How many pieces of the chain each cache holds; those that hold none are left out."""
        depths: dict[Cache, int] = {}
        node, known = self.node, self.known
        while node is not None:
            start = node.start
            for cache, held in node.holders.items():
                if cache not in depths:
                    depths[cache] = start + held if start + held < known else known
            node = node.parent
        return depths

    def price_of_another(self, uses_worth_it: float) -> float:
        """What part of a copy of the deepest known prefix at one more endpoint is to be charged to the one who makes it.

        It will be used there about as often again as it was used so far, in all copies together.
        """
        node = self.node
        return 1.0 if node is None else 1.0 / (1.0 + node.uses / (uses_worth_it * (len(node.holders) + 1)))


class Hold:
    """A request's prefix while it runs at one endpoint."""

    __slots__ = ("cache", "leaf", "stamps")

    def __init__(self, cache: Cache, leaf: Node | None, stamps: list[tuple[int, int]]) -> None:
        self.cache = cache
        self.leaf = leaf
        self.stamps = stamps
        """Of what the cache held before: to which piece, and when that was used last; deepest first."""

    @property
    def end(self) -> int:
        """How many pieces it has."""
        return 0 if self.leaf is None else self.leaf.end

    @property
    def oldest(self) -> int:
        """When that of what the cache held was used last that was not used for the longest time."""
        return min((stamp for _, stamp in self.stamps), default=self.cache.flow_bytes)

    def stamp_at(self, pieces: int) -> int | None:
        """When the first piece beyond `pieces` was used last before this request; None where it was not thought to be held."""
        found = None
        for end, stamp in self.stamps:
            if end <= pieces:
                break
            found = stamp
        return found


class PrefixIndex:
    """All prefixes of all endpoints."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.evictions = 0
        """Nodes that had to go for the index's own limit."""
        self._nodes: dict[int, Node] = {}
        """By the hashes of their keys."""
        self._pieces = 0
        self._order: OrderedDict[Node, None] = OrderedDict()
        """All nodes, the one used longest ago first; a node is always used after those below it."""
        self._holders = 0

    @property
    def used_bytes(self) -> int:
        """Memory, about."""
        pieces_bytes = self._pieces * PIECE_BYTES + len(self._nodes) * KEY_BYTES
        return pieces_bytes + len(self._order) * NODE_BYTES + self._holders * HOLDER_BYTES

    def cache(self, capacity_bytes: float) -> Cache:
        return Cache(self, capacity_bytes)

    def match(self, chain: Sequence[int]) -> Match:
        """Find how much of the chain is known: a prefix is only there with all shorter ones, so that halving finds it."""
        nodes = self._nodes
        node = nodes.get(chain[0]) if chain else None
        if node is None or node.start:
            return Match(chain, 0, None)
        low, high = 0, len(chain) // STRIDE
        while low < high:
            middle = (low + high + 1) // 2
            if chain[middle * STRIDE - 1] in nodes:
                low = middle
            else:
                high = middle - 1
        known = low * STRIDE
        if low:
            found = nodes[chain[known - 1]]
            if found.start < known <= found.end:
                return self._follow(chain, known, found)
        return self._follow(chain, 1, node)

    def _follow(self, chain: Sequence[int], known: int, node: Node) -> Match:
        """How much more is known of a chain whose first `known` pieces are, the last of them in that node."""
        total = len(chain)
        while True:
            hashes, start, end = node.hashes, node.start, node.end
            high = end if end < total else total
            if known < high and hashes[high - 1 - start] == chain[high - 1]:
                known = high
            while known < high:
                middle = (known + high) // 2
                if hashes[middle - start] == chain[middle]:
                    known = middle + 1
                else:
                    high = middle
            if known < end or known == total:
                return Match(chain, known, node)
            below = self._nodes.get(chain[known])
            if below is None or below.start != known:
                return Match(chain, known, node)
            node, known = below, known + 1

    def extend(self, cache: Cache, start: int, parent: int, hashes: Sequence[int]) -> Hold | None:
        """Hold a chain of which only the end is told: what comes after its first `start` pieces, the last of which is `parent`.

        `start` is a multiple of STRIDE. None where the beginning is not known here, or contradicts what is.
        """
        if start + len(hashes) > len(ENDS) or not start + len(hashes):
            return None
        if start:
            node = self._nodes.get(parent)
            if node is None or not node.start < start <= node.end or node.hashes[start - node.start - 1] != parent:
                return None
            match = self._follow([0] * start + list(hashes), start, node)
        else:
            match = self.match(hashes)
        if not self._nodes.keys().isdisjoint(match.chain[match.known :]):
            return None
        return self.hold(cache, match)

    def hold(self, cache: Cache, match: Match) -> Hold:
        """A request with this chain begins at the cache's endpoint: its whole prompt is there from now on, and stays."""
        leaf = self._leaf(match)
        stamps: list[tuple[int, int]] = []
        flow, order, pinned, everything = cache.flow_bytes, cache.order, cache.pinned, self._order
        node = leaf
        while node is not None:
            everything.move_to_end(node)
            node.uses += 1
            size = START[node.end] - START[node.start]
            held = node.holders.get(cache, 0)
            if held:
                stamps.append((node.start + held, order.pop(node, flow)))
            else:
                self._holders += 1
            if held < len(node.hashes):
                cache.used_bytes += size - (START[node.start + held] - START[node.start])
                node.holders[cache] = len(node.hashes)
            cache.flow_bytes += size
            pinned[node] = pinned.get(node, 0) + 1
            node = node.parent
        if cache.used_bytes > cache.capacity_bytes:
            cache.fit()
        if self.used_bytes > self.limit_bytes:
            self._shrink()
        return Hold(cache, leaf, stamps)

    def release(self, hold: Hold, rest_bytes: int) -> None:
        """The request has ended; `rest_bytes` of what its engine computed can be matched by nothing here, as its answer."""
        cache = hold.cache
        order, pinned, flow = cache.order, cache.pinned, cache.flow_bytes
        if rest_bytes > 0:
            order[_Filler(rest_bytes)] = flow
            cache.used_bytes += rest_bytes
            cache.flow_bytes += rest_bytes
        node = hold.leaf
        while node is not None:
            count = pinned.get(node, 0) - 1
            if count > 0:
                pinned[node] = count
            elif count == 0:
                del pinned[node]
                order[node] = flow
            node = node.parent
        if cache.used_bytes > cache.capacity_bytes:
            cache.fit()

    def drop(self, node: Node, cache: Cache) -> None:
        """The cache does not hold the node any more; what nobody holds leaves the index."""
        if node.holders.pop(cache, None) is not None:
            self._holders -= 1
        if not node.holders and node in self._order:
            self._forget(node)

    def _forget(self, node: Node) -> None:
        del self._order[node]
        if node.parent is not None and node in node.parent.late:
            node.parent.late.remove(node)
        self._pieces -= len(node.hashes)
        nodes = self._nodes
        for key in node.found_by():
            nodes.pop(key, None)

    def _leaf(self, match: Match) -> Node | None:
        """The node that ends where the chain ends, made if there is none."""
        chain, known, node = match.chain, match.known, match.node
        if node is not None and node not in self._order:
            # It was evicted since the match was made.
            match = self.match(chain)
            known, node = match.known, match.node
        if node is not None and known < node.end:
            node = self._split(node, known)
        if known == len(chain):
            return node
        new = Node(node, known, list(chain[known:]))
        self._pieces += len(new.hashes)
        self._nodes.update(dict.fromkeys(new.found_by(), new))
        self._order[new] = None
        return new

    def _split(self, node: Node, at: int) -> Node:
        """Part a node at a place of the chain. The back stays the same object, whose leaves requests hold. Returns the front."""
        cut = at - node.start
        front = Node(node.parent, node.start, node.hashes[:cut])
        front.uses = node.uses
        parent = node.parent
        if parent is not None:
            if node in parent.late:
                parent.late.remove(node)
                front.late.append(node)
            parent.late.append(front)
        node.parent, node.start, node.hashes = front, at, node.hashes[cut:]
        nodes = self._nodes
        nodes.update(dict.fromkeys(front.found_by(), front))
        nodes[node.hashes[0]] = node
        self._order[front] = None
        for cache, held in [*node.holders.items()]:
            front.holders[cache] = min(held, cut)
            self._holders += 1
            if node in cache.pinned:
                cache.pinned[front] = cache.pinned[node]
            else:
                cache.order[front] = cache.order[node]
            if held > cut:
                node.holders[cache] = held - cut
                continue
            del node.holders[cache]
            self._holders -= 1
            cache.order.pop(node, None)
        if not node.holders:
            self._forget(node)
        return front

    def _shrink(self) -> None:
        """Let go of the nodes that were used longest ago, until there is a little room again."""
        wanted = self.limit_bytes * 0.98
        while self.used_bytes > wanted and self._order:
            node = next(iter(self._order))
            self.evictions += 1
            for cache, held in [*node.holders.items()]:
                cache.used_bytes -= START[node.start + held] - START[node.start]
                cache.order.pop(node, None)
                cache.pinned.pop(node, None)
                self.drop(node, cache)
            if node in self._order:
                self.drop(node, _NOBODY)


_NOBODY = Cache(PrefixIndex(0), 0.0)
