"""Shapes out of a served model's config.json: what was measured, and one line for a file that is none."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from impl.dims import FLASH
from impl.projection.__main__ import main
from impl.projection.config import FIELDS, dims_of_config

MEASURED = Path(__file__).resolve().parents[3] / "results/h200/vllm-kv/model-config.json"


@pytest.fixture
def write(tmp_path):
    def build(**changes):
        content = {**json.loads(MEASURED.read_text()), **changes}
        path = tmp_path / "config.json"
        path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
        return path

    return build


def test_the_model_that_was_measured_is_flash_with_fewer_layers_and_experts():
    assert dims_of_config(MEASURED) == FLASH.with_changes(
        name="6-layer", compress_ratios=(0, 0, 4, 128, 4, 128), aux_layers=(3, 4, 5), n_experts=16, n_hash_layers=1
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(4, 50).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.sampled_from([0, 4, 128]), min_size=n))))
def test_layers_beyond_the_last_have_no_ratio(write, layers_and_ratios):
    layers, ratios = layers_and_ratios
    dims = dims_of_config(write(num_hidden_layers=layers, compress_ratios=ratios, dspark_target_layer_ids=[layers - 1]))
    assert (dims.compress_ratios, dims.n_layers, dims.aux_layers) == (tuple(ratios[:layers]), layers, (layers - 1,))


@pytest.mark.parametrize("key", sorted({*FIELDS, "num_hidden_layers", "compress_ratios", "dspark_target_layer_ids"}))
@pytest.mark.parametrize("value", [None, "6", -1, True, 1.5, [], {}])
def test_a_key_that_is_missing_or_odd_is_named(write, key, value):
    with pytest.raises(ValueError, match=rf"^--config [^\n]*: {key} is [^\n]*$"):
        dims_of_config(write(**{key: value}))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=60) | st.recursive(st.none() | st.integers() | st.text(max_size=5), st.lists).map(json.dumps))
def test_anything_else_is_one_line(tmp_path, content):
    path = tmp_path / "odd.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=r"^--config [^\n]*$"):
        dims_of_config(path)


def test_a_shape_that_cannot_be_is_told_of_the_file(write, capsys):
    assert main(["--config", str(write(dspark_target_layer_ids=[6]))]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "config.json: aux_layers (6,) name a layer beyond the 6 there are" in line
    assert main(["--config", str(write(compress_ratios=[0, 4]))]) == 2
    assert "compress_ratios has 2 entries for 6 num_hidden_layers" in capsys.readouterr().err
    assert main(["--config", "/nowhere/config.json"]) == 2
    assert "No such file or directory; name a model's config.json" in capsys.readouterr().err
    assert main(["--config", str(write(architectures=["LlamaForCausalLM"]))]) == 2
    assert "only DeepseekV4ForCausalLM is projected" in capsys.readouterr().err
