"""A run that was cut off anywhere, gone on with: boots of the fake engine, records cut at any byte."""

import shutil

import pytest

from dsbench import records as r
from dsbench import store
from dsbench.errors import ResultsLost
from dsbench.execute import LOG, execute
from dsbench.judge import judge
from dsbench.selftest.drill import undisturbed, without_history
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
    assert without_history(verdict) == judge(plan, undisturbed(plan, records))


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
    boots = folder / store.BOOTS

    def lose_the_folder(plan, arm):
        if boots.is_dir():
            shutil.rmtree(boots)
            boots.touch()
        return fake(plan, arm)

    with pytest.raises(ResultsLost, match=r"cannot write .*boots/01-\S+: Not a directory; mend it and go on with"):
        execute(plan, folder, command=lose_the_folder, quiet=True)
    before = (folder / store.RECORDS).read_bytes()
    with pytest.raises(ResultsLost, match=r"cannot write .*boots: it is no folder: remove it"):
        execute(plan, folder, command=fake, quiet=True)
    assert (folder / store.RECORDS).read_bytes() == before
    boots.unlink()
    execute(plan, folder, command=fake, quiet=True)
    assert judge(plan, store.load_records(folder)[0]).word == "improved"


def test_folders_of_boots_whose_records_are_lost_are_left_alone_and_the_run_goes_on(whole, fake):
    """A records file cut off in the second boot, beside the folders of all four."""
    plan, folder = whole
    lines = (folder / store.RECORDS).read_bytes().splitlines(keepends=True)
    records = store.load_records(folder)[0]
    second = next(i for i, x in enumerate(records) if isinstance(x, r.BootStarted) and x.boot == 2)
    (folder / store.RECORDS).write_bytes(b"".join(lines[: second + 3]))
    logs = {path: path.read_bytes() for path in (folder / store.BOOTS).rglob(LOG)}
    assert len(logs) == 4
    execute(plan, folder, command=fake, quiet=True)
    assert {path: path.read_bytes() for path in logs} == logs
    records, notices = store.load_records(folder)
    ended = [(x.boot, x.attempt, x.status) for x in records if isinstance(x, r.BootEnded)]
    assert ended == [(1, 1, "ok"), (2, 1, "interrupted"), *((boot, 2, "ok") for boot in (2, 3, 4))]
    verdict = judge(plan, records)
    assert (verdict.word, verdict.void, notices) == ("improved", [], [])
    last = {x.boot: x.log for x in records if isinstance(x, r.BootEnded)}
    assert last[4] == f"boots/{plan.boots[3].folder}-attempt2/{LOG}"


@pytest.mark.parametrize("cut", [True, False])
def test_a_copy_without_logs_is_gone_on_with(whole, fake, cut):
    plan, folder = whole
    lines = (folder / store.RECORDS).read_bytes().splitlines(keepends=True)
    (folder / store.RECORDS).write_bytes(b"".join(lines[: len(lines) - 5 * cut]))
    shutil.rmtree(folder / store.BOOTS)
    execute(plan, folder, command=fake, quiet=True)
    assert len(list((folder / store.BOOTS).iterdir())) == cut
    verdict = judge(plan, store.load_records(folder)[0])
    assert (verdict.word, verdict.void) == ("improved", [])


@pytest.mark.parametrize("broken", [True, False])
@pytest.mark.parametrize("linked", ["boots", "boot"])
def test_a_link_in_place_of_a_folder_of_boots_is_refused_and_nothing_is_written(whole, fake, tmp_path, linked, broken):
    """`broken` is a link that leads to nothing, which a writer would make."""
    plan, folder = whole
    lines = (folder / store.RECORDS).read_bytes().splitlines(keepends=True)
    (folder / store.RECORDS).write_bytes(b"".join(lines[:-1]))
    place = folder / store.BOOTS / ("" if linked == "boots" else plan.boots[3].folder)
    elsewhere = tmp_path / "elsewhere"
    if not broken:
        elsewhere.mkdir()
    shutil.rmtree(place)
    place.symlink_to(elsewhere)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ResultsLost) as caught:
        execute(plan, folder, command=fake, quiet=True)
    told = "is a link, which leads elsewhere: put the folder itself in its place"
    assert str(caught.value) == f"cannot write {place}: it {told}"
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert list(elsewhere.iterdir() if elsewhere.exists() else ()) == []
