import contextlib
import json
import os
import re
import resource

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dsbench
from dsbench import store
from dsbench.errors import InputError, ResultsLost
from dsbench.judge import judge
from dsbench.records import Finding, Observation


def test_what_is_written_is_read_back(folder, make_plan, make_records):
    assert store.load_plan(folder) == make_plan()
    records, notices = store.load_records(folder)
    assert records == make_records(make_plan())
    assert notices == []
    verdict = judge(make_plan(), records)
    assert store.load_verdict(folder) is None
    store.save_verdict(folder, verdict)
    assert store.load_verdict(folder) == verdict


def test_whole_numbers_stay_whole(folder):
    records, _ = store.load_records(folder)
    values = {o.metric: o.value for o in records if isinstance(o, Observation)}
    assert isinstance(values["kv.weights_bytes"], int)
    assert isinstance(values["decode.tps.c1"], float)
    assert values["identity.tokens"] == [1, 2]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(cut=st.integers(1, 400))
def test_a_torn_last_line_is_dropped_with_a_notice_and_nothing_else(folder, cut):
    path = folder / store.RECORDS
    whole = path.read_bytes()
    try:
        path.write_bytes(whole[:-cut])
        records, notices = store.load_records(folder)
        kept = whole[:-cut].count(b"\n")
        assert len(records) == kept
        torn = not whole[:-cut].endswith(b"\n")
        assert len(notices) == torn
        with store.RecordWriter(folder) as writer:
            writer.write(Finding(boot=1, code="x", text="y"))
        after, notices = store.load_records(folder)
        assert after[:-1] == records
        assert notices == []
    finally:
        path.write_bytes(whole)


def test_a_file_that_is_removed_takes_no_more(folder):
    extra = Finding(boot=1, code="x", text="y")
    with store.RecordWriter(folder) as writer:
        writer.write(extra)
        (folder / store.RECORDS).unlink()
        with pytest.raises(ResultsLost, match="it was removed while"):
            writer.write(extra)


def test_a_write_that_fails_half_way_leaves_no_half_line(folder):
    path = folder / store.RECORDS
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with store.RecordWriter(folder) as writer:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, limits[1]))
        try:
            with pytest.raises(ResultsLost, match=r"cannot write .*records\.jsonl: File too large"):
                writer.write(Finding(boot=1, code="x", text="y" * 100))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert path.read_bytes() == before
        writer.write(Finding(boot=1, code="x", text="y"))
    assert path.read_bytes().startswith(before)


