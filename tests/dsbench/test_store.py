import json
import resource
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dsbench
from dsbench import store
from dsbench.errors import InputError, ResultsLost
from dsbench.judge import judge
from dsbench.records import Finding, Observation


@pytest.fixture
def folder(tmp_path, make_plan, make_records):
    plan = make_plan()
    folder = store.create(plan, tmp_path)
    with store.RecordWriter(folder) as writer:
        writer.write(*make_records(plan))
    return folder


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


def test_a_bad_line_in_the_middle_is_an_error_with_its_number(folder):
    path = folder / store.RECORDS
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:4], b"{}\n", *lines[4:]]))
    with pytest.raises(InputError, match=r"records\.jsonl:5: not a record"):
        store.load_records(folder)


@pytest.mark.parametrize("place", [0.1, 0.5, 0.97])
def test_a_changed_byte_is_an_error_with_its_line(folder, place):
    path = folder / store.RECORDS
    lines = path.read_bytes().splitlines(keepends=True)
    digits = [i for i, byte in enumerate(lines[6]) if chr(byte) in "0123456789"]
    at = digits[int(place * len(digits))]
    other = b"7" if lines[6][at : at + 1] != b"7" else b"3"
    path.write_bytes(b"".join([*lines[:6], lines[6][:at] + other + lines[6][at + 1 :], *lines[7:]]))
    with pytest.raises(InputError, match=r"records\.jsonl:7: damaged: its checksum is not that of its text"):
        store.load_records(folder)


def test_lines_without_checksums_are_taken_until_the_first_that_has_one(folder):
    """Results of earlier versions are, also when they are gone on with; a line that lost its own is not."""
    path = folder / store.RECORDS
    records, _ = store.load_records(folder)
    bare = [store.RECORD.dump_json(record) + b"\n" for record in records]
    path.write_bytes(b"".join(bare))
    assert store.load_records(folder) == (records, [])
    extra = Finding(boot=1, code="x", text="y")
    with store.RecordWriter(folder) as writer:
        writer.write(extra)
    assert store.load_records(folder) == ([*records, extra], [])
    with path.open("ab") as file:
        file.write(bare[0])
    with pytest.raises(InputError, match="damaged: it has no checksum, though"):
        store.load_records(folder)


def test_a_line_is_json_with_its_checksum_last(folder):
    lines = (folder / store.RECORDS).read_text(encoding="utf-8").splitlines()
    for line in lines:
        content = json.loads(line)
        assert list(content)[-1] == "crc32"
        text = line[: line.rindex(',"crc32"')] + "}"
        assert content["crc32"] == f"{zlib.crc32(text.encode()):08x}"


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
