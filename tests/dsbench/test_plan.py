from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsbench import plan as planning
from dsbench.builds import ArmSpec
from dsbench.errors import InputError
from dsbench.plan import plan_experiment
from dsbench.suite import load_suite, parse_suite
from impl import toggles as registry
from impl.dims import PICO
from impl.toggles import REGISTRY

NOW = datetime(2025, 5, 1, 10, 11, 12, tzinfo=UTC)
FREE = [
    name
    for name, toggle in REGISTRY.items()
    if toggle.kind == "optimization" and not toggle.requires and "embedded" in toggle.engines
]


def make(*toggles, suite="kv", dims=PICO, **options):
    return plan_experiment(toggles, load_suite(suite), dims, now=NOW, **options)


def arms(plan):
    return {arm.name: arm.environment for arm in plan.arms}


def test_one_toggle_makes_two_arms():
    plan = make("mhc_input_reuse", suite="quick")
    assert arms(plan) == {"baseline": "", "mhc_input_reuse": "mhc_input_reuse"}
    candidate = plan.arms[1]
    assert candidate.primary == ["kv.peak_activation_bytes"]
    assert candidate.expected == {"kv.peak_activation_bytes": -PICO.max_num_batched_tokens * PICO.hidden_size * 2}
    assert candidate.takes == ["mhc_input_reuse"]
    assert plan.arms[0].takes == []
    assert len(plan.boots) == 12
    assert plan.id.startswith("20250501-101112-mhc_input_reuse-")
    assert {m.key for m in plan.metrics} >= {"kv.blocks", "prefill.tps.1024", "decode.tps.c4", "identity.tokens"}
    assert plan.guards == [
        key for key in (m.key for m in plan.metrics) if key in plan.guards
    ]  # a guard is always a metric that is measured
    assert "decode.tps.c1" in plan.guards


def test_expected_bytes_follow_the_shape():
    dims = PICO.with_changes(max_num_batched_tokens=512, hidden_size=128)
    assert make("mhc_input_reuse", dims=dims).arms[1].expected == {"kv.peak_activation_bytes": -512 * 128 * 2}


def test_several_toggles_run_alone_and_together():
    plan = make("mhc_residual_reuse", "mhc_input_reuse")
    assert arms(plan) == {
        "baseline": "",
        "mhc_residual_reuse": "mhc_residual_reuse",
        "mhc_input_reuse": "mhc_input_reuse",
        "all": "mhc_residual_reuse,mhc_input_reuse",
    }
    alone = [arm.expected["kv.peak_activation_bytes"] for arm in plan.arms[1:3]]
    assert plan.arms[3].expected == {"kv.peak_activation_bytes": sum(alone)}


def test_a_requirement_is_on_in_every_arm_and_said():
    plan = make("mhc_final_fused")
    assert arms(plan) == {"baseline": "mtp_hidden_skip", "mhc_final_fused": "mtp_hidden_skip,mhc_final_fused"}
    assert plan.arms[0].takes == ["mtp_hidden_skip"]
    assert plan.notes == ["mtp_hidden_skip is on in every arm: mhc_final_fused requires it"]
    assert plan.arms[1].expected.keys() == {"kv.peak_activation_bytes"}


def test_a_requirement_that_is_a_factor_itself_makes_a_ladder():
    plan = make("mhc_final_fused", "mtp_hidden_skip", "mhc_input_reuse")
    assert arms(plan) == {
        "baseline": "",
        "mtp_hidden_skip+mhc_final_fused": "mtp_hidden_skip,mhc_final_fused",
        "mtp_hidden_skip": "mtp_hidden_skip",
        "mhc_input_reuse": "mhc_input_reuse",
        "all": "mtp_hidden_skip,mhc_final_fused,mhc_input_reuse",
    }
    assert plan.notes == ["mhc_final_fused runs together with mtp_hidden_skip, which it requires"]
    assert arms(make("mtp_hidden_skip", "mhc_final_fused")) == {
        "baseline": "",
        "mtp_hidden_skip": "mtp_hidden_skip",
        "all": "mtp_hidden_skip,mhc_final_fused",
    }


def test_naming_a_toggle_twice_is_once():
    assert arms(make("mhc_input_reuse", "mhc_input_reuse")) == {"baseline": "", "mhc_input_reuse": "mhc_input_reuse"}


