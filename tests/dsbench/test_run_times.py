"""Run times of suites, from stored results."""

from datetime import UTC, datetime

import pytest

from dsbench import records as r
from dsbench import store
from dsbench.run_times import run_times, stored_times
from dsbench.suite import parse_suite
from tests.dsbench.conftest import SMALL


@pytest.fixture
def stored(make_plan, make_records, tmp_path):
    """Store a result of a suite whose boots take so long, of which the prefill probe takes so much."""

    def go(suite, boot, prefill, warm=30.0, **options):
        plan = make_plan(suite=suite, **options)
        folder = store.create(plan, tmp_path / "results")
        phases = {b.number: b.phase for b in plan.boots}
        with store.RecordWriter(folder) as writer:
            for line in make_records(plan):
                if isinstance(line, r.Check):
                    line = line.model_copy(update={"seconds": prefill if line.probe == "prefill" else 0.0})
                if isinstance(line, r.BootEnded):
                    line = line.model_copy(update={"seconds": boot if phases[line.boot] == "measured" else warm})
                writer.write(line)
        return tmp_path / "results"

    return go


def test_the_suite_as_it_is_was_timed(stored, small):
    out = stored(small, boot=10.0, prefill=2.0)
    (time,) = run_times(small, stored_times(out))
    assert time.seconds == 2 * (small.blocks * 10.0 + small.warmup_boots * 30.0)
    assert (time.estimated, time.missing, time.place) == (False, [], "embedded pico, unknown machine")


def test_more_blocks_are_worked_out(stored, small):
    out = stored(small, boot=10.0, prefill=2.0)
    more = small.model_copy(update={"blocks": 6})
    assert run_times(more, stored_times(out))[0].seconds == 2 * (6 * 10.0 + 30.0)


def test_a_probe_counts_in_its_own_blocks_only(stored):
    once = parse_suite(
        SMALL.replace("repeats = 2\n\n[probes.decode]", "repeats = 2\nblocks = 1\n\n[probes.decode]"), "s"
    )
    assert (once.probes.prefill.blocks, once.probes.decode.blocks) == (1, None)
    out = stored(once, boot=10.0, prefill=6.0, blocks=3)
    twelve = once.model_copy(update={"blocks": 12})
    (time,) = run_times(twelve, stored_times(out))
    # The first block's boots have 6 s of prefill and 4 s of start; in the others, which have no prefill, all is start.
    assert time.seconds == pytest.approx(2 * (1 * 6.0 + 12 * 10.0 + 30.0))


def at(hour):
    return datetime(2025, 5, 1, hour, tzinfo=UTC)


def test_a_result_with_the_suites_own_blocks_is_preferred(stored, small):
    own = small.model_copy(update={"blocks": 3})
    out = stored(own, boot=10.0, prefill=2.0, now=at(1))
    stored(own, boot=20.0, prefill=2.0, now=at(2), blocks=2)
    assert run_times(own, stored_times(out))[0].seconds == 2 * (3 * 10.0 + 30.0)
    stored(own, boot=14.0, prefill=2.0, now=at(3))
    assert run_times(own, stored_times(out))[0].seconds == 2 * (3 * 14.0 + 30.0)


def test_another_suite_with_the_same_probes_is_estimated(stored, small):
    out = stored(small, boot=10.0, prefill=2.0)
    few = (
        SMALL.replace('"small"', '"few"').partition("[[probes.smoke")[0]
        + "[probes.prefill]\nlengths = [64, 256]\nrepeats = 2\n"
    )
    few = few.replace('"decode.tps.*", ', "").replace(', "smoke.correct", "identity.tokens"', "")
    (time,) = run_times(parse_suite(few, "few.toml"), stored_times(out))
    assert time.estimated
    assert time.seconds == pytest.approx(2 * 2 * 2.0 + 2 * (2 + 1) * 8.0), "8 s of each boot were no probe's"


def test_other_settings_or_a_probe_that_never_ran_say_nothing(stored, small):
    out = stored(small, boot=10.0, prefill=2.0)
    longer = parse_suite(SMALL.replace("lengths = [64, 256]", "lengths = [512]"), "s.toml")
    assert run_times(longer, stored_times(out)) == []
    assert run_times(small.with_until("profile"), stored_times(out)) == []


def test_what_cannot_be_read_is_no_source_of_times(stored, small):
    out = stored(small, boot=10.0, prefill=2.0)
    (out / "other").mkdir()
    (out / "other" / "plan.json").write_text("{}")
    assert len(stored_times(out)) == 1
    assert stored_times(out / "other") == []
