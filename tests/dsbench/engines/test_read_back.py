"""What is read back of a server, and where its bytes and its log do not agree."""

import json

import pytest

from dsbench.engines import read_back
from dsbench.engines.read_back import completed, disagreements, log_boot, rank_of, read_back_all
from dsbench.parse.boot_facts import Boot
from dsbench.records import Arm

LOG = """\
(APIServer pid=1) INFO 01-01 00:00:00 [api_utils.py:347] ..  version 0.26.0
(EngineCore pid=2) INFO 01-01 00:00:00 [core.py:1] Initializing a V1 LLM engine (v0.26.0) with config: \
tensor_parallel_size=2, pipeline_parallel_size=1, data_parallel_size=1
(Worker_TP0 pid=3) INFO 01-01 00:00:09 [gpu_worker.py:773] Available KV cache memory: 10.80 GiB
(EngineCore pid=2) INFO 01-01 00:00:10 [k.py:1] GPU KV cache size: 1,081,344 tokens
(EngineCore pid=2) INFO 01-01 00:00:10 [k.py:2] Maximum concurrency for 524,288 tokens per request: 2.06x
"""
ARM = Arm(name="a", toggles=[], environment="", on=[], takes=[], primary=[], expected={}, declared=[])
GIB = 2**30


class Stopped:
    """A boot that has ended after its profile: a folder with a log."""

    def __init__(self, folder):
        self.boot_dir, self.log = folder, folder / "engine.log"


@pytest.fixture
def running(tmp_path):
    (tmp_path / "engine.log").write_text(LOG)
    return Stopped(tmp_path)


@pytest.mark.parametrize("plugin", [True, False])
def test_the_served_model_is_a_condition_with_and_without_a_plugin(running, tmp_path, monkeypatch, plugin):
    body = b'{"data": [{"id": "v4", "max_model_len": 8192}]}'
    monkeypatch.setattr(read_back, "get_body", lambda url, seconds: body if url.endswith("/v1/models") else None)
    if plugin:
        write(tmp_path, "conditions.rank0", toggles=[])
    told = read_back_all(running, ARM, "http://engine").conditions[0]
    assert told["served_model"] == "v4"
    assert told["served_max_model_len" if plugin else "max_model_len"] == 8192


def write(folder, name, **values):
    (folder / f"{name}.json").write_text(json.dumps(values))


def test_without_a_plugin_the_log_is_all_there_is(running):
    told = read_back_all(running, ARM, None)
    assert told.conditions[0]["vllm"] == "0.26.0"
    assert (told.conditions[0]["tp"], told.conditions[0]["toggles"]) == (2, [])
    assert told.conditions[0]["prefix_caching"] == "unknown"
    assert told.conditions[0]["served_model"] is None
    profile = told.kv_profiles[0]
    assert (profile["available_bytes"], profile["source"]) == (round(10.8 * GIB), "log")
    assert profile["rounding_bytes"] == int(0.005 * GIB)
    assert (profile["tokens"], profile["max_concurrency"], profile["blocks"]) == (1081344, 2.06, None)
    assert list(told.kv_profiles) == [0]


def test_what_a_rank_wrote_outranks_the_log_and_gets_what_only_the_log_has(running, tmp_path):
    exact = 11_596_411_699
    write(tmp_path, "conditions.rank0", toggles=["x"], max_model_len=524288)
    write(tmp_path, "kv_profile.rank0", available_bytes=exact, blocks=10)
    told = read_back_all(running, ARM, None)
    known = {key: value for key, value in told.kv_profiles[0].items() if value is not None}
    assert known == {"available_bytes": exact, "blocks": 10, "tokens": 1081344, "max_concurrency": 2.06}
    assert told.kv_profiles[0]["weights_bytes"] is None
    assert told.conditions == {0: {"toggles": ["x"], "max_model_len": 524288}}
    assert told.findings == []


@pytest.mark.parametrize(
    ("profiles", "conditions", "said"),
    [
        ({0: {"available_bytes": 10 * GIB}}, {}, "rank TP0 wrote 10,737,418,240 B available, its log says 10.8"),
        ({0: {"available_bytes": round(10.8 * GIB), "blocks": 90, "block_bytes": GIB // 10},
          1: {"available_bytes": 10 * GIB, "blocks": 100, "block_bytes": GIB // 10}}, {},
         "rank 0 has 90 blocks; the smallest rank's bytes hold 100"),
        ({0: {"available_bytes": round(10.8 * GIB)}}, {0: {"max_model_len": 65536}}, "the ranks run {65536}"),
    ],
)  # fmt: skip
def test_bytes_and_log_that_disagree_are_told(running, profiles, conditions, said):
    found = disagreements(conditions, profiles, log_boot(running.log))
    assert len(found) == 1
    assert said in found[0]


def test_bytes_within_the_rounding_agree(running):
    for bytes_ in (round(10.795 * GIB), round(10.805 * GIB)):
        assert disagreements({}, {0: {"available_bytes": bytes_}}, log_boot(running.log)) == []


def test_tokens_that_do_not_follow_are_told():
    boot = Boot(tokens={"0": 2000}, concurrency={"0": 3.0}, max_model_len=1000)
    assert "2,000 tokens of 1,000 are not 3 requests" in disagreements({}, {0: {}}, boot)[0]


@pytest.mark.parametrize(("tag", "rank"), [("0", 0), ("TP1", 1), ("PP1_TP1", 3), ("DP1_PP0_TP1_EP3", 5), ("DP1", 4)])
def test_the_rank_behind_a_tag(tag, rank):
    assert rank_of(tag, Boot(tensor_parallel_size=2, pipeline_parallel_size=2)) == rank


def test_a_log_without_figures_gives_no_profile():
    assert completed({}, Boot(), {}) == {}
    assert completed({}, None, {}) == {}
    assert completed({}, Boot(tokens={"0": 7}), {})[0]["available_bytes"] is None


@pytest.mark.parametrize(
    ("body", "model", "longest"),
    [
        (b'{"data": [{"id": "v4", "max_model_len": 8192}]}', "v4", 8192),
        (b'{"data": [{"id": ["v4"], "max_model_len": "8192"}]}', None, None),
        (b'{"data": [{"id": "\\ud800", "max_model_len": true}]}', "?", None),
        (b'{"data": {"id": "v4"}}', None, None),
        (b'{"data": ["v4"]}', None, None),
        (b'{"data": []}', None, None),
        (b'{"data": 5}', None, None),
        (b"[1]", None, None),
        (b"[" * 100_000, None, None),
        (b"\xff", None, None),
    ],
)
def test_a_list_of_models_of_another_shape_names_none(monkeypatch, body, model, longest):
    monkeypatch.setattr(read_back, "get_body", lambda url, seconds: body if url.endswith("/v1/models") else None)
    told = read_back.ask("http://engine")
    assert (told.get("model"), told.get("max_model_len")) == (model, longest)