@pytest.mark.parametrize(
    ("toggles", "options", "said"),
    [
        ([], {}, "nothing to compare"),
        (["mhc_inputreuse"], {}, "did you mean mhc_input_reuse"),
        (["mhc_input_reuse=off"], {}, "leave it out"),
        (["mhc_input_reuse=yes"], {}, "must be on or off"),
        (["residual_reuse_small_path"], {}, "planted defect .* --controls"),
        (["residual_reuse_small_path"], {"controls": True}, "does not measure identity.tokens"),
        (["mhc_input_reuse"], {"blocks": 0}, "blocks must be at least 1"),
        (["draft_logits_persistent=off"], {}, "planted defect"),
        (["draft_logits_persistent=off"], {"controls": True}, "does not measure output_law"),
        (["mhc_input_reuse"], {"suite": "quick", "dims": PICO.with_changes(max_model_len=512)}, "max_model_len is 512"),
    ],
)
def test_what_cannot_run_is_one_line(toggles, options, said):
    with pytest.raises(InputError, match=said) as caught:
        make(*toggles, **options)
    assert "\n" not in str(caught.value)


def test_a_control_runs_when_asked_for():
    plan = make("residual_reuse_small_path", suite="quick", controls=True)
    assert plan.arms[1].primary == ["identity.tokens"]
    assert plan.arms[1].takes[-1] == "residual_reuse_small_path"


@pytest.fixture
def other_registry(monkeypatch):
    """A registry with a correctness toggle and a conflict, as later ones will have."""
    base = REGISTRY["mhc_input_reuse"]
    entries = dict(REGISTRY)
    entries["kept"] = replace(base, name="kept", kind="correctness", default_on=True, expected_bytes=None)
    entries["rival"] = replace(base, name="rival", conflicts=("mhc_input_reuse",))
    monkeypatch.setattr(registry, "REGISTRY", entries)
    monkeypatch.setattr(planning, "REGISTRY", entries)


@pytest.mark.usefixtures("other_registry")
def test_the_off_state_of_a_correctness_toggle_is_a_control():
    with pytest.raises(InputError, match="kept=off --controls"):
        make("kept", controls=True)
    with pytest.raises(InputError, match="add --controls"):
        make("kept=off")
    plan = make("kept=off", controls=True)
    assert arms(plan) == {"baseline": "", "kept-off": "kept=off"}
    assert [set(arm.on) & {"kept"} for arm in plan.arms] == [{"kept"}, set()]
    assert plan.arms[0].takes == []
    assert "=" not in plan.id


@pytest.mark.usefixtures("other_registry")
def test_conflicts_are_refused():
    with pytest.raises(InputError, match=r"cannot be on together"):
        make("rival", "mhc_input_reuse")


def test_the_same_seed_gives_the_same_order_and_another_does_not():
    orders = [[b.arm for b in make("mhc_input_reuse", blocks=30, seed=s).boots] for s in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(FREE), min_size=1, max_size=3, unique=True),
    st.integers(1, 12),
    st.integers(0, 2**31),
)
def test_every_block_holds_every_arm_once(toggles, blocks, seed):
    plan = make(*toggles, blocks=blocks, seed=seed)
    names = [arm.name for arm in plan.arms]
    assert [boot.number for boot in plan.boots] == list(range(1, len(plan.boots) + 1))
    assert [b.arm for b in plan.boots if b.phase == "warm-up"] == names
    order = {n: [b.arm for b in plan.boots if b.block == n] for n in range(1, blocks + 1)}
    assert all(sorted(arms) == sorted(names) for arms in order.values())
    assert Counter(b.block for b in plan.boots if b.block).total() == blocks * len(names)


def test_the_order_of_a_block_tells_nothing_of_another():
    """Sign flips are exact only where all 2^n patterns of orders are equally likely."""
    firsts = Counter(
        tuple(b.arm for b in make("mhc_input_reuse", blocks=3, seed=seed).boots if b.block)[::2] for seed in range(800)
    )
    assert len(firsts) == 8
    assert all(60 < count < 140 for count in firsts.values())


def test_what_a_toggle_frees_for_good_counts_in_what_stays():
    plan = make("mtp_hidden_skip", "c128a_topk_shared")
    streams, rows = (REGISTRY[name].expected_bytes(PICO) for name in ("mtp_hidden_skip", "c128a_topk_shared"))
    assert [arm.expected for arm in plan.arms[1:]] == [
        {"kv.persistent_bytes": -streams},
        {"kv.resident_bytes": -rows},
        {"kv.persistent_bytes": -streams, "kv.resident_bytes": -streams - rows},
    ]


