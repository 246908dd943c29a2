"""Lines of records.jsonl: none is changed, lost, doubled or moved without a word; files of older versions are read."""

import json
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsbench import record_lines, store
from dsbench.errors import InputError
from dsbench.record_lines import lines_of, parse, read_records, record_of
from dsbench.records import RECORD, Finding, Observation

OLDER = "an older dsbench wrote them"


@pytest.fixture
def file(folder):
    """A file of records as they are written now."""
    return folder / store.RECORDS


@pytest.fixture(params=[1 << 17, 700], ids=["one block", "many blocks"])
def at_once(request, monkeypatch):
    """Lines are read in one block, or in blocks of some lines."""
    monkeypatch.setattr(record_lines, "AT_ONCE", request.param)


def lines_in(file):
    return file.read_bytes().splitlines(keepends=True)


def summed(content):
    """A line of dsbench 0.1."""
    return b'%b,"crc32":"%08x"}\n' % (content[:-1], zlib.crc32(content))


def test_a_line_is_json_and_tells_its_checksum_and_the_one_before(file):
    before = 0
    for line in lines_in(file):
        content = json.loads(line)
        assert list(content)[-2:] == ["after", "crc32"]
        assert int(content["after"], 16) == before
        before = zlib.crc32(line[: line.rindex(b',"after"')], before)
        assert int(content["crc32"], 16) == before


FUNCTION = [HealthCheck.function_scoped_fixture]
many = settings(suppress_health_check=FUNCTION, max_examples=150, deadline=None)


def moved(draw, lines):
    """Some lines without a stretch, with a stretch doubled, or with two stretches exchanged; and where that begins.

    The last lines are never left out: what was never written cannot be told from what is missing there.
    """
    kind = draw(st.sampled_from(["delete", "double", "swap"]))
    start = draw(st.integers(0, len(lines) - 2))
    end = draw(st.integers(start + 1, min(len(lines) - 1, start + 5)))
    if kind == "delete":
        return start, [*lines[:start], *lines[end:]]
    if kind == "double":
        return end, [*lines[:end], *lines[start:end], *lines[end:]]
    after = draw(st.integers(end + 1, len(lines)))
    return start, [*lines[:start], *lines[end:after], *lines[start:end], *lines[after:]]


@many
@given(data=st.data())
def test_lines_that_are_deleted_doubled_or_moved_are_refused_where_it_begins(file, at_once, data):
    whole = file.read_bytes()
    start, lines = moved(data.draw, whole.splitlines(keepends=True))
    try:
        file.write_bytes(b"".join(lines))
        with pytest.raises(InputError) as told:
            read_records(file)
        after = f"line {start}" if start else "the beginning"
        assert str(told.value) == (
            f"{file}:{start + 1}: damaged: it does not follow {after}: a line is missing, doubled or out of its place; "
            "take the file from a copy, or run anew"
        )
        with pytest.raises(ValueError, match="damaged"):
            _as_error(file)
    finally:
        file.write_bytes(whole)


def _as_error(file):
    """Whoever loads a result gets the same refusal."""
    try:
        store.load_records(file.parent)
    except InputError as error:
        raise ValueError(error) from None


