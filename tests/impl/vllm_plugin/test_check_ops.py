"""The comparison with vLLM's own operations runs where vLLM and a GPU are; its command line everywhere."""

import importlib.util

import pytest
import torch

from impl.vllm_plugin import check_ops, install


def test_an_unknown_name_is_refused(capsys):
    assert check_ops.main(["sema"]) == 2
    assert capsys.readouterr().err == "unknown check 'sema': seam, final, query, index\n"


@pytest.mark.parametrize(
    ("platform", "words"),
    [
        (
            "sm90",
            "unverified on SM120, and stays so: this is sm90. On such a card: python -m impl.vllm_plugin.check_ops",
        ),
        ("sm120", "unverified on SM120; this is the check of its kernel there"),
    ],
)
def test_the_index_check_says_what_it_is_worth(platform, words, monkeypatch, capsys):
    monkeypatch.setattr(install, "vllm_version", lambda: "0.26.0")
    monkeypatch.setattr(install, "platform_name", lambda: platform)
    compared = iter([("index rows, 1 x 1", True, "through a simulated consumer")])
    monkeypatch.setitem(check_ops.CHECKS, "index", lambda version: compared)
    assert check_ops.main(["index"]) == 0
    header, status, verdict = capsys.readouterr().out.splitlines()
    assert header == f"vLLM 0.26.0, {platform}"
    assert status.startswith("c128_indices_in_place is ")
    assert words in status
    assert verdict.split() == ["index", "rows,", "1", "x", "1", "same", "bits", "through", "a", "simulated", "consumer"]


@pytest.mark.gpu
@pytest.mark.vllm
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
@pytest.mark.parametrize("name", check_ops.CHECKS)
def test_same_as_vllm(name):
    assert check_ops.main([name]) == 0
