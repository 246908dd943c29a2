"""Placement by liveness: nothing that lives at one time overlaps, and what is held stays untouched."""

import gc
import weakref

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from impl.engine.arena import ALIGNMENT, Arena, Lifetime, Place, footprint, plan

LIVES = st.lists(st.tuples(st.integers(0, 700), st.integers(0, 3), st.integers(0, 9)), max_size=25)


def lifetimes_of(drawn: list[tuple[int, int, int]]) -> list[Lifetime]:
    """(bytes, operations since the birth before, operations it lives)."""
    lives, now = [], 0
    for nbytes, wait, length in drawn:
        now += wait
        lives.append(Lifetime(nbytes, now, now + length))
    return lives


def overlap(a: Place, b: Place) -> bool:
    return a.segment == b.segment and a.start < b.end and b.start < a.end


def rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@settings(max_examples=150, deadline=None)
@given(
    drawn=LIVES,
    sizes=st.lists(st.integers(0, 30), max_size=3),
    taken=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(1, 8)), max_size=4),
)
def test_a_plan_keeps_apart_what_lives_together(drawn, sizes, taken):
    lives = lifetimes_of(drawn)
    sizes = [size * ALIGNMENT for size in sizes]
    held: list[Place] = []
    for segment, start, length in taken:
        place = Place(segment, start * ALIGNMENT, (start + length) * ALIGNMENT)
        if segment < len(sizes) and place.end <= sizes[segment] and not any(overlap(place, h) for h in held):
            held.append(place)
    places = plan(lives, sizes, held)
    for i, (life, place) in enumerate(zip(lives, places, strict=True)):
        assert place.end - place.start == rounded(life.nbytes)
        assert place.start % ALIGNMENT == 0
        assert place.segment == len(sizes) or place.end <= sizes[place.segment]
        assert not any(overlap(place, h) for h in held)
        for other, there in zip(lives[:i], places[:i], strict=True):
            if other.last >= life.born:
                assert not overlap(place, there)


@settings(max_examples=100, deadline=None)
@given(drawn=LIVES)
def test_one_graph_uses_every_byte_of_its_segment(drawn):
    lives = lifetimes_of(drawn)
    arena = Arena()
    places = arena.place(lives)
    ends = [life.last for life in lives]
    live = [sum(rounded(x.nbytes) for x in lives if x.born <= t <= x.last) for t in range(max(ends, default=0) + 1)]
    assert arena.nbytes == footprint(places)
    assert max(live, default=0) <= arena.nbytes <= sum(rounded(life.nbytes) for life in lives)


def test_blocks_that_follow_each_other_share_memory():
    lives = [Lifetime(640, 0, 1), Lifetime(640, 1, 2), Lifetime(640, 2, 3), Lifetime(640, 3, 4)]
    arena = Arena()
    first, second, third, fourth = arena.place(lives)
    assert (first, second) == (third, fourth)
    assert arena.nbytes == 1280


def test_a_smaller_graph_fits_over_the_first_but_not_over_what_is_held():
    arena = Arena()
    temporary, output = arena.place([Lifetime(4096, 0, 1), Lifetime(1024, 1, 9)])
    kept = torch.empty(0, dtype=torch.uint8).set_(arena.storage(output, 1024))
    arena.hold(output, weakref.ref(kept.untyped_storage()))
    (inside,) = arena.place([Lifetime(4096, 0, 1)])
    assert inside == temporary
    (larger,) = arena.place([Lifetime(4160, 0, 1)])
    assert larger.segment == 1
    del kept
    gc.collect()
    (over,) = arena.place([Lifetime(4160, 0, 1)])
    assert over.segment in (0, 1)
    assert arena.place([Lifetime(5120, 0, 1)])[0] == Place(0, 0, 5120)


def test_a_storage_of_the_arena_looks_private_and_is_the_arenas_memory():
    arena = Arena()
    (_, place) = arena.place([Lifetime(64, 0, 1), Lifetime(100, 0, 1)])
    tensor = torch.empty(0, dtype=torch.float32).set_(arena.storage(place, 100))
    assert tensor.untyped_storage().nbytes() == 100
    assert tensor.storage_offset() == 0
    arena.poison([place])
    assert tensor.isnan().all()
    assert arena.segments[0][:64].data_ptr() + 64 == tensor.data_ptr()
