"""The gate's check is clean on the tree, and finds rules, padding and shapes that are wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from impl.audit.sp_moe_gate import check
from impl.dims import FLASH
from impl.sp_moe import SharedExpert, config_aware, shared_expert


def test_the_tree_is_clean():
    outcome = check()
    assert outcome.findings == ()
    assert outcome.evidence["rows that differ"] == 4
    # 3 * 2048 * 4096 fp8 values a layer, of which TP 2 holds half with the gate off; and their scales.
    assert outcome.evidence["bytes a layer and rank more with it on, TP 2"] == 3 * 1024 * 4096 + 4 * 24 * 32


def without_ep(config):
    return config_aware(replace(config, expert_parallel=True))


def for_any_kind(config):
    return config_aware(replace(config, kind="deepseek_v4")) and config.kind != "dense"


def target_only(config):
    return config_aware(config) and (config.kind != "deepseek_v4_dspark" or config.dp > 1)


@pytest.mark.parametrize(
    ("rule", "codes"),
    [(without_ep, {"gate"}), (for_any_kind, {"gate"}), (target_only, {"gate", "target-and-draft"})],
)
def test_a_wrong_config_aware_rule_is_found(rule, codes):
    findings = check(aware=rule).findings
    assert {finding.code for finding in findings} == codes
    assert all("config-aware" in finding.what or "disagree" in finding.what for finding in findings)


def test_todays_rule_without_dp_is_found():
    assert {finding.code for finding in check(today=config_aware).findings} == {"gate"}


def test_padding_that_does_not_flip_is_found():
    assert [finding.code for finding in check(pad=lambda sequence: True).findings] == ["padding"]


def padded_always(dims, tp, sequence):
    return shared_expert(dims, tp, False)


def cut_short(dims, tp, sequence):
    good = shared_expert(dims, tp, sequence)
    width = good.width if sequence else good.width - 128
    return SharedExpert(good.padded, width, (2 * width, FLASH.hidden_size), (FLASH.hidden_size, width))


@pytest.mark.parametrize("shapes", [padded_always, cut_short])
def test_shapes_that_do_not_follow_the_gate_are_found(shapes):
    assert {finding.code for finding in check(shapes=shapes).findings} == {"shapes"}
