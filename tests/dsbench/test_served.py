"""Plans for engines that are not ours: what is checked before the first boot, and what the plan then says."""

import json
import venv

import pytest

from dsbench.cli.experiment import Asked
from dsbench.errors import InputError

NONE = dict.fromkeys(
    ("until", "timeout", "max_num_batched_tokens", "max_model_len", "hidden_size", "speculative",
     "draft_load_format", "synthetic_acceptance_rates", "synthetic_acceptance_length")
)  # fmt: skip


@pytest.fixture(scope="session")
def bare(tmp_path_factory):
    """An environment that has nothing: the one that runs the tests may have our plugin."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder)
    return str(folder)


@pytest.fixture
def site(tmp_path):
    """A folder on the engine's path in which some vLLM is installed, with or without our plugin."""

    def make(version="0.99.0", plugin=False):
        folder = tmp_path / f"site-{version}-{plugin}"
        info = folder / f"vllm-{version}.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
        if plugin:
            (info / "entry_points.txt").write_text("[vllm.general_plugins]\ndsbench = impl.vllm_plugin:register\n")
        return f"PYTHONPATH={folder}"

    return make


def plan(serve_args, env=(), suite="quick", **options):
    asked = {"suite_name": suite, "seed": 0, "shape": "micro", "load_format": "auto", "eager": False,
             "engine": "vllm", "serve_args": serve_args, "env": env, **options}  # fmt: skip
    return Asked(**{**NONE, **asked}).plan()


ARMS = ("a=env=X=1", "b=env=X=2")


def test_an_unknown_vllm_may_be_measured(site, bare):
    found = plan("org/m --max-model-len 4096", (site(),), arms=ARMS, vllm_python=bare)
    assert (found.engine, found.dims, found.engine_args) == (
        "vllm", {"name": "org/m", "max_model_len": 4096}, ["org/m", "--max-model-len", "4096"]
    )  # fmt: skip
    assert [(arm.on, arm.environment, arm.takes, arm.speculative) for arm in found.arms] == [([], "", [], "none")] * 2
    assert all(arm.env["X"] and arm.env["PYTHONPATH"] for arm in found.arms)
    kinds = {metric.key: metric.kind for metric in found.metrics}
    assert kinds.get("kv.available_bytes", "sample") == kinds.get("kv.tokens", "sample") == "sample"
    assert found.probes.output_law is None
    assert any("no plugin of ours" in note for note in found.notes)


def test_it_takes_no_toggles(site, bare):
    with pytest.raises(InputError, match=r"vLLM 0\.99\.0 takes no toggles, and 'mhc_input_reuse' is one"):
        plan("org/m", (site(),), toggles=("mhc_input_reuse",), vllm_python=bare)
    with pytest.raises(InputError, match="takes no toggles"):
        plan("org/m", (site(),), arms=("a=env=X=1", "b=toggles=mhc_input_reuse"), vllm_python=bare)


def test_with_the_plugin_arms_are_read_back(site):
    found = plan("org/m", (site(plugin=True),), arms=ARMS)
    assert all("draft_logits_persistent" in arm.on for arm in found.arms)
    assert not any("no plugin of ours" in note for note in found.notes)


def test_speculation_is_what_the_arguments_say(site):
    config = json.dumps({"method": "ngram", "num_speculative_tokens": 3})
    found = plan(f"org/m --speculative-config '{config}'", (site(),), arms=ARMS)
    assert [arm.speculative for arm in found.arms] == ["ngram", "ngram"]
    assert all(arm.speculates for arm in found.arms)


def test_the_vocabulary_is_the_models_own(site, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.json").write_text('{"architectures": ["Qwen3ForCausalLM"], "vocab_size": 288}')
    assert plan(str(tmp_path / "m"), (site(),), arms=ARMS).dims["vocab_size"] == 288


def test_starts_get_time_to_compile(site):
    assert plan("org/m", (site(),), arms=ARMS).timeouts.boot >= 900
    assert plan("org/m", (site(),), arms=ARMS, timeout=50.0).timeouts.boot == 50


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"serve_args": None}, "must begin with the model"),
        ({"serve_args": "m 'open"}, "No closing quotation"),
        ({"serve_args": "m --api-key abc"}, "would be stored with the plan"),
        ({"serve_args": "m", "shape": "flash"}, "--dims is for the embedded engine"),
        ({"serve_args": "m", "eager": True}, "--eager is for the embedded engine"),
        ({"serve_args": "m", "max_model_len": 7}, "--max-model-len is for the embedded engine"),
        ({"engine": "embedded", "serve_args": "m"}, "--serve-args is for another --engine"),
        ({"serve_args": "m", "vllm_python": "/no/such/venv"}, "no interpreter at /no/such/venv"),
    ],
)
def test_options_that_do_not_fit(options, said):
    with pytest.raises(InputError, match=said):
        plan(**{"arms": ARMS, **options})
