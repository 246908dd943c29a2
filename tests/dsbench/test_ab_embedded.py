"""The harness on the real engine: what it says when the engine is right, changed by flags, and broken by hand."""

import shutil
from pathlib import Path

import pytest

from dsbench import store
from dsbench.execute import execute
from dsbench.judge import judge
from dsbench.plan import plan_experiment
from dsbench.suite import load_suite, parse_suite
from impl.dims import PICO

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PROFILE = load_suite("kv").model_copy(update={"blocks": 2, "warmup_boots": 0})
SERVE = parse_suite(
    """
name = "serve"
summary = "tokens and speed, once"
blocks = 2
warmup_boots = 0
guards = ["identity.tokens", "prefill.tps.*", "decode.tps.*"]
drift_controls = ["kv.weights_bytes"]
[probes.kv]
[probes.identity]
prompts = ["Alice has 12 apples and buys 30 more.", "7*8="]
tokens = 8
[probes.prefill]
lengths = [64]
repeats = 1
[probes.decode]
streams = [2]
tokens = 8
repeats = 1
""",
    "serve.toml",
)


def run(out, *toggles, suite=PROFILE, controls=False, **changes):
    dims = PICO.with_changes(**changes)
    flags = {"dims": "pico", "load_format": "dummy", **changes}
    args = [part for name, value in flags.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    plan = plan_experiment(toggles, suite, dims, engine_args=args, controls=controls)
    folder = store.create(plan, out)
    execute(plan, folder, quiet=True)
    return judge(plan, store.load_records(folder)[0])


def primary(verdict):
    (row,) = [row for row in verdict.rows if row.role == "primary"]
    return row


@pytest.mark.parametrize(
    "changes", [{"max_num_batched_tokens": 512}, {"hidden_size": 128, "max_num_batched_tokens": 128}]
)
def test_the_saving_follows_the_shape(tmp_path, changes):
    verdict = run(tmp_path, "mhc_input_reuse", **changes)
    dims = PICO.with_changes(**changes)
    assert verdict.word == "improved", verdict.sentence
    assert primary(verdict).delta == -dims.max_num_batched_tokens * dims.hidden_size * 2


def test_two_toggles_are_additive_to_the_byte(tmp_path):
    verdict = run(tmp_path, "mhc_residual_reuse", "mhc_input_reuse")
    assert verdict.word == "improved", verdict.sentence
    entry = next(entry for entry in verdict.additivity if entry.metric == "kv.peak_activation_bytes")
    row = PICO.max_num_batched_tokens * PICO.hidden_size * 2
    assert entry.alone == {"mhc_residual_reuse": -4 * row, "mhc_input_reuse": -row}
    assert (entry.together, entry.difference) == (-5 * row, 0)


def test_a_served_run_has_the_same_tokens(tmp_path):
    verdict = run(tmp_path, "mhc_input_reuse", suite=SERVE)
    assert verdict.word == "improved", verdict.sentence
    words = {row.metric: row.word for row in verdict.rows}
    assert words["identity.tokens"] == "equivalent"
    assert words["decode.tps.c2"] == "inconclusive"


def test_the_planted_alias_of_the_small_path_is_caught(tmp_path):
    verdict = run(tmp_path, "residual_reuse_small_path", suite=SERVE, controls=True)
    assert verdict.word == "regressed", verdict.sentence
    assert primary(verdict).metric == "identity.tokens"


@pytest.fixture
def edited_engine(tmp_path, monkeypatch):
    """Boots run a copy of `impl` with one line changed by hand."""

    def edit(module, old, new):
        copy = tmp_path / "edited"
        shutil.copytree(ROOT / "impl", copy / "impl", ignore=shutil.ignore_patterns("__pycache__"))
        source = (copy / "impl" / module).read_text()
        assert source.count(old) == 1
        (copy / "impl" / module).write_text(source.replace(old, new))
        monkeypatch.chdir(copy)
        monkeypatch.setenv("PYTHONPATH", str(copy))

    return edit


def test_a_reuse_branch_deleted_by_hand_is_void(tmp_path, edited_engine):
    line = '        input_out = y if self._may_take("mhc_input_reuse", self.reuse_input, y, small) else None\n'
    edited_engine("model/streams.py", line, "        input_out = None\n")
    verdict = run(tmp_path, "mhc_input_reuse")
    assert verdict.exit_code == 4
    assert [reason.code for reason in verdict.void] == ["marker-missing"]
    assert primary(verdict).delta == 0


def test_an_extra_reference_to_y_is_no_saving(tmp_path, edited_engine):
    line = "        residual, y, post, comb = streams.pending()\n"
    edited_engine("model/streams.py", line, line + "        self.kept = y\n")
    verdict = run(tmp_path, "mhc_input_reuse")
    assert verdict.word == "void"
    assert "another reference to it is alive" in verdict.sentence
    assert primary(verdict).delta == 0


def test_a_reference_kept_after_some_sublayers_voids(tmp_path, edited_engine):
    """Most seams reuse and some are refused: the arm is only partly what it says."""
    line = "        cell = self.moe_seam(streams)\n"
    edited_engine("model/target.py", line, "        self.kept = streams.y\n" + line)
    verdict = run(tmp_path, "mhc_input_reuse")
    assert verdict.word == "void"
    assert [reason.code for reason in verdict.void] == ["marker-refused"]


def test_memory_kept_alive_where_no_check_looks_is_never_improved(tmp_path, edited_engine):
    """The branch runs and leaves its marker, but as many bytes live on after the step: persistent bytes say so."""
    line = "        del residual, y, residual_out, input_out\n"
    edited_engine(
        "model/streams.py", line, "        if input_out is not None:\n            Seam.kept = y.clone()\n" + line
    )
    verdict = run(tmp_path, "mhc_input_reuse")
    rows = {row.metric: row for row in verdict.rows}
    assert (verdict.word, verdict.void) == ("regressed", [])
    assert rows["kv.persistent_bytes"].delta >= -primary(verdict).delta
    assert rows["kv.available_bytes"].delta <= 0