def test_a_write_that_is_interrupted_anywhere_leaves_a_file_that_goes_on(folder, monkeypatch):
    """Ctrl-C may come before, within or after any step; the boot's end is written all the same."""
    finding = Finding(boot=1, code="x", text="y" * 50)
    before, _ = store.load_records(folder)

    class Stopping:
        """A file whose next write stops half-way, or whose next step after it does."""

        def __init__(self, file):
            self.file = file

        def __getattr__(self, name):
            return getattr(self.file, name)

        def write(self, content):
            self.file.write(content[: len(content) // 2])
            raise KeyboardInterrupt

    for stop in ("write", "fsync"):
        with store.RecordWriter(folder) as writer:
            with monkeypatch.context() as patched:
                if stop == "write":
                    patched.setattr(writer, "_file", Stopping(writer._file))
                else:
                    patched.setattr("os.fsync", _interrupted)
                with pytest.raises(KeyboardInterrupt):
                    writer.write(finding)
            writer.write(finding)
        after, notices = store.load_records(folder)
        assert notices == []
        assert after == [*before, *[finding] * (1 if stop == "write" else 2)]
        before = after


def _interrupted(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("change", [lambda content: content[:-200], lambda content: content + b"{}\n"])
def test_a_file_that_another_program_changes_takes_no_more(folder, change):
    path = folder / store.RECORDS
    with store.RecordWriter(folder) as writer:
        changed = change(path.read_bytes())
        path.write_bytes(changed)
        with pytest.raises(ResultsLost, match=r"records\.jsonl: another program changed it while"):
            writer.write(Finding(boot=1, code="x", text="y"))
        assert path.read_bytes() == changed


def test_nothing_is_written_after_a_damaged_last_line(folder):
    path = folder / store.RECORDS
    whole = path.read_bytes().replace(b'"seconds":1', b'"seconds":2')
    path.write_bytes(whole)
    with pytest.raises(InputError, match=r"records\.jsonl: its last line is damaged: its checksum is not that"):
        store.RecordWriter(folder).__enter__()
    assert path.read_bytes() == whole
    path.write_bytes(whole.replace(b'"seconds":2', b'"seconds":1'))
    with store.RecordWriter(folder) as writer:
        writer.write(Finding(boot=1, code="x", text="y"))


@contextlib.contextmanager
def files_of_at_most(size):
    """As on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_file_that_cannot_be_written_whole_stays_as_it_was(tmp_path):
    path = tmp_path / "report.html"
    for before in (None, b"before"):
        with files_of_at_most(100), pytest.raises(OSError, match=re.escape(f"File too large: '{path}'")):
            store.write_bytes(path, b"x" * 1000)
        assert [place.read_bytes() for place in tmp_path.iterdir()] == ([before] if before else [])
        store.write_text(path, "before")


def test_a_new_result_that_cannot_be_written_leaves_no_folder(make_plan, tmp_path):
    with files_of_at_most(100), pytest.raises(InputError, match="cannot write results to"):
        store.create(make_plan(), tmp_path / "results")
    assert list((tmp_path / "results").iterdir()) == []


def test_a_verdict_that_cannot_be_stored_says_that_the_records_are_whole(folder, make_plan):
    verdict = judge(make_plan(), store.load_records(folder)[0])
    with files_of_at_most(100), pytest.raises(ResultsLost, match=r"verdicts\.json: File too large; the records are wh"):
        store.save_verdict(folder, verdict)
    assert store.load_verdict(folder) is None


def test_links_in_a_result_lead_no_writer_elsewhere(folder, make_plan, tmp_path):
    """What a result of somebody else may hold. A torn last line is dropped of no file but our own."""
    victim = tmp_path / "victim"
    victim.write_text("precious, without an end of its line")
    records, _ = store.load_records(folder)
    (folder / f".{store.VERDICTS}.tmp").symlink_to(victim)
    (folder / store.VERDICTS).symlink_to(victim)
    store.save_verdict(folder, judge(make_plan(), records))
    assert store.load_verdict(folder) is not None
    (folder / store.RECORDS).unlink()
    (folder / store.RECORDS).symlink_to(victim)
    with pytest.raises(ResultsLost, match=r"cannot write .*records\.jsonl: Too many levels of symbolic links"):
        store.RecordWriter(folder).__enter__()
    assert victim.read_text() == "precious, without an end of its line"


def test_a_pipe_or_a_folder_in_place_of_a_file_is_refused_and_not_waited_for(folder):
    for name, read in ((store.VERDICTS, store.load_verdict), (store.RECORDS, store.load_records),
                       (store.PLAN, store.load_plan)):  # fmt: skip
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
        with pytest.raises(InputError, match=f"{name} is not a plain file"):
            read(folder)
        (folder / name).unlink()
        (folder / name).mkdir()
        with pytest.raises(InputError, match=f"{name} is not a plain file"):
            read(folder)


def test_a_pipe_in_place_of_a_verdict_is_replaced(folder, make_plan):
    os.mkfifo(folder / store.VERDICTS)
    verdict = judge(make_plan(), store.load_records(folder)[0])
    store.save_verdict(folder, verdict)
    assert store.load_verdict(folder) == verdict


def test_a_pipe_is_written_to(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    store.write_text(tmp_path / "pipe", "text")
    assert os.read(reader, 10) == b"text"
    os.close(reader)


@pytest.mark.parametrize("name", ["x" * 5000, "é" * 200, "a\0b", "\ud800"])
def test_what_no_path_can_be_is_no_result(name, tmp_path):
    with pytest.raises(InputError, match="no result at"):
        store.resolve(name, tmp_path)


def test_two_writers_are_refused(folder):
    with store.RecordWriter(folder), pytest.raises(InputError, match="being written by another"):
        store.RecordWriter(folder).__enter__()


def test_a_result_is_found_by_folder_id_or_part(folder, tmp_path):
    assert store.resolve(str(folder)) == folder
    assert store.resolve(folder.name, tmp_path) == folder
    assert store.resolve(folder.name[-6:], tmp_path) == folder
    for name in ("nothing", "../..", ""):
        with pytest.raises(InputError, match="no result at"):
            store.resolve(name, tmp_path)


def test_an_id_is_never_written_twice(folder, make_plan, tmp_path):
    with pytest.raises(InputError, match="is there already"):
        store.create(make_plan(), tmp_path)


def test_unwritable_results_are_one_line(make_plan, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write results to"):
        store.create(make_plan(), tmp_path / "file")


def test_a_plan_or_verdict_of_something_else_is_refused(folder):
    plan = json.loads((folder / store.PLAN).read_text())
    (folder / store.PLAN).write_text(json.dumps({**plan, "blocks": "many"}))
    with pytest.raises(InputError, match="is not a plan this version reads: blocks"):
        store.load_plan(folder)
    (folder / store.VERDICTS).write_text("{}")
    with pytest.raises(InputError, match="no verdict of this version"):
        store.load_verdict(folder)


def test_notebooks_get_data_frames(folder, make_plan):
    result = dsbench.load(folder)
    table = result.observations()
    assert len(table) == sum(isinstance(r, Observation) for r in result.records)
    tps = table[(table.metric == "decode.tps.c1") & (table.phase == "measured")]
    assert sorted(tps.arm) == ["baseline", "baseline", "mhc_input_reuse", "mhc_input_reuse"]
    assert set(tps.block) == {1, 2}
    assert result.verdicts().empty
    store.save_verdict(folder, judge(make_plan(), result.records))
    verdicts = dsbench.load(folder).verdicts()
    assert set(verdicts[verdicts.role == "primary"].word) == {"improved"}
