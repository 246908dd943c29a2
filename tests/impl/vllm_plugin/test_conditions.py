"""What vLLM can be asked of a boot: rates of synthetic acceptance, by which arms are told apart; compilations."""

from types import SimpleNamespace

import pytest

from dsbench.engines.vllm import EACH_COMPILATION, TELLS_EACH
from impl.vllm_plugin.conditions import synthetic_rates


def test_rates_tell_arms_apart_that_a_length_no_longer_does():
    def config(rates):
        return SimpleNamespace(synthetic_acceptance_length=None, synthetic_acceptance_rates=rates)

    assert synthetic_rates(config([1.0, 1.0, 3.3 - 3, 0.0, 0.0])) == [1.0, 1.0, 0.3, 0.0, 0.0]
    assert synthetic_rates(config([1.0, 2.1 - 2, 0.0, 0.0, 0.0])) == [1.0, 0.1, 0.0, 0.0, 0.0]


def test_where_the_target_verifies_there_are_none():
    assert synthetic_rates(None) == []
    assert synthetic_rates(SimpleNamespace(method="ngram")) == []
    assert synthetic_rates(SimpleNamespace(synthetic_acceptance_rates=None)) == []


@pytest.mark.parametrize("version", TELLS_EACH)
def test_versions_that_can_tell_every_compilation_have_the_flag(version, sources):
    arguments = (sources(version) / "vllm/engine/arg_utils.py").read_text(encoding="utf-8")
    assert f'"{EACH_COMPILATION}"' in arguments
