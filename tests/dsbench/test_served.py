"""Plans for engines that are not ours: what is checked before the first boot, and what the plan then says."""

import json
import shlex
import venv

import pytest

from dsbench.cli.experiment import Asked
from dsbench.errors import InputError
from dsbench.judge import judge

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


def test_a_toggle_that_nobody_has_verified_is_called_so_in_its_plan(site):
    note = "c128_indices_in_place: unverified on SM120; check it: python -m impl.vllm_plugin.check_ops index"
    assert note in plan("org/m", (site(plugin=True),), toggles=("c128_indices_in_place",), suite="full").notes
    assert note not in plan("org/m", (site(plugin=True),), toggles=("mtp_hidden_skip",), suite="full").notes


def test_what_no_boot_of_vllm_can_answer_is_no_open_guard(site, make_records):
    """The rows of the suite's guards are all answered."""
    asked = plan("org/m", (site(plugin=True),), suite="kv", toggles=("mhc_input_reuse",))
    assert "kv.index_maps_per_step" not in [*asked.guards, *(m.key for m in asked.metrics)]
    (note,) = [note for note in asked.notes if "kv.index_maps_per_step" in note]
    assert "not-applicable, vLLM's memory profile runs no attention" in note
    verdict = judge(asked, make_records(asked, lambda boot, key: "unknown" if "runtime_peak" in key else None))
    assert verdict.arms[0].unresolved_guards == []
    assert note in verdict.notes
    assert "kv.runtime_peak_bytes: not a guard, boots of vLLM that stop at the profile serve nothing" in verdict.notes
    served = plan("org/m", (site(plugin=True),), suite="quick", toggles=("mhc_input_reuse",))
    assert "kv.runtime_peak_bytes" in served.guards, "what serving allocated is read there"
    ours = Asked(**{**NONE, "suite_name": "kv", "seed": 0, "shape": "micro", "load_format": "auto", "eager": False,
                    "engine": "embedded", "toggles": ("mhc_input_reuse",)}).plan()  # fmt: skip
    assert "kv.index_maps_per_step" in ours.guards


def test_a_toggle_that_is_less_exact_in_vllm_is_called_so_in_its_plan(site):
    note = "mhc_final_fused: in vLLM the head within one rounding step, so a token that barely leads may change"
    assert note in plan("org/m", (site(plugin=True),), toggles=("mhc_final_fused",), suite="kv").notes
    assert note not in plan("org/m", (site(plugin=True),), toggles=("mtp_hidden_skip",), suite="kv").notes


def test_speculation_is_what_the_arguments_say(site):
    config = json.dumps({"method": "ngram", "num_speculative_tokens": 3})
    found = plan(f"org/m --speculative-config '{config}'", (site(),), arms=ARMS)
    assert [arm.speculative for arm in found.arms] == ["ngram", "ngram"]
    assert all(arm.speculates for arm in found.arms)


DRAFTS = {"method": "dspark", "num_speculative_tokens": 5}
LONG, SHORT = ({**DRAFTS, "rejection_sample_method": "synthetic", "synthetic_acceptance_length": n} for n in (3.3, 2.1))
UNSEEN = "with synthetic acceptance the output is not the target's"


def of_config(name, config):
    return f"{name}=args=" + shlex.join(["--speculative-config", json.dumps(config)])


def test_drafts_accepted_unseen_are_not_graded_as_the_targets_answers(site):
    strict = plan(f"org/m --speculative-config '{json.dumps(DRAFTS)}'", (site(),), suite="quality", arms=ARMS)
    graded = {"smoke", "gsm8k", "instruction", "coherence", "toolcall"}
    assert graded <= set(strict.probes.names())
    assert not any(UNSEEN in note for note in strict.notes)
    config = json.dumps(LONG)
    found = plan(f"org/m --speculative-config '{config}'", (site(),), suite="quality", arms=ARMS)
    assert not graded & set(found.probes.names())
    assert any(UNSEEN in note for note in found.notes)


def test_one_arm_with_drafts_accepted_unseen_is_enough(site):
    arms = ("strict=args=--async-scheduling", of_config("b", LONG))
    serve_args = f"org/m --speculative-config '{json.dumps(DRAFTS)}'"
    found = plan(serve_args, (site(),), suite="quality", arms=arms)
    assert "smoke" not in found.probes.names()
    assert [arm.args for arm in found.arms] == [["--async-scheduling"], ["--speculative-config", json.dumps(LONG)]]
    assert [arm.speculative for arm in found.arms] == ["dspark", "dspark"]


def test_speculation_of_an_arm_alone_is_seen_where_probes_are_chosen(site):
    arms = [of_config("ngram", {"method": "ngram", "num_speculative_tokens": 3}), of_config("dspark", DRAFTS)]
    found = plan("org/m", (site(),), suite="spec", arms=arms)
    assert [arm.speculative for arm in found.arms] == ["ngram", "dspark"]
    assert "acceptance" in found.probes.names()
    assert not any("no arm has speculation" in note for note in found.notes)
    off = plan("org/m", (site(),), suite="speed", arms=["off=env=X=1", arms[1]])
    assert [arm.speculative for arm in off.arms] == ["none", "dspark"]
    assert "off has no speculation" in " ".join(off.notes)


