"""What vLLM can be asked of a boot: rates of synthetic acceptance, by which arms are told apart; compilations."""

import shutil
from types import SimpleNamespace

import pytest

from dsbench.engines.vllm import EACH_COMPILATION, TELLS_EACH
from dsbench.parse.progress import compile_lines
from impl.vllm_plugin import conditions
from impl.vllm_plugin.conditions import synthetic_rates
from impl.vllm_plugin.sites import Symbol, Text
from tests.impl.vllm_plugin.extract import module_of


def test_rates_tell_arms_apart_that_a_length_no_longer_does():
    def config(rates):
        return SimpleNamespace(synthetic_acceptance_length=None, synthetic_acceptance_rates=rates)

    assert synthetic_rates(config([1.0, 1.0, 3.3 - 3, 0.0, 0.0])) == [1.0, 1.0, 0.3, 0.0, 0.0]
    assert synthetic_rates(config([1.0, 2.1 - 2, 0.0, 0.0, 0.0])) == [1.0, 0.1, 0.0, 0.0, 0.0]


def test_an_edit_of_what_runs_inside_vllm_shows(tmp_path, monkeypatch):
    """Kernels and their tuning, which the plugin takes from impl.ops, as well as Python."""
    shutil.copytree(conditions.PACKAGE, tmp_path / "impl", ignore=shutil.ignore_patterns("weights", "__pycache__"))
    monkeypatch.setattr(conditions, "PACKAGE", tmp_path / "impl")
    seen = [conditions.sources_digest()]
    for name in ("ops/cuda/mhc_few.cu", "ops/cuda/mhc_parts.cuh", "ops/tuning.json", "ops/triton/mhc.py", "dims.py"):
        with (tmp_path / "impl" / name).open("a") as file:
            file.write("\n")
        seen.append(conditions.sources_digest())
    assert len(set(seen)) == 6


def test_where_the_target_verifies_there_are_none():
    assert synthetic_rates(None) == []
    assert synthetic_rates(SimpleNamespace(method="ngram")) == []
    assert synthetic_rates(SimpleNamespace(synthetic_acceptance_rates=None)) == []


@pytest.mark.parametrize("version", TELLS_EACH)
def test_versions_that_can_tell_every_compilation_have_the_flag(version, sources):
    arguments = (sources(version) / "vllm/engine/arg_utils.py").read_text(encoding="utf-8")
    assert f'"{EACH_COMPILATION}"' in arguments


SPECULATIVE = "vllm.config.speculative"


@pytest.mark.parametrize("version", TELLS_EACH)
@pytest.mark.parametrize("site", [
    Symbol(SPECULATIVE, "SpeculativeConfig.synthetic_acceptance_rates"),
    Text(SPECULATIVE, "SpeculativeConfig._verify_args", "self.synthetic_acceptance_length = None"),
], ids=str)  # fmt: skip
def test_a_length_becomes_rates_in_every_version(version, site, sources):
    assert site.fault(sources(version)) is None


JIT_MONITOR = "vllm.utils.jit_monitor"


@pytest.mark.parametrize("version", TELLS_EACH)
@pytest.mark.parametrize("verbose", [False, True])
def test_what_the_monitor_says_is_taken_for_compiling(version, verbose, sources):
    """vLLM's own functions say it, of each kind of kernel that the version watches; without verbose once a text."""
    said: list[str] = []

    def warning(message, *args):
        said.append(message % args)

    def warning_once(message, *args):
        if message % args not in said:
            said.append(message % args)

    root = sources(version)
    kinds = [
        kind for kind in ("cutedsl", "tilelang") if not Symbol(JIT_MONITOR, f"_log_{kind}_jit_compile").fault(root)
    ]
    monitor = module_of(
        root, JIT_MONITOR, ["_handle_jit_event", "_log_triton_jit_compile", *(f"_log_{k}_jit_compile" for k in kinds)],
        logger=SimpleNamespace(warning=warning, warning_once=warning_once), _mode="warn", _verbose=verbose,
        _format_verbose_triton_compile_details=lambda kwargs: "constexprs={}; signature={}",
    )  # fmt: skip
    for _ in range(2):
        monitor._log_triton_jit_compile("_resample_kernel", {})
        for kind in kinds:
            getattr(monitor, f"_log_{kind}_jit_compile")("kernel")
    assert len(said) == (1 + len(kinds)) * (2 if verbose else 1)
    assert len(compile_lines("\n".join(said))) == len(said)
