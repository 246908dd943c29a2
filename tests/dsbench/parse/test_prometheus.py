import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsbench.parse.inspect import inspect
from dsbench.parse.prometheus import CounterReset, Page, acceptance, increase, read_page, read_snapshots, window

DATA = Path(__file__).resolve().parents[2] / "data" / "metrics"
CASES = sorted(path.stem for path in DATA.glob("*.prom"))


def spec_values(counts):
    if counts is None:
        return None
    return {
        "num_drafts": counts.drafts,
        "drafted_tokens": counts.drafted,
        "accepted_tokens": counts.accepted,
        "mean_acceptance_length": counts.acceptance_length,
        "draft_acceptance_rate": counts.acceptance_rate,
        "per_position": counts.survival,
        "per_position_conditional": counts.conditional,
        "drafted_per_draft": counts.drafted / counts.drafts if counts.drafts else None,
    }


def agrees(found, expected):
    if isinstance(expected, list):
        return found is not None and len(found) == len(expected) and all(map(agrees, found, expected))
    if isinstance(expected, int | float):
        return found == pytest.approx(expected, rel=1e-3, abs=1e-9)
    return found == expected


def test_the_cases_are_there():
    assert len(CASES) == 5


@pytest.mark.parametrize("case", CASES)
def test_differences_of_two_pages(case):
    before, after = read_snapshots((DATA / f"{case}.prom").read_text())
    expected = json.loads((DATA / f"{case}.expected.json").read_text())
    found = window(before, after)
    assert (before.status, after.status) == (200, 200)
    for key, value in expected.items():
        if key == "spec":
            ours = spec_values(found.spec)
            assert (ours is None) == (value is None)
            for name, number in (value or {}).items():
                assert agrees(ours[name], number), name
        elif key == "flags":
            assert found.flags == value
        elif key.startswith("flag_when"):
            shared = window(before, after, prompts_share_a_prefix="share" in key)
            assert shared.flags == ([] if value is None else [value])
        elif key != "why":
            assert agrees(getattr(found, key), value), key


def counter(value, position=None):
    label = f',position="{position}"' if position is not None else ""
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total" if label else "vllm:generation_tokens_total"
    return f'{name}{{model_name="m"{label}}} {value}\n'


def test_a_counter_that_falls_is_a_reset():
    with pytest.raises(CounterReset, match="generation_tokens fell from 9 to 3"):
        increase(read_page(counter(9)), read_page(counter(3)), "vllm:generation_tokens")


def test_a_reset_of_one_label_is_not_hidden_by_the_sum():
    before = read_page(counter(9, 0) + counter(5, 1))
    after = read_page(counter(99, 0) + counter(4, 1))
    with pytest.raises(CounterReset):
        increase(before, after, "vllm:spec_decode_num_accepted_tokens_per_pos")


def test_a_series_that_vanishes_is_a_reset_and_a_new_one_began_at_zero():
    before, after = read_page(counter(9, 0) + counter(5, 1)), read_page(counter(99, 0))
    with pytest.raises(CounterReset, match="a series of vllm:spec_decode_num_accepted_tokens_per_pos is gone"):
        increase(before, after, "vllm:spec_decode_num_accepted_tokens_per_pos")
    assert increase(read_page(""), read_page(counter(9)), "vllm:generation_tokens") == 9


def test_a_counter_that_the_later_page_lacks_is_unknown():
    """Nothing fell: the page does not say."""
    before = read_page((DATA / "two_snapshots.prom").read_text().partition("# SNAPSHOT")[2].partition("\n")[2])
    after = read_page("vllm:num_requests_running 1\n")
    found = window(Page(before.values), after)
    assert (found.generation_tokens, found.preemptions, found.spec, found.running_at_end) == (None, None, None, 1)
    assert found.flags[0].startswith("the later page does not have vllm:prompt_tokens, vllm:generation_tokens")
    drafts = "".join(f"vllm:spec_decode_num_{name}_total 8\n" for name in ("drafts", "draft_tokens", "accepted_tokens"))
    assert acceptance(read_page(drafts + counter(4, 0)), read_page(drafts)).accepted_per_position == ()


def test_a_byte_order_mark_hides_no_page():
    text = (DATA / "two_snapshots.prom").read_text()
    assert read_snapshots("\ufeff" + text) == read_snapshots(text)
    assert inspect("\ufeff" + text) == inspect(text)
    assert read_page("\ufeff" + counter(9)) == read_page(counter(9))


def test_what_neither_page_has_is_unknown():
    empty = Page({})
    assert increase(empty, empty, "vllm:generation_tokens") is None
    assert acceptance(empty, empty) is None
    assert window(empty, empty).generation_tokens_per_second is None


def test_engines_of_one_page_are_added():
    page = read_page('x_total{engine="0"} 3\nx_total{engine="1"} 4\n')
    assert page.total("x") == 7


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=6))
def test_positions_come_back_whatever_their_order(counts):
    text = [counter(a, k) for k, (a, _) in enumerate(counts)]
    later = [counter(a + b, k) for k, (a, b) in enumerate(counts)]
    rest = "".join(f"vllm:spec_decode_num_{name}_total 0\n" for name in ("drafts", "draft_tokens", "accepted_tokens"))
    found = acceptance(read_page(rest + "".join(text)), read_page(rest + "".join(reversed(later))))
    assert found.accepted_per_position == tuple(b for _, b in counts)
