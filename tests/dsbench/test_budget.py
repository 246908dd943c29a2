"""What a budget buys: the arithmetic, and where the time of a boot comes from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsbench.budget import BootTime, blocks_within, boots_of, bought, duration, measured_time, stored_time
from dsbench.engines import embedded
from dsbench.errors import InputError
from dsbench.fingerprint import fingerprint
from dsbench.floors import Floor
from dsbench.plan import plan_experiment
from dsbench.store import RecordWriter, create
from dsbench.suite import load_suite
from impl.dims import PICO


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2h", 7200), ("90m", 5400), ("1h30m", 5400), ("1.5 h", 5400), ("45", 45), ("1h 5s", 3605)],
)
def test_durations(text, seconds):
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "2d", "-1h", "h"])
def test_what_is_no_duration(text):
    with pytest.raises(InputError, match="write 2h"):
        duration(text)


@given(st.floats(0.5, 600), st.floats(0, 1e5))
def test_what_fits_fits_and_one_block_more_does_not(make_three, seconds, budget):
    blocks = blocks_within(make_three, seconds, budget)
    if blocks:
        assert boots_of(make_three, blocks) * seconds <= budget * (1 + 1e-6)
    assert boots_of(make_three, blocks + 1) * seconds > budget * (1 - 1e-6)


@pytest.fixture(scope="module")
def make_three():
    return plan_experiment(("mhc_residual_reuse", "mhc_input_reuse"), load_suite("quick"), PICO, matrix="one-at-a-time")


def test_boots_are_arms_times_blocks_and_warm_ups(make_three):
    assert boots_of(make_three, 5) == len(make_three.boots) == 3 * 5 + 3
    assert blocks_within(make_three, 10, 180) == 5
    assert blocks_within(make_three, 10, 179.9) == 4
    assert blocks_within(make_three, 10, 30) == 0


def test_what_could_be_seen_comes_from_the_floors(make_three):
    known = {"unit": "tok/s", "rank": None, "probe": "x", "boots": 12, "blocks": 6, "centre": 1, "drift": 0}
    speed = Floor(metric="decode.tps.c1", relative=True, between=0.03, paired=0.02, **known)
    exact = Floor(metric="kv.available_bytes", relative=True, between=0, paired=0, **known)
    plan = make_three.model_copy(update={"floors": [speed, exact]})
    few, some, many = (bought(plan, n, BootTime(10, 3, "x")) for n in (5, 6, 24))
    assert few.visible == {"decode.tps.c1": None}
    assert some.visible["decode.tps.c1"] > many.visible["decode.tps.c1"] > 0.02 * 2.8 / 24**0.5 * 0.9
    assert bought(plan, 10000, None).visible["decode.tps.c1"] >= 0.0198, "no change inside the margin is ever called"
    assert (some.boots, some.seconds) == (21, 210)
    assert bought(plan, 6, None).seconds is None


def test_boot_times_of_the_same_machine_build_and_probes_count(make_plan, make_records, tmp_path):
    machine = fingerprint()
    asked = make_plan()

    def store(plan, of=machine, seconds=7.0):
        plan = plan.model_copy(update={"fingerprint": of})
        folder = create(plan, tmp_path)
        with RecordWriter(folder) as writer:
            writer.write_all(
                r.model_copy(update={"seconds": seconds}) if r.record == "boot_ended" else r for r in make_records(plan)
            )

    assert stored_time(asked, machine, tmp_path) is None
    store(make_plan("mhc_residual_reuse"), of=machine.model_copy(update={"kernel": "other"}))
    store(make_plan("mhc_residual_reuse", engine_args=["--dims", "pico", "--eager"]))
    assert stored_time(asked, machine, tmp_path) is None
    store(make_plan("mhc_residual_reuse", seed=4))
    found = stored_time(asked, machine, tmp_path)
    assert (found.seconds, found.boots) == (7.0, 4)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "plan.json").write_text("{")
    assert stored_time(asked, machine, tmp_path) == found


def test_one_boot_can_be_timed(make_plan, fake, monkeypatch):
    monkeypatch.setattr(embedded, "command", fake)
    plan = make_plan()
    assert 0 < measured_time(plan).seconds < 30
    monkeypatch.setenv("FAKE_FAULT", "exit")
    with pytest.raises(InputError, match="the boot to be timed failed"):
        measured_time(plan)
