"""`--capture` reaches the embedded engine's command line, and no other engine's."""

import pytest

from dsbench.cli.experiment import Asked
from dsbench.errors import InputError

OPTIONS = {
    "suite_name": "quick", "until": None, "timeout": None, "seed": 0, "shape": "micro", "max_num_batched_tokens": None,
    "max_model_len": None, "hidden_size": None, "load_format": "auto", "speculative": None, "eager": False,
    "draft_load_format": None, "synthetic_acceptance_rates": None, "synthetic_acceptance_length": None,
    "toggles": ("mhc_input_reuse",),
}  # fmt: skip


def test_capture_is_an_argument_of_every_boot_where_it_is_given():
    args = Asked(**OPTIONS, capture="steps").plan().engine_args
    assert args[args.index("--capture") + 1] == "steps"
    assert "--capture" not in Asked(**OPTIONS).plan().engine_args


def test_capture_of_another_engine_is_refused():
    asked = Asked(**OPTIONS, capture="steps", engine="vllm", serve_args="model")
    with pytest.raises(InputError, match="--capture is for the embedded engine; give vllm its own flags"):
        asked.plan()
