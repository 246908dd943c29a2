"""Which arms a matrix has, in which order, and what it says of those it cannot have."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsbench import matrices
from dsbench.errors import InputError
from dsbench.matrices import LADDER, design, ladder_order, name_of, needs
from impl import toggles as registry
from impl.toggles import REGISTRY

MHC = ["mhc_final_fused", "mhc_residual_reuse", "mhc_input_reuse"]
FREE = ["mtp_hidden_skip", "mhc_residual_reuse", "mhc_input_reuse", "dflash_staging_skip", "q_in_place"]
A, B, C = FREE[:3]


def cells(factors, kind):
    return {cell.name: cell.factors for cell in design(factors, kind).cells}


@pytest.fixture
def rivals(monkeypatch):
    """Two toggles that cannot be on together."""
    changed = {**REGISTRY, A: replace(REGISTRY[A], conflicts=(B,))}
    monkeypatch.setattr(registry, "REGISTRY", changed)
    return [A, B, C]


def test_single_is_one_arm_with_all():
    assert cells([A, B], "single") == {f"{A}+{B}": [A, B]}


def test_one_at_a_time_has_no_arm_with_all():
    assert cells([A, B, C], "one-at-a-time") == {A: [A], B: [B], C: [C]}


def test_one_at_a_time_takes_what_a_toggle_requires_along():
    made = design(["mhc_final_fused", "mtp_hidden_skip"], "one-at-a-time")
    assert [cell.factors for cell in made.cells] == [["mtp_hidden_skip", "mhc_final_fused"], ["mtp_hidden_skip"]]
    assert made.notes == ["mhc_final_fused runs together with mtp_hidden_skip, which it requires"]


def test_the_ladder_goes_up_in_the_order_of_the_published_table():
    made = design(["mhc_input_reuse", "mhc_final_fused", "mtp_hidden_skip", "mhc_residual_reuse"], "ladder")
    rungs = [cell.factors for cell in made.cells]
    assert rungs[-1] == ["mtp_hidden_skip", *MHC]
    assert rungs == [rungs[-1][: n + 1] for n in range(4)]
    assert made.matrix.factors == rungs[-1]


@given(st.lists(st.sampled_from([name for name in REGISTRY if not REGISTRY[name].argument]), unique=True, min_size=1))
def test_any_ladder_keeps_the_order_and_what_is_required_comes_first(factors):
    ordered = ladder_order(factors)
    assert sorted(ordered) == sorted(factors)
    for at, factor in enumerate(ordered):
        assert not set(needs(factor)) & set(ordered[at:])
    known = [name for name in ordered if name in LADDER]
    assert known == sorted(known, key=LADDER.index)


def test_a_requirement_that_stands_later_in_the_registry_still_comes_first(monkeypatch):
    turned = {**REGISTRY, "mtp_hidden_skip": replace(REGISTRY["mtp_hidden_skip"], requires=("mhc_input_reuse",))}
    monkeypatch.setattr(registry, "REGISTRY", turned)
    assert ladder_order(["mtp_hidden_skip", "mhc_input_reuse"]) == ["mhc_input_reuse", "mtp_hidden_skip"]


def test_leave_one_out():
    assert cells([A, B, C], "leave-one-out") == {
        "all": [A, B, C],
        f"without-{A}": [B, C],
        f"without-{B}": [A, C],
        f"without-{C}": [A, B],
    }


def test_leaving_out_a_requirement_leaves_out_what_needs_it():
    made = design(["mtp_hidden_skip", "mhc_final_fused", "mhc_input_reuse"], "leave-one-out")
    assert [cell.factors for cell in made.cells] == [
        ["mtp_hidden_skip", "mhc_final_fused", "mhc_input_reuse"],
        ["mhc_input_reuse"],
        ["mtp_hidden_skip", "mhc_input_reuse"],
        ["mtp_hidden_skip", "mhc_final_fused"],
    ]
    assert made.notes == ["without mtp_hidden_skip, mhc_final_fused is left out too, which requires it"]


def test_full_is_every_combination_in_standard_order():
    assert list(cells([A, B, C], "full").values()) == [[A], [B], [A, B], [C], [A, C], [B, C], [A, B, C]]
    assert len(cells([*FREE, "c128_indices_in_place"], "full")) == 63


def test_full_leaves_out_what_cannot_be_and_says_why():
    made = design(["mtp_hidden_skip", "mhc_final_fused"], "full")
    assert [cell.factors for cell in made.cells] == [["mtp_hidden_skip"], ["mtp_hidden_skip", "mhc_final_fused"]]
    assert made.matrix.left_out == ["mhc_final_fused: mhc_final_fused requires mtp_hidden_skip"]
    assert made.notes[-1] == f"arms left out, since they cannot be run: {made.matrix.left_out[0]}"


def test_a_requirement_that_is_no_factor_is_on_everywhere_and_leaves_nothing_out():
    made = design(MHC, "full")
    assert (len(made.cells), made.common, made.matrix.left_out) == (7, ["mtp_hidden_skip"], [])


def test_conflicts(rivals):
    for kind in ("single", "ladder", "leave-one-out", "alone-and-together"):
        with pytest.raises(InputError, match=f"'{A}' and '{B}' cannot be on together"):
            design(rivals, kind)
    assert cells(rivals, "one-at-a-time").keys() == {A, B, C}
    made = design(rivals, "full")
    assert [cell.factors for cell in made.cells] == [[A], [B], [C], [A, C], [B, C]]
    assert made.matrix.left_out[0] == f"{A}+{B}: {A} and {B} cannot be on together"
    with pytest.raises(InputError, match="half a factorial needs every one of its arms"):
        design(rivals, "half")


@pytest.mark.parametrize(("k", "resolution"), [(3, "III"), (4, "IV"), (5, "V")])
def test_half_is_half_and_tells_its_resolution(k, resolution):
    factors = FREE[:k]
    made = design(factors, "half")
    assert len(made.cells) + 1 == 2 ** (k - 1)
    assert made.matrix.resolution == resolution
    assert f"resolution {resolution}" in made.notes[-1]
    # Balanced: each factor, and each pair, is on in the same share of arms as in the whole factorial.
    on = [set(cell.factors) for cell in made.cells]
    assert {sum(factor in cell for cell in on) for factor in factors} == {2 ** (k - 2)}
    assert {sum({a, b} <= cell for cell in on) for a, b in pairwise(factors)} == {2 ** (k - 3)}


@pytest.mark.parametrize(
    ("kind", "factors", "said"),
    [
        ("full", [A], "takes 2 to 6 toggles, got 1: name a second one"),
        ("full", [*LADDER[:7]], "got 7: name fewer, or take ladder"),
        ("half", [A, B], "takes 3 to 6 toggles, got 2: take full"),
        ("half", ["mtp_hidden_skip", "mhc_final_fused", "mhc_input_reuse"], "requires mtp_hidden_skip"),
        ("leave-one-out", [A], "leaves nothing: name two or more"),
    ],
)
def test_what_cannot_be_is_refused(kind, factors, said):
    with pytest.raises(InputError, match=said):
        design(factors, kind)


def test_names_of_states_and_arguments():
    assert [name_of(text) for text in ("a", "a=off", "leak:64")] == ["a", "a", "leak"]
    assert matrices._plain(["a=off", "leak:64"]) == ["a-off", "leak-64"]
