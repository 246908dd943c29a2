"""Triton's kernels run on a GPU, or by its interpreter, which a process has to choose before anything imports Triton.

Where these tests are not alone in their process and there is no GPU, they are left to `test_by_interpreter.py` beside
this folder, which runs them in a process of their own.
"""

import torch


def pytest_ignore_collect(collection_path, config):
    alone = config.args and all("ops/triton" in str(argument).replace("\\", "/") for argument in config.args)
    if collection_path.name.startswith("test_") and not torch.cuda.is_available() and not alone:
        return True
    return None
