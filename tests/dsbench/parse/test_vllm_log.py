import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsbench.parse.vllm_log import combine, engine_windows, spec_records

DATA = Path(__file__).resolve().parents[2] / "data" / "logs"
SPEC = sorted(path.stem for path in DATA.glob("spec_*.log"))
ENGINE = sorted(path.stem for path in DATA.glob("engine_*.log"))


def case(name):
    return (DATA / f"{name}.log").read_text(), json.loads((DATA / f"{name}.expected.json").read_text())


def agrees(found, expected):
    if isinstance(expected, list):
        return found is not None and len(found) == len(expected) and all(map(agrees, found, expected))
    if isinstance(expected, float):
        return found == pytest.approx(expected, rel=1e-3, abs=1e-9)
    return found == expected


def check(found, expected):
    assert len(found) == len(expected)
    for ours, right in zip(found, expected, strict=True):
        for key, value in right.items():
            assert agrees(getattr(ours, key), value), key


def test_the_cases_are_there():
    assert (len(SPEC), len(ENGINE)) == (6, 2)


@pytest.mark.parametrize("name", SPEC)
def test_spec_records(name):
    text, expected = case(name)
    found = spec_records(text)
    check(found, expected["spec"])
    if "combined" in expected:
        check([combine(found)], [expected["combined"]])
    if "engine_windows" in expected:
        check(engine_windows(text), expected["engine_windows"])


@pytest.mark.parametrize("name", ENGINE)
def test_engine_windows(name):
    text, expected = case(name)
    check(engine_windows(text), expected["engine_windows"])
    assert spec_records(text) == []
    assert combine([]) is None


def test_colours_are_no_part_of_a_record():
    text, _ = case("spec_rate_last")
    coloured = text.replace("INFO", "\x1b[32mINFO\x1b[0m").replace("2.20", "\x1b[1m2.20\x1b[0m")
    assert spec_records(coloured) == spec_records(text)


def test_the_rate_alone_gives_no_length():
    (record,) = spec_records("SpecDecoding metrics: Avg Draft acceptance rate: 40.0%")
    assert (record.draft_acceptance_rate, record.mean_acceptance_length) == (0.4, None)
    assert record.mean_acceptance_length_recomputed is None
    assert record.num_drafts is None


@given(st.text(max_size=200))
def test_any_text_is_read_without_an_error(text):
    for record in spec_records(f"SpecDecoding metrics: {text}"):
        assert record.flags is not None