@many
@given(at=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_changed_byte_is_refused_or_tears_the_last_line(file, at_once, at, flip):
    whole = file.read_bytes()
    place = int(at * len(whole))
    changed = bytes([whole[place] ^ flip])
    try:
        file.write_bytes(whole[:place] + changed + whole[place + 1 :])
        if place == len(whole) - 1:
            assert len(read_records(file)[0]) == whole.count(b"\n") - 1
            return
        with pytest.raises(InputError, match=r"records\.jsonl:\d+: (damaged|not a record)"):
            read_records(file)
    finally:
        file.write_bytes(whole)


def test_what_is_missing_at_the_end_makes_its_result_void(file, make_plan):
    """No line tells that others should follow; the plan does."""
    from dsbench.judge import judge

    records, _ = read_records(file)
    file.write_bytes(b"".join(lines_in(file)[:-1]))
    cut, notices = read_records(file)
    assert (cut, notices) == (records[:-1], [])
    assert [reason.code for reason in judge(make_plan(), cut).void] == ["boot-missing"]


def test_a_line_that_is_no_record_is_refused_with_its_number(file, at_once):
    lines = lines_in(file)
    file.write_bytes(b"".join([*lines[:4], b"{}\n", *lines[4:]]))
    with pytest.raises(InputError, match=r"records\.jsonl:5: not a record"):
        read_records(file)


@many
@given(data=st.data())
def test_files_of_older_versions_are_read_and_said_to_be_such_once(file, at_once, data):
    """Some lines bare, then some with a checksum alone, then chained ones; what is chained cannot be unchained."""
    whole = file.read_bytes()
    records, _ = read_records(file)
    contents = [parse(line).content for line in whole.splitlines()]
    unchained = data.draw(st.integers(1, len(contents)))
    bare = data.draw(st.integers(0, unchained))
    older = [*(content + b"\n" for content in contents[:bare]), *map(summed, contents[bare:unchained])]
    last = parse(older[-1][:-1]).crc32
    newer = list(lines_of(contents[unchained:], last))
    try:
        file.write_bytes(b"".join([*older, *newer]))
        found, notices = read_records(file)
        assert found == records
        assert len(notices) == 1
        assert OLDER in notices[0]
        assert ("its lines" in notices[0]) == (not newer)
        wrong = [content + b"\n" for content in contents[-1:]] + [summed(contents[-1])]
        for line in wrong[: 2 if newer else bare < unchained]:
            file.write_bytes(b"".join([*older, *newer, line]))
            with pytest.raises(
                InputError, match=rf"records\.jsonl:{len(contents) + 1}: damaged: it (has no|does not tell)"
            ):
                read_records(file)
    finally:
        file.write_bytes(whole)


def test_a_file_of_an_older_version_is_gone_on_with(file, at_once):
    records, _ = read_records(file)
    contents = [parse(line[:-1]).content for line in lines_in(file)]
    extra = Finding(boot=1, code="x", text="y")
    for older in (summed, lambda content: content + b"\n"):
        file.write_bytes(b"".join(map(older, contents)) + b'{"torn":')
        with store.RecordWriter(file.parent) as writer:
            writer.write(extra)
            writer.write_all([extra, extra])
        found, notices = read_records(file)
        assert found == [*records, extra, extra, extra]
        assert [OLDER in notice and "first" in notice for notice in notices] == [True]
        lines = lines_in(file)
        file.write_bytes(b"".join([*lines[:-4], *lines[-3:]]))
        with pytest.raises(InputError, match=f"records.jsonl:{len(records)}: damaged: it does not follow line"):
            read_records(file)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=60), min_size=1, max_size=8), st.integers(0, 2**32 - 1))
def test_any_text_is_written_and_found_again(texts, before):
    """Also one that looks like the end of a line."""
    odd = [',"after":"00000000","crc32":"00000000"}', '","crc32":"01234567"}\n', "\r\u2028\x85"]
    records = [Finding(boot=1, code="x", text=text) for text in [*texts, *odd]]
    for line, record in zip(lines_of(map(RECORD.dump_json, records), before), records, strict=True):
        assert line.endswith(b"}\n")
        assert line.count(b"\n") == 1
        assert parse(line[:-1]).after == before
        before = parse(line[:-1]).crc32
        assert record_of(line[:-1]) == record


def test_one_line_alone_must_have_its_checksum():
    with pytest.raises(ValueError, match="no checksum"):
        record_of(b"{}")
    (line,) = lines_of([RECORD.dump_json(Finding(boot=1, code="x", text="y"))])
    with pytest.raises(ValueError, match="checksum is not that"):
        record_of(line[:-1].replace(b'"y"', b'"z"'))


def test_equal_names_and_tokens_are_in_memory_once(file):
    items = [o for o in read_records(file)[0] if isinstance(o, Observation) and o.item == "a"]
    tokens = [o for o in items if isinstance(o.value, list)]
    assert len(items) > len(tokens) > 1
    assert len({id(o.item) for o in items}) == 1
    assert len({id(o.value) for o in tokens}) == 1
