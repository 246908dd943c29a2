"""Speculation from the plan to the verdict, on real boots of the fake engine with planted faults."""

import pytest

from dsbench import records as r
from dsbench import store
from dsbench.builds import parse_arm
from dsbench.execute import execute
from dsbench.judge import judge
from dsbench.plan import plan_experiment
from dsbench.suite import parse_suite
from impl.dims import PICO

SUITE = parse_suite(
    """
name = "drafts"
summary = "drafts and the law, small"
blocks = 2
warmup_boots = 0
guards = ["identity.tokens", "accept.*", "output_law"]
[timeouts]
boot = 60
probe = 60
stop = 3
[probes.identity]
prompts = ["a b c"]
tokens = 6
[probes.acceptance]
prose = ["a", "b"]
structured = ["c"]
tokens = 200
samples = 2
[probes.output_law]
prompts = ["a"]
requests = 120
tokens = 3
""",
    "drafts.toml",
)
PERSISTENT, KEYWORD = "draft_logits_persistent=off", "rejection_keyword_binding=off"
RATES = ["--synthetic-acceptance-rates", "0.5,0.4,0.3,0.2,0.1"]


@pytest.fixture
def run(fake, tmp_path, monkeypatch):
    """Plan, records and verdict of a run with a planted fault."""

    def go(*toggles, arms=(), fault="", engine_args=(), **options):
        monkeypatch.setenv("FAKE_FAULT", fault)
        flags = ["--dims", "pico", "--seed", "0", *engine_args]
        options = {"controls": True, "engine_args": flags, **options}
        plan = plan_experiment(toggles, SUITE, PICO, arms=[parse_arm(text) for text in arms], **options)
        folder = store.create(plan, tmp_path)
        execute(plan, folder, command=fake, quiet=True)
        records = store.load_records(folder)[0]
        return plan, records, judge(plan, records)

    return go


def words(verdict):
    return {row.metric: row.word for row in verdict.rows}


def test_a_sound_engine_is_equivalent(run):
    _, records, verdict = run(PERSISTENT)
    assert (verdict.word, verdict.void) == ("equivalent", [])
    assert words(verdict) == dict.fromkeys(
        ["output_law", "accept.rate", "accept.length", "accept.per_position", "accept.conditional", "identity.tokens"],
        "equivalent",
    )
    seen = [o for o in records if isinstance(o, r.Observation) and o.boot == 1]
    assert [o.item for o in seen if o.metric == "output_law"] == ["prompt 1", "all prompts"]
    rates = {o.item: o for o in seen if o.metric == "accept.rate"}
    assert list(rates) == ["prose greedy", "prose t=1", "structured greedy", "structured t=1"]
    above, below = rates["prose t=1"].raw
    assert rates["prose t=1"].value == above / below
    assert below > 300
    first = [o.raw for o in seen if (o.metric, o.item) == ("accept.per_position", "prose t=1 k0")]
    length = [o.raw for o in seen if (o.metric, o.item) == ("accept.length", "prose t=1")]
    assert first[0][1] == length[0][1] == below / 5
    assert length[0][0] == below / 5 + above


def test_a_stale_draft_is_regressed_on_the_law_and_too_good(run):
    _, records, verdict = run(PERSISTENT, fault="stale-draft@draft_logits_persistent-off")
    assert (verdict.word, verdict.void) == ("regressed", [])
    primary = next(row for row in verdict.rows if row.role == "primary")
    assert (primary.metric, primary.word) == ("output_law", "regressed")
    assert (primary.baseline, primary.candidate) == (1.0, 0.0)
    assert any("(Holm), total variation 0." in note for note in primary.notes)
    assert any("acceptance too good: draft_logits_persistent-off" in note for note in verdict.notes)
    failed = [o for o in records if isinstance(o, r.Observation) and o.metric == "output_law" and not o.value]
    assert all(o.raw[0] < 1e-3 and o.raw[1] > 0.08 for o in failed)


def test_arguments_that_slip_are_regressed_on_the_positions(run):
    plan, _, verdict = run(KEYWORD, engine_args=RATES, fault="positional@rejection_keyword_binding-off")
    assert plan.probes.names() == ["identity", "acceptance"]
    assert verdict.word == "regressed"
    assert words(verdict)["accept.per_position"] == "regressed"
    assert not any("too good" in note for note in verdict.notes)


def test_spec_on_and_off_as_arms(run):
    plan, records, verdict = run(arms=("plain=speculative=none", "dspark=speculative=dspark"))
    assert plan.probes.names() == ["identity", "output_law"]
    assert verdict.void == []
    assert words(verdict) == {"output_law": "equivalent", "identity.tokens": "equivalent"}
    assert verdict.sentence == "dspark equivalent: output_law 1 -> 1; tokens identical."
    read = {c.values["speculative"] for c in records if isinstance(c, r.Conditions)}
    assert read == {"none", "dspark"}


def test_a_method_the_engine_ignores_is_void(run):
    _, _, verdict = run(arms=("plain=speculative=none", "dspark=speculative=dspark"), fault="method-ignored")
    assert verdict.word == "void"
    assert any("reads back speculative none, planned dspark" in reason.text for reason in verdict.void)


def test_a_server_without_draft_counters_fails_the_probe(run):
    _, records, verdict = run(PERSISTENT, fault="no-drafts")
    assert verdict.word == "void"
    check = next(c for c in records if isinstance(c, r.Check) and c.probe == "acceptance")
    assert "count no drafts" in check.reason


def test_variables_of_an_arm_reach_its_boots_only(run):
    _, _, verdict = run(arms=("a=speculative=dspark", "b=speculative=dspark;env=FAKE_FAULT=stale-draft"))
    assert verdict.word == "regressed"
    assert words(verdict)["output_law"] == "regressed"


def test_a_warm_up_counts_no_drafts(run, monkeypatch):
    monkeypatch.setattr(f"{__name__}.SUITE", SUITE.model_copy(update={"warmup_boots": 1}))
    plan, records, verdict = run(KEYWORD, engine_args=RATES)
    assert verdict.void == []
    ran = {b.phase: {c.probe for c in records if isinstance(c, r.Check) and c.boot == b.number} for b in plan.boots}
    assert ran == {"warm-up": {"identity"}, "measured": {"identity", "acceptance"}}
