"""`dsbench suites`: what it says is worked out from the suite."""

import json
import re
from pathlib import Path

import pytest

from dsbench.cli import main
from dsbench.cli.suites import _short_time, _times, resolves
from dsbench.run_times import RunTime
from dsbench.suite import load_suite, parse_suite, shipped
from tests.dsbench.conftest import SMALL

DOSE = Path(__file__).resolve().parents[3] / "results" / "battery" / "dose.toml"


@pytest.fixture
def say(capsys, tmp_path):
    def go(*args):
        with pytest.raises(SystemExit) as ended:
            main(["suites", "--out", str(tmp_path / "results"), *args])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return go


def test_every_shipped_suite_is_listed(say):
    code, out, _ = say()
    assert code == 0
    for name in shipped():
        suite = load_suite(name)
        (told,) = re.findall(rf"^{name}\n((?:  .*\n)+)", out, re.MULTILINE)
        told = " ".join(told.split())
        assert told.endswith(suite.summary)
        assert f"boots {2 * (suite.warmup_boots + suite.blocks)};" in told
        assert "not measured yet" in told


@pytest.mark.parametrize("name", [[], ["full"], ["sm120-pr"]])
def test_a_pipe_gets_lines_that_can_be_read(say, monkeypatch, name):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert max(map(len, say(*name)[1].splitlines())) <= 120


def test_one_suite_in_detail(say):
    code, out, _ = say("sm120-pr")
    assert code == 0
    for part in ("--gpu-memory-utilization 0.975", "KV dtype", "long_context.tps.65539", "14 with one candidate"):
        assert part in out
    told = json.loads(say("sm120-pr", "--json")[1])
    assert told["boots"] == 14
    assert told["build"]["serve_args"][1] == "2"
    assert told["probes"]["prefill"]["metrics"][0] == "prefill.tps.1024"


def test_an_unknown_name_is_one_line(say):
    code, out, err = say("quik")
    assert (code, out) == (2, "")
    assert "did you mean quick or quality?" in err


def test_a_file_is_a_suite_too(say, tmp_path):
    (tmp_path / "mine.toml").write_text(SMALL)
    told = say(str(tmp_path / "mine.toml"))[1]
    assert "small: one reading of everything" in told
    assert f"--suite{tmp_path / 'mine.toml'}--measure" in "".join(told.split()), "lines may break at hyphens"


@pytest.mark.parametrize(
    ("blocks", "speed", "kv"),
    [
        (1, "equivalent within 2 %; a change from 6 blocks on", "a loss, and nothing else: one boot an arm"),
        (5, "equivalent within 2 %; a change from 6 blocks on", "any change"),
        (12, "standard deviations of a block's difference", "any change"),
    ],
)
def test_what_so_many_blocks_can_show(blocks, speed, kv):
    shows = resolves(parse_suite(SMALL.replace("blocks = 2", f"blocks = {blocks}"), "s.toml"))
    assert speed in shows["decode"]
    assert shows["kv"] == kv
    assert shows["smoke"] == "any item that is lost"


def test_each_metric_of_a_probe_is_told_by_its_own_items():
    shows = resolves(load_suite("full"))
    assert shows["coherence"] == (
        "recall: at best 2.6 points, if 2 % flip between boots; clean, finished: at best 9.9 points, if 2 % flip "
        "between boots; prefix_reuse: equal counts, and a change from 4 blocks on"
    )
    assert shows["instruction"] == "at best 7.8 points, if 2 % flip between boots"
    assert shows["toolcall"].startswith("points: at best 48 points")
    assert shows["toolcall"].endswith("recovery: 3 items are too few to tell")
    assert shows["concurrency"].startswith("tps, request_tps: 0.89 standard")
    for probe in ("coherence", "toolcall", "instruction"):
        table = load_suite("full").probes.table(probe)
        assert all(0 < table.n_items_of(key) <= table.n_items() for key in table.metrics())


def test_the_time_of_the_usual_shape_comes_first_and_another_ones_says_so():
    def time(place, estimated=False):
        return RunTime(240.0, place, "r", estimated)

    pico, micro = time("embedded pico, 2 cores"), time("embedded micro, 2 cores", estimated=True)
    given = _times(None, None, lambda suite, stored: [pico, time("vllm flash, 1x H200"), micro])
    assert given[0] == micro
    assert _short_time(given) == "4 min, estimated (embedded micro, 2 cores)"
    assert _short_time([pico]) == "4 min (embedded pico, 2 cores; embedded micro not measured yet)"
    assert _short_time([]) == "not measured yet"


@pytest.mark.skipif(not DOSE.exists(), reason="this tree was shipped without results/")
def test_the_suite_of_doses_is_full_with_all_problems_and_one_long_prompt():
    dose, full = load_suite(str(DOSE)), load_suite("full")
    assert (dose.guards, dose.drift_controls, dose.speculative) == (full.guards, full.drift_controls, full.speculative)
    differ = [name for name in full.probes.names() if getattr(dose.probes, name) != getattr(full.probes, name)]
    assert differ == ["gsm8k", "identity"]
    assert dose.probes.items("gsm8k") == 1319
    *same, longer = dose.probes.identity.prompts
    assert same == full.probes.identity.prompts
    assert len(longer) >= 1000, "of micro a character is a token"


def test_more_items_and_more_boots_show_less():
    def points(suite, probe):
        text = resolves(suite)[probe]
        return float(text.split("at best ")[1].split(" points")[0])

    recipe = load_suite("gb10-review")
    more = recipe.model_copy(update={"blocks": 8})
    assert 0 < points(more, "gsm8k") < points(recipe, "gsm8k") < points(recipe, "toolcall")


@pytest.mark.parametrize(("limit", "told"), [(1, "1 item is too few to tell"), (2, "2 items are too few to tell")])
def test_few_items_are_said_to_be_too_few(limit, told):
    suite = parse_suite(f'name = "x"\nsummary = "s"\nblocks = 2\n[probes.gsm8k]\nlimit = {limit}\n', "x.toml")
    assert told in resolves(suite)["gsm8k"]
    assert "nan" not in resolves(suite)["gsm8k"]
