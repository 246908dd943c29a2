"""A run that was cut off anywhere, gone on with: boots of the fake engine, records cut at any byte."""

import shutil

import pytest

from dsbench import records as r
from dsbench import store
from dsbench.errors import ResultsLost
from dsbench.execute import execute
from dsbench.judge import judge
from dsbench.selftest.drill import undisturbed, without_repeats
from dsbench.suite import load_suite

KV = load_suite("kv").model_copy(update={"warmup_boots": 0})


@pytest.fixture
def whole(make_plan, fake, tmp_path):
    """A finished run of four boots: its plan and folder."""
    plan = make_plan(suite=KV)
    folder = store.create(plan, tmp_path / "whole")
    execute(plan, folder, command=fake, quiet=True)
    return plan, folder


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.499, 0.5, 0.77, 0.98, 1.0])
def test_a_run_cut_off_at_any_byte_ends_with_the_verdict_of_its_records(whole, fake, tmp_path, share, capsys):
    plan, finished = whole
    content = (finished / store.RECORDS).read_bytes()
    cut = content[: int(share * len(content))]
    kept = cut[: cut.rfind(b"\n") + 1]
    folder = store.create(plan, tmp_path / "cut")
    (folder / store.RECORDS).write_bytes(cut)
    begun = {record.boot for record in store.load_records(folder)[0] if isinstance(record, r.BootStarted)}
    for boot in plan.boots:
        if boot.number in begun:
            shutil.copytree(finished / store.BOOTS / boot.folder, folder / store.BOOTS / boot.folder)
    execute(plan, folder, command=fake, quiet=True)
    assert ("dropped a torn last line" in capsys.readouterr().err) == (cut != kept)
    assert (folder / store.RECORDS).read_bytes().startswith(kept)
    records, notices = store.load_records(folder)
    assert notices == []
    ended = [(x.boot, x.status) for x in records if isinstance(x, r.BootEnded)]
    assert sorted(boot for boot, status in ended if status == "ok") == [1, 2, 3, 4]
    verdict = judge(plan, records)
    assert (verdict.word, verdict.void) == ("improved", [])
    assert without_repeats(verdict) == judge(plan, undisturbed(plan, records))


def test_a_boot_that_was_recorded_and_has_no_folder_is_repeated(make_plan, fake, tmp_path):
    """A harness that is killed between its record and its folder."""
    plan = make_plan(suite=KV)
    folder = store.create(plan, tmp_path)
    first = plan.boots[0]
    with store.RecordWriter(folder) as writer:
        writer.write(r.BootStarted(boot=1, time="t", arm=first.arm, block=first.block, phase=first.phase))
    execute(plan, folder, command=fake, quiet=True)
    assert judge(plan, store.load_records(folder)[0]).word == "improved"


def test_a_disk_that_takes_no_folder_stops_the_run_with_one_line(make_plan, fake, tmp_path):
    plan = make_plan(suite=KV)
    folder = store.create(plan, tmp_path)
    shutil.rmtree(folder / store.BOOTS)
    (folder / store.BOOTS).touch()
    with pytest.raises(ResultsLost, match=r"cannot write .*boots/01-\S+: Not a directory; mend it and go on with"):
        execute(plan, folder, command=fake, quiet=True)
    (folder / store.BOOTS).unlink()
    (folder / store.BOOTS).mkdir()
    execute(plan, folder, command=fake, quiet=True)
    assert judge(plan, store.load_records(folder)[0]).word == "improved"
