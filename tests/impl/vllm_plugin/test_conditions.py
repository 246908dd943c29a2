"""What a worker says of speculation, so that two arms at other rates never read back alike."""

from types import SimpleNamespace

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
