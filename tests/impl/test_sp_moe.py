"""The gate of sequence-parallel MoE against a table written by hand, and the shapes that move with it."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impl.dims import FLASH, PICO
from impl.sp_moe import KINDS, MoeConfig, config_aware, pad_shared_expert, requires_dp, shared_expert, truth_table

# kind, EP, TP, DP -> vLLM's rule, the config-aware one. Every other combination is off under both.
ON = {
    ("moe", True, 2, 2): (True, True),
    ("moe", True, 4, 2): (True, True),
    ("deepseek_v4", True, 2, 1): (False, True),
    ("deepseek_v4", True, 4, 1): (False, True),
    ("deepseek_v4", True, 2, 2): (True, True),
    ("deepseek_v4", True, 4, 2): (True, True),
    ("deepseek_v4_dspark", True, 2, 1): (False, True),
    ("deepseek_v4_dspark", True, 4, 1): (False, True),
    ("deepseek_v4_dspark", True, 2, 2): (True, True),
    ("deepseek_v4_dspark", True, 4, 2): (True, True),
}
DIFFERENCES = {
    ("deepseek_v4", 2): "EP, TP 2, DP 1: on",
    ("deepseek_v4", 4): "EP, TP 4, DP 1: on",
    ("deepseek_v4_dspark", 2): "EP, TP 2, DP 1: on, with its target",
    ("deepseek_v4_dspark", 4): "EP, TP 4, DP 1: on, with its target",
}


@pytest.mark.parametrize("row", list(truth_table()), ids=lambda row: str(row.config))
def test_each_row_is_the_hand_written_one(row):
    c = row.config
    expected = ON.get((c.kind, c.expert_parallel, c.tp, c.dp), (False, False)) if c.token_shards else (False, False)
    assert (row.requires_dp, row.config_aware) == expected


def test_the_table_is_whole_and_its_differences_are_the_named_ones():
    rows = list(truth_table())
    assert len(rows) == len({row.config for row in rows}) == 4 * 2 * 2 * 3 * 2
    differing = [row for row in rows if row.differs]
    assert {(row.config.kind, row.config.tp) for row in differing} == DIFFERENCES.keys()
    assert len(differing) == len(DIFFERENCES)
    assert all(row.config.dp == 1 and row.config.expert_parallel and row.config_aware for row in differing)


def test_the_standard_serve_is_inert():
    """Expert parallelism off, TP = 2, DP = 1: neither rule says on, so the change does nothing there."""
    serve = MoeConfig("deepseek_v4", expert_parallel=False, tp=2, dp=1)
    assert not requires_dp(serve)
    assert not config_aware(serve)


def test_another_moe_at_dp_1_keeps_what_upstream_restored():
    assert not config_aware(MoeConfig("moe", expert_parallel=True, tp=8, dp=1))


@given(
    st.builds(MoeConfig, st.sampled_from(KINDS), st.booleans(), st.integers(1, 64), st.integers(1, 64), st.booleans())
)
def test_the_new_rule_only_ever_adds(config):
    assert config_aware(config) or not requires_dp(config)
    if config.dp > 1:
        assert config_aware(config) == requires_dp(config)


@pytest.mark.parametrize(
    ("tp", "sequence_parallel", "width"),
    [(1, False, 2048), (2, False, 1024), (8, False, 256), (3, False, 768), (32, False, 128), (2, True, 2048),
     (8, True, 2048)],
)  # fmt: skip
def test_shapes_of_the_shared_expert_at_flash(tp, sequence_parallel, width):
    shared = shared_expert(FLASH, tp, sequence_parallel)
    assert shared.padded is pad_shared_expert(sequence_parallel) is (not sequence_parallel)
    assert (shared.width, shared.up, shared.down) == (width, (2 * width, 4096), (4096, width))


def test_flipping_the_gate_changes_what_a_rank_loads():
    share, whole = shared_expert(FLASH, 2, False), shared_expert(FLASH, 2, True)
    assert (share.padded, whole.padded) == (True, False)
    assert share.up != whole.up
    # 3 * I * H fp8 values, and 4 bytes for each 128 x 128 of them.
    assert whole.nbytes == 3 * 2048 * 4096 + 4 * (3 * 2048 // 128) * (4096 // 128)
    assert whole.nbytes == 2 * share.nbytes


def test_a_share_is_padded_to_whole_blocks():
    assert shared_expert(PICO, 2, False).width == 128
    assert shared_expert(PICO, 2, True).width == PICO.expert_width == 64


@pytest.mark.parametrize(
    ("values", "said"), [(("moe", True, 0, 1), "tp must be at least 1, got 0"), (("qwen", True, 1, 1), "'qwen'")]
)
def test_configs_that_cannot_be_are_refused(values, said):
    with pytest.raises(ValueError, match=said):
        MoeConfig(*values)


def test_it_needs_no_torch():
    code = "import sys, impl.sp_moe; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
