import pytest

from dsbench.errors import InputError
from dsbench.metrics import REGISTRY, check_pattern, metric


def test_a_family_resolves_to_its_member():
    assert metric("prefill.tps.256").key == "prefill.tps.256"
    assert metric("decode.tps.c4").summary == "decoded tokens per second with 4 streams, first token to last"
    assert metric("decode.tps.c4").margin == 0.02


@pytest.mark.parametrize("key", ["prefill.tps.", "prefill.tps.x", "decode.tps.*", "decode.tps.4", "kv.block", ""])
def test_what_is_no_member_is_refused(key):
    with pytest.raises(InputError, match="unknown metric"):
        metric(key)


def test_near_names_are_suggested():
    with pytest.raises(InputError, match=r"did you mean kv\.blocks"):
        metric("kv.block")
    with pytest.raises(InputError, match=r"did you mean decode\.tps"):
        check_pattern("decod.tps.c*")


@pytest.mark.parametrize("pattern", ["kv.*", "decode.tps.*", "decode.tps.c1", "prefill.tps.256", "smoke.correct", "*"])
def test_patterns_that_match(pattern):
    check_pattern(pattern)


@pytest.mark.parametrize("pattern", ["kv", "smoke", "kv.block"])
def test_patterns_that_match_nothing(pattern):
    with pytest.raises(InputError, match="matches no metric"):
        check_pattern(pattern)


def test_exact_metrics_have_no_margin_and_are_process_local():
    for key, entry in REGISTRY.items():
        if entry.kind == "exact":
            assert (entry.margin, entry.scope, entry.clock) == (0.0, "process", False), key
    assert {k for k, m in REGISTRY.items() if k.startswith("kv.") and m.better == "up"} == {
        "kv.available_bytes",
        "kv.blocks",
        "kv.tokens",
        "kv.max_concurrency",
    }