def test_a_suites_draft_method_is_its_arms_unless_another_is_asked_for_or_needed(small):
    drafts = small.model_copy(update={"speculative": "dspark"})

    def methods(*toggles, **options):
        plan = plan_experiment(toggles, drafts, PICO, **options)
        return {arm.speculative for arm in plan.arms}, plan.notes

    found, notes = methods("mhc_input_reuse")
    assert found == {"dspark"}
    assert "speculative is dspark in every arm, as the suite says" in notes
    assert methods("mhc_input_reuse", speculative="none")[0] == {"none"}
    assert methods(arms=[ArmSpec("a"), ArmSpec("b", speculative="none")])[0] == {"dspark", "none"}
    served = [ArmSpec("a"), ArmSpec("b")]
    assert methods(arms=served, engine="endpoint", alike=True)[0] == {"none"}


def test_too_many_boots_are_refused_before_they_are_listed(small, monkeypatch):
    monkeypatch.setattr(planning, "_order", lambda *args: pytest.fail("listed"))
    suite = small.model_copy(update={"warmup_boots": 1000})
    with pytest.raises(
        InputError, match=r"12 arms in 9,000 blocks and 1,000 warm-ups are 120,000 boots, and .* 100,000"
    ):
        plan_experiment((), suite, PICO, arms=[ArmSpec(f"a{n}") for n in range(12)], alike=True, blocks=9000)
    with pytest.raises(InputError, match="take fewer blocks"):
        plan_experiment((), suite, PICO, arms=[ArmSpec("a"), ArmSpec("b")], alike=True, blocks=10**20)


HEAD = 'name = "x"\nsummary = "s"\nblocks = 2\n[probes.identity]\nprompts = ["a"]\n'


def planned(tables, **options):
    arms = [ArmSpec("a"), ArmSpec("b")]
    return plan_experiment((), parse_suite(HEAD + tables, "x.toml"), PICO, arms=arms, alike=True, now=NOW, **options)


LENGTHS = {
    "smoke": '[[probes.smoke.items]]\nprompt = "a"\nanswer = 1\nmax_tokens = {}',
    "gsm8k": "[probes.gsm8k]\nlimit = 1\nmax_tokens = {}",
    "instruction": "[probes.instruction]\nmax_tokens = {}",
    "coherence": '[probes.coherence]\nstyle = "report"\nlines = 40\nmax_tokens = {}',
    "toolcall": "[probes.toolcall]\nmax_tokens = {}",
    "decode": '[probes.decode]\nprompts = ["a"]\nstreams = [1]\ntokens = {}',
    "concurrency": '[probes.concurrency]\nprompts = ["a"]\nmax_tokens = {}',
}


@pytest.mark.parametrize("probe", LENGTHS)
def test_an_answer_that_cannot_fit_is_refused_in_the_plan(probe):
    assert planned(LENGTHS[probe].format(2047)).probes.table(probe)
    with pytest.raises(InputError, match=f"suite 'x': the {probe} probe needs 2049 tokens, max_model_len is 2048: "):
        planned(LENGTHS[probe].format(2048))


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('checkout = "/nonexist/{arm}"', "probes.kernels.checkout /nonexist/a of arm a: no such folder; "),
        ('selection = ["tests/nosuch.py"]', "probes.kernels.selection tests/nosuch.py: nothing of it is in "),
        ('selection = ["nosuch"]\ncheckout = "tests"', "probes.kernels.selection nosuch: nothing of it is in tests; "),
    ],
)
def test_tests_that_are_not_there_are_refused_in_the_plan(table, said):
    with pytest.raises(InputError) as caught:
        planned(f"[probes.kernels]\n{table}\n")
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)
    assert planned(f"[probes.kernels]\n{table}\n", here=False).probes.kernels is not None


def test_a_selection_of_which_one_arm_lacks_a_part_is_planned():
    table = '[probes.kernels]\nselection = ["tests/dsbench/test_plan.py", "tests/nosuch.py", "-k", "x"]\n'
    assert planned(table).probes.kernels is not None


def test_a_suite_by_which_builds_cannot_be_judged_says_what_is_needed_and_how_to_mend_it():
    suite = parse_suite('name = "x"\nsummary = "s"\nblocks = 2\n[probes.instruction]\n', "x.toml")
    with pytest.raises(InputError) as caught:
        plan_experiment((), suite, PICO, arms=[ArmSpec("a"), ArmSpec("b")], alike=True)
    assert str(caught.value) == (
        "suite 'x' measures nothing that builds are judged by (decode.tps.*, kv.available_bytes, accept.length, "
        "output_law, identity.tokens): add [probes.identity] or [probes.decode] to it, or take another suite, such as "
        "quick"
    )
