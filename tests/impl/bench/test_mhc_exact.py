"""The checks of the mHC kernels, on a CPU: the reference passes them, and what is a little wrong does not."""

from dataclasses import replace

import torch

from impl.bench.mhc_exact import against_exact, near
from impl.ops import mhc

HIDDEN = 1024


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def seam_weights():
    return mhc.SeamWeights(
        normal(24, 4 * HIDDEN, seed=1) / 64, 1 + 0.1 * normal(3, seed=2), 0.1 * normal(24, seed=3),
        1 + 0.1 * normal(HIDDEN, seed=4), 1e-6, 1e-6, 20,
    )  # fmt: skip


def head_weights():
    return mhc.HeadWeights(normal(4, 4 * HIDDEN, seed=1) / 64, normal(1, seed=2), normal(4, seed=3), 1e-6, 1e-6)


def found_by(weights, streams, changed):
    """What `changed` weights give, beside the reference of `weights`."""
    if isinstance(weights, mhc.HeadWeights):
        return against_exact(streams, weights, mhc.head(streams, changed), mhc.head(streams, weights))
    found = mhc.pre(streams, changed)
    return against_exact(
        streams, weights, found.layer_input, mhc.pre(streams, weights).layer_input, (found.post, found.comb)
    )


def test_the_reference_is_within_its_roundings():
    streams = normal(600, 4, HIDDEN, seed=9).bfloat16()
    for weights in (seam_weights(), head_weights()):
        report = found_by(weights, streams, weights)
        assert near(report), report
        assert report["rows_error_ratio"] == 1
        assert 0.5 < report["rows_of_bound"] <= 1, "the bound is what the roundings can really come to"


def test_products_with_eight_significant_bits_are_found():
    streams = normal(600, 4, HIDDEN, seed=9).bfloat16()
    for weights in (seam_weights(), head_weights()):
        report = found_by(weights, streams, replace(weights, fn=weights.fn.bfloat16().float()))
        assert not near(report), report
        assert report["rows_of_bound"] > 1


def test_fewer_sinkhorn_iterations_are_found():
    streams = normal(64, 4, HIDDEN, seed=9).bfloat16()
    report = found_by(seam_weights(), streams, replace(seam_weights(), sinkhorn_iters=2))
    assert report["gates_off"] > 1e-4
    assert not near(report)


def test_one_wrong_element_is_found():
    streams, weights = normal(64, 4, HIDDEN, seed=9).bfloat16(), head_weights()
    reference = mhc.head(streams, weights)
    wrong = reference.clone()
    wrong[40, 7] += 0.1
    assert against_exact(streams, weights, wrong, reference)["rows_of_bound"] > 1
