"""Files that an engine leaves in its boot's folder: whatever they hold, they are read or refused in one line."""

import contextlib
import json
import math
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsbench import records as r
from dsbench import store
from dsbench.boot_files import record_markers, record_read_back
from dsbench.engines import boot_json
from dsbench.engines.boot_json import read_object
from dsbench.engines.engine import ReadBack, read_ranks
from dsbench.engines.server import EngineFailed, Server
from dsbench.execute import _observation
from dsbench.probes.boot import ProbeFailed, Reading

FUNCTION = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


def refused(path):
    with pytest.raises(EngineFailed) as told:
        read_ranks(path.parent, "conditions")
    assert "\n" not in str(told.value)
    return str(told.value)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "conditions.rank0.json"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[" * 100_000, "nested too deep"),
        (b'{"a":' * 40 + b"1" + b"}" * 40, "nested too deep"),
        (b"", "it is not JSON"),
        (b"[]", "it is not an object"),
        (b"null", "it is not an object"),
        (b"\xff\xfe", "it is not UTF-8"),
        (b'{"a":' + b"9" * 5000 + b"}", "Exceeds the limit"),
        (b'{"a":"' + b"y" * boot_json.MOST_BYTES + b'"}', "larger than 1 MiB"),
    ],
    ids=["deep", "levels", "empty", "list", "null", "bytes", "digits", "large"],
)
def test_what_is_no_small_object_is_refused(path, content, said):
    path.write_bytes(content)
    assert said in refused(path)


def test_pipes_devices_and_folders_are_not_waited_for(path):
    os.mkfifo(path)
    assert refused(path).endswith("it is not a plain file")
    path.unlink()
    path.symlink_to("/dev/zero")
    assert refused(path).endswith("it is not a plain file")
    path.unlink()
    path.symlink_to(path)
    assert "symbolic links" in refused(path)
    path.unlink()
    path.mkdir()
    assert "plain file" in refused(path) or "directory" in refused(path)


def test_a_rank_has_a_number(path):
    for name in ("x", "", "²"):
        (path.parent / f"conditions.rank{name}.json").write_text("{}")
        assert "not the file of one rank" in refused(path)
        (path.parent / f"conditions.rank{name}.json").unlink()


@FUNCTION
@given(values=st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
def test_what_is_read_can_be_recorded(path, make_plan, values):
    """Also halves of surrogate pairs, infinities and large numbers."""
    path.write_text(json.dumps(values))
    assert read_object(path).keys() == {key.encode("utf-8", "replace").decode() for key in values}
    with store.RecordWriter(path.parent) as writer:
        record_read_back(ReadBack("", read_ranks(path.parent, "conditions"), {}), {"boot": 1}, writer)
    assert isinstance(store.load_records(path.parent)[0][-1], r.Conditions)


@FUNCTION
@given(toggles=VALUES, pid=VALUES)
def test_markers_are_counts_or_refused(tmp_path, toggles, pid):
    (tmp_path / "markers.rank0.json").write_text(json.dumps({"toggles": toggles, "pid": pid}))
    with store.RecordWriter(tmp_path) as writer, contextlib.suppress(EngineFailed):
        record_markers(tmp_path, {"boot": 1}, "ready", writer)
        assert isinstance(store.load_records(tmp_path)[0][-1], r.Markers)


def test_markers_that_count_nothing_are_told(tmp_path):
    (tmp_path / "markers.rank0.json").write_text('{"toggles": {"a": 1}}')
    with (
        store.RecordWriter(tmp_path) as writer,
        pytest.raises(EngineFailed, match="does not count toggles"),
    ):
        record_markers(tmp_path, {"boot": 1}, "ready", writer)


@FUNCTION
@given(content=VALUES, host=VALUES, port=VALUES, pid=VALUES)
def test_an_odd_ready_file_is_no_server(tmp_path, content, host, port, pid):
    server = Server(["true"], {}, tmp_path, stop_s=1)
    for written in (content, {"host": host, "port": port, "pid": pid}):
        (tmp_path / "ready.json").write_text(json.dumps(written))
        ready = server.read_ready()
        assert ready is None or 0 < ready.port < 65_536


@pytest.mark.parametrize("value", [10**400, math.inf, math.nan, {"a": 1}, ["x"], 1e300])
def test_a_reading_that_is_no_figure_fails_its_probe(make_plan, value):
    with pytest.raises(ProbeFailed, match=r"runtime_peak_bytes reads .* which cannot be recorded"):
        _observation(Reading("kv.runtime_peak_bytes", value, rank=0), make_plan().boots[0], {"boot": 1})