def read_back(rates):
    drafts = {"speculative": "dspark", "draft_tokens": 5, "rejection_sample_method": "synthetic"}
    # vLLM keeps the rates and forgets the length that they came from.
    return {**drafts, "synthetic_acceptance_length": None, "synthetic_acceptance_rates": rates}


def test_arms_at_other_rates_are_told_apart_and_must_declare_them(site, make_records):
    """The rates are read back; they may differ where the arms' --speculative-config does, and nowhere else."""
    rates = {"long": [1, 1, 0.3, 0, 0], "short": [1, 0.1, 0, 0, 0]}
    arms = [of_config("long", LONG), of_config("short", SHORT)]
    asked = plan("org/m", (site(plugin=True),), suite="kv", arms=arms)
    assert "synthetic_acceptance_rates" in asked.arms[1].declared
    other = plan("org/m", (site(plugin=True),), suite="kv", arms=("long=env=X=1", "short=env=X=2"))

    def codes(of_plan, read):
        arm_of = {boot.number: boot.arm for boot in of_plan.boots}
        records = [
            r.model_copy(update={"values": {**r.values, **read(arm_of[r.boot])}}) if r.record == "conditions" else r
            for r in make_records(of_plan)
        ]
        verdict = judge(of_plan, records)
        return [(reason.code, reason.text) for reason in verdict.void], verdict.notes

    void, notes = codes(asked, lambda arm: read_back(rates[arm]))
    assert void == []
    assert any("synthetic_acceptance_rates [1, 1, 0.3, 0, 0] -> [1, 0.1, 0, 0, 0]" in note for note in notes)
    differ, _ = codes(other, lambda arm: {**read_back(rates[arm]), "speculative": "none"})
    assert [code for code, _ in differ] == ["condition-differs"]
    assert "synthetic_acceptance_rates" in differ[0][1]
    # Results of before this was read back have no such key, in any boot.
    before = {key: value for key, value in read_back([]).items() if key != "synthetic_acceptance_rates"}
    assert codes(asked, lambda arm: before)[0] == []


def law_notes(found):
    return [note for note in found.notes if "noise key" in note]


@pytest.mark.parametrize("version", ["0.25.1", "0.26.0", "0.26.0+cu130"])
def test_an_output_law_that_upstream_breaks_is_not_laid_on_a_toggle(site, version):
    found = plan("org/m -sc.method dspark", (site(version),), arms=ARMS)
    assert any(note.startswith("output_law: not-run") for note in found.notes)
    (note,) = law_notes(found)
    assert f"vLLM {version} draws" in note
    assert note.endswith("off the target's law in every arm: that is upstream's, not a toggle's")


@pytest.mark.parametrize("version", ["0.28.0", "unknown"])
def test_where_the_version_tells_nothing_the_upstream_defect_is_named_as_possible(site, version):
    (note,) = law_notes(plan("org/m -sc.method dspark", (site(version),), arms=ARMS))
    assert "vLLM up to 0.26 draws" in note
    assert "in every arm that runs one: that is upstream's" in note


def test_versions_and_arms_that_keep_the_law_get_no_such_note(site, bare):
    assert law_notes(plan("org/m -sc.method dspark", (site("0.33.0"),), arms=ARMS)) == []
    assert law_notes(plan("org/m", (site("0.26.0"),), arms=ARMS)) == [], "nothing is drafted"
    own = (f"a=python={bare}", "b=env=X=2")
    assert law_notes(plan("org/m -sc.method dspark", (site("0.33.0"),), arms=own)), "an arm's own vLLM was not asked"


def test_the_vocabulary_is_the_models_own(site, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.json").write_text('{"architectures": ["Qwen3ForCausalLM"], "vocab_size": 288}')
    assert plan(str(tmp_path / "m"), (site(),), arms=ARMS).dims["vocab_size"] == 288


def test_starts_get_time_to_compile(site):
    assert plan("org/m", (site(),), arms=ARMS).timeouts.boot >= 900
    assert plan("org/m", (site(),), arms=ARMS, timeout=50.0).timeouts.boot == 50


def test_deadlines_of_a_suite_that_are_lengthened_are_told(site, tmp_path):
    (own := tmp_path / "own.toml").write_text(
        'name = "own"\nsummary = "its own deadlines"\nblocks = 2\n[timeouts]\nboot = 60\nprobe = 10\n[probes.kv]\n'
    )
    notes = plan("org/m", (site(),), arms=ARMS, suite=str(own)).notes
    (note,) = [note for note in notes if note.startswith("timeouts of the suite")]
    assert note.startswith("timeouts of the suite: boot 900 s in place of 60 s: ")
    asked = plan("org/m", (site(),), arms=ARMS, suite=str(own), timeout=50.0).notes
    assert not any("boot" in note for note in asked if note.startswith("timeouts of the suite"))


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
