"""Recipes: the source document's builds and probe settings, and what of them a command line replaces."""

import json

import pytest

from dsbench.cli.experiment import Asked
from dsbench.errors import InputError
from dsbench.recipe import environment, overlaid
from dsbench.suite import Build, load_suite, parse_suite

NONE = dict.fromkeys(
    ("until", "timeout", "max_num_batched_tokens", "max_model_len", "hidden_size", "speculative",
     "draft_load_format", "synthetic_acceptance_rates", "synthetic_acceptance_length")
)  # fmt: skip
USUAL = {"seed": 0, "shape": "micro", "load_format": "auto", "eager": False}
BUILD = Build(
    hardware="two of them",
    model="org/m",
    serve_args=["--tensor-parallel-size", "2", "--enable-prefix-caching", "--speculative-config", "{}", "--x", "-1"],
    env={"A": "1", "B": "2"},
)


@pytest.fixture
def site(tmp_path):
    """A folder with a vLLM of a version that takes toggles."""
    info = tmp_path / "vllm-0.26.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.26.0\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\ndsbench = impl.vllm_plugin:register\n")
    return f"PYTHONPATH={tmp_path}"


def value(args, flag):
    return args[args.index(flag) + 1]


def asked(suite, **options):
    return Asked(**{**NONE, **USUAL, "suite_name": suite, **options})


@pytest.mark.parametrize(
    ("given", "args"),
    [
        ([], ["org/m", *BUILD.serve_args]),
        (["mine"], ["mine", *BUILD.serve_args]),
        (["--tensor-parallel-size=1"], ["org/m", *BUILD.serve_args[2:], "--tensor-parallel-size=1"]),
        (["mine", "-tp", "4"], ["mine", *BUILD.serve_args[2:], "-tp", "4"]),
        (["--no-enable-prefix-caching"],
         ["org/m", *BUILD.serve_args[:2], *BUILD.serve_args[3:], "--no-enable-prefix-caching"]),
        (["--block-size", "256"], ["org/m", *BUILD.serve_args, "--block-size", "256"]),
    ],
)  # fmt: skip
def test_what_is_given_replaces_what_the_recipe_says(given, args):
    assert overlaid(BUILD, given) == args


def test_variables_are_replaced_by_name():
    assert environment(BUILD, ("B=3", "C")) == ("A=1", "B=3", "C")


def test_the_sm120_recipe_is_the_source_documents(site):
    plan = asked("sm120-pr", toggles=("mhc_residual_reuse",), env=(site,)).plan()
    args = plan.engine_args
    assert plan.engine == "vllm"
    assert args[0] == "deepseek-ai/DeepSeek-V4-Flash-DSpark"
    flags = ("tensor-parallel-size", "gpu-memory-utilization", "max-model-len")
    assert [value(args, f"--{flag}") for flag in flags] == ["2", "0.975", "524288"]
    assert json.loads(value(args, "--speculative-config"))["method"] == plan.baseline.speculative == "dspark"
    assert "--kv-cache-dtype" not in args
    assert any("its source does not say" in note and "--kv-cache-dtype fp8" in note for note in plan.notes)
    probes = plan.probes
    assert probes.prefill.lengths == [1024, 4096, 16384, 65536]
    assert (probes.concurrency.streams, probes.concurrency.max_tokens) == ([2, 4, 8, 12], 500)
    assert (probes.long_context.lengths, probes.long_context.tokens) == ([32783, 65539], 2048)


def test_the_gb10_recipe_is_the_maintainers():
    suite = load_suite("gb10-review")
    args, probes = suite.build.serve_args, suite.probes
    flags = ("tensor-parallel-size", "gpu-memory-utilization", "max-model-len", "kv-cache-dtype")
    assert [value(args, f"--{flag}") for flag in flags] == ["2", "0.85", "49152", "fp8"]
    assert json.loads(value(args, "--speculative-config")) == {"method": "mtp", "num_speculative_tokens": 2}
    assert probes.items("gsm8k") == 1319
    requests = [probes.coherence.seeds * streams for streams in probes.coherence.concurrencies]
    assert requests == [2, 24], "2/2 and 23/24"
    assert (len(probes.toolcall.thinking), probes.toolcall.rounds, probes.items("toolcall")) == (3, 3, 135)
    assert [item.answer or item.expect for item in probes.smoke.items] == [391, "Paris", [2, 3, 5]]


def test_flags_of_the_command_line_win(site):
    plan = asked(
        "sm120-pr", toggles=("mhc_residual_reuse",), env=(site,), until="profile",
        serve_args="local/model --max-model-len 131072 --kv-cache-dtype fp8",
    ).plan()  # fmt: skip
    assert plan.engine_args[0] == "local/model"
    assert plan.dims["max_model_len"] == 131072
    assert plan.engine_args.count("--max-model-len") == 1
    assert value(plan.engine_args, "--tensor-parallel-size") == "2"
    assert (plan.until, plan.probes.names()) == ("profile", ["kv"])


def test_another_engine_takes_the_probes_alone():
    found = asked("gb10-review", engine="embedded")
    assert (found.engine, found.serve_args) == ("embedded", None)
    assert asked("quick").engine == "embedded"
    with pytest.raises(InputError, match="--max-model-len is for the embedded engine; give vllm its own flags"):
        asked("gb10-review", max_model_len=4096, toggles=("mhc_input_reuse",)).plan()


@pytest.mark.parametrize(
    ("build", "said"),
    [
        ('engine = "sglang"', "suites/x.toml:5: build.engine "),
        ('hardware = "x"\nserve_arg = []', "suites/x.toml:6: build.serve_arg unknown key; did you mean serve_args?"),
        ('hardware = "x"\nserve_args = ["m"]', "begins with 'm', which is no flag; a model is `model`"),
        ("model = 'm'", "build.hardware is missing"),
    ],
)
def test_a_build_is_checked(build, said):
    text = f'name = "x"\nsummary = "s"\nblocks = 2\n[build]\n{build}\n[probes.kv]\n'
    with pytest.raises(InputError) as caught:
        parse_suite(text, "suites/x.toml")
    assert said in str(caught.value)
