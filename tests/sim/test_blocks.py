"""The paged prefix cache: who holds what, and what goes first."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.sim.blocks import BlockPool


def named(pool: BlockPool, hashes: list[int]) -> list[int]:
    taken = pool.take(len(hashes))
    assert taken is not None
    return [pool.name(block, hash_) for block, hash_ in zip(taken, hashes, strict=True)]


def test_equal_beginnings_are_found_block_by_block() -> None:
    pool = BlockPool(10)
    named(pool, [1, 2, 3])
    assert [pool.find([1, 2, 3]), pool.find([1, 2, 9]), pool.find([9, 2, 3]), pool.find([1, 2, 3, 4])] == [3, 2, 0, 3]


def test_without_prefix_caching_nothing_is_found() -> None:
    pool = BlockPool(10, keeps_prefixes=False)
    named(pool, [1, 2])
    assert pool.find([1, 2]) == 0


def test_a_shared_block_is_free_when_its_last_user_goes() -> None:
    pool = BlockPool(4)
    first = named(pool, [1, 2])
    second = pool.share([1, 2])
    assert (pool.used_blocks, pool.free_blocks) == (2, 2)
    pool.give_back(first)
    assert pool.used_blocks == 2
    pool.give_back(second)
    assert (pool.used_blocks, pool.free_blocks, pool.find([1, 2])) == (0, 4, 2)


def test_the_least_recently_used_goes_first_and_of_one_request_its_end() -> None:
    pool = BlockPool(4)
    old, new = named(pool, [1, 2]), named(pool, [11, 12])
    pool.give_back(old)
    pool.give_back(new)
    assert pool.take(1) is not None
    assert [pool.find([1, 2]), pool.find([11, 12])] == [1, 2]
    assert pool.take(2) is not None
    assert [pool.find([1, 2]), pool.find([11, 12])] == [0, 1]
    assert pool.evicted_blocks == 3


def test_blocks_that_cannot_be_found_go_before_all_that_can() -> None:
    pool = BlockPool(4)
    taken = pool.take(2)
    assert taken is not None
    pool.give_back(named(pool, [1, 2]))
    pool.give_back(taken)
    assert pool.take(2) is not None
    assert pool.find([1, 2]) == 2 and pool.evicted_blocks == 0


def test_use_protects_from_eviction_and_renews() -> None:
    pool = BlockPool(3)
    pool.give_back(named(pool, [1]))
    pool.give_back(named(pool, [2]))
    pool.give_back(pool.share([1]))
    pool.take(2)
    assert [pool.find([1]), pool.find([2])] == [1, 0]


def test_what_is_too_much_changes_nothing() -> None:
    pool = BlockPool(3)
    pool.give_back(named(pool, [1]))
    assert pool.take(4) is None
    assert (pool.find([1]), pool.free_blocks) == (1, 3)


def test_a_twin_of_a_held_block_stays_without_a_name() -> None:
    pool = BlockPool(4)
    named(pool, [1])
    twin = named(pool, [1])
    assert twin[0] < 0
    pool.give_back(twin)
    assert (pool.find([1]), pool.used_blocks) == (1, 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(1, 5)), max_size=60))
def test_blocks_are_never_lost_or_made(steps: list[tuple[bool, int, int]]) -> None:
    pool = BlockPool(12)
    held: list[list[int]] = []
    for takes, start, count in steps:
        if takes:
            hashes = list(range(start, start + count))
            found = pool.find(hashes)
            blocks = pool.share(hashes[:found])
            taken = pool.take(count - found)
            if taken is None:
                pool.give_back(blocks)
            else:
                named_now = [pool.name(block, hash_) for block, hash_ in zip(taken, hashes[found:], strict=True)]
                held.append(blocks + named_now)
        elif held:
            pool.give_back(held.pop(start % len(held)))
        assert 0 <= pool.used_blocks <= 12 and pool.used_blocks + pool.free_blocks == 12
        assert pool.used_blocks == len({block for blocks in held for block in blocks})
        assert pool.known_blocks <= 12
