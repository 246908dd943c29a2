"""The comparison with vLLM's own operations runs where vLLM and a GPU are; its command line everywhere."""

import importlib.util

import pytest
import torch

from impl.vllm_plugin import check_ops


def test_an_unknown_name_is_refused(capsys):
    assert check_ops.main(["sema"]) == 2
    assert capsys.readouterr().err == "unknown check 'sema': seam, final, query, index\n"


@pytest.mark.gpu
@pytest.mark.vllm
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
@pytest.mark.parametrize("name", check_ops.CHECKS)
def test_same_as_vllm(name):
    assert check_ops.main([name]) == 0
