"""Each rule of void is broken once, in otherwise sound records; the verdict must name that rule and no other."""

import pytest

from dsbench import records as r
from dsbench.judge import judge
from dsbench.void import RULES

FOURTH = 4


def change(records, kind, update, boot=FOURTH):
    """Records with `update(record)` merged into those of one kind and one boot."""
    return [
        record.model_copy(update=update(record)) if isinstance(record, kind) and record.boot == boot else record
        for record in records
    ]


def drop(records, kind, boot=FOURTH, **fields):
    def matches(record):
        return (
            isinstance(record, kind) and record.boot == boot and all(getattr(record, k) == v for k, v in fields.items())
        )

    return [record for record in records if not matches(record)]


def condition(**values):
    return lambda records: change(records, r.Conditions, lambda c: {"values": c.values | values})


def marker(taken, refused=None):
    return lambda records: change(records, r.Markers, lambda m: {"taken": taken, "refused": refused or {}})


def log(**fields):
    return lambda records: change(records, r.BootEnded, lambda end: fields)


def copied_readings(records):
    seen = {o.metric: o for o in records if isinstance(o, r.Observation) and o.boot == 3}
    return change(
        records,
        r.Observation,
        lambda o: {"value": seen[o.metric].value, "raw": seen[o.metric].raw} if o.metric == "decode.tps.c4" else {},
    )


def in_ranks(records, n=2):
    """The same records with what rank 0 wrote written by every rank, and with the number of ranks among the facts."""
    found = []
    for record in records:
        if isinstance(record, r.Conditions):
            record = record.model_copy(update={"values": record.values | {"tp": n, "load_format": "auto"}})
        if isinstance(record, r.KvProfile):
            record = record.model_copy(update={"values": record.values | {"block_bytes": 65_536}})
        found.append(record)
        if getattr(record, "rank", None) != 0:
            continue
        for rank in range(1, n):
            other = record.model_copy(update={"rank": rank})
            if isinstance(other, r.Markers):
                other = other.model_copy(update={"pid": other.pid + 500 * rank})
            if isinstance(other, r.Conditions):
                own = {"rank": rank, "pid": other.values["pid"] + 500 * rank}
                other = other.model_copy(update={"values": other.values | own})
            found.append(other)
    return found


def of_rank_1(records, kind, values, boot):
    """One rank of one boot, or of every boot alike (None), writes other values."""
    return [
        x.model_copy(update={"values": x.values | values})
        if isinstance(x, kind) and x.rank == 1 and boot in (None, x.boot)
        else x
        for x in records
    ]


# Boots of the plan with seed 0: 1 and 2 warm-ups, then 3 and 4 in block 1, 5 and 6 in block 2.
BROKEN = {
    "boot-failed": log(status="failed", reason="engine ended with code 1"),
    "boot-missing": lambda records: drop(records, r.BootEnded),
    "check-missing": lambda records: change(
        records, r.Check, lambda c: {"status": "failed", "reason": "500"} if c.probe == "smoke" else {}
    ),
    "check-missing ": lambda records: drop(records, r.Check, probe="decode"),
    "check-missing  ": lambda records: drop(records, r.Observation, metric="kv.blocks"),
    "check-missing   ": lambda records: drop(records, r.Observation, metric="identity.tokens", item="b"),
    "check-missing    ": lambda records: [
        x for x in records if not (isinstance(x, r.Observation) and x.item in ("c", "d") and "tokens" in x.metric)
    ],
    "conditions-missing": lambda records: drop(records, r.Conditions),
    "condition-differs": condition(seed=1),
    "condition-differs ": condition(cache_state="warm"),
    "condition-differs  ": condition(only_here=1),
    "condition-not-in-effect": condition(dims={"max_num_batched_tokens": 128}),
    "toggles-not-in-effect": condition(toggles=["mtp_hidden_skip"]),
    "block-split": lambda records: change(records, r.BootStarted, lambda s: {"host": "host2"}),
    "rank-silent": lambda records: change(
        in_ranks(records), r.Conditions, lambda c: {"rank": 0, "values": c.values | {"rank": 0}}
    ),
    "rank-silent ": lambda records: [
        x for x in in_ranks(records) if not (isinstance(x, r.KvProfile) and (x.boot, x.rank) == (FOURTH, 1))
    ],
    "ranks-disagree": lambda records: of_rank_1(in_ranks(records), r.Conditions, {"load_format": "dummy"}, None),
    "ranks-disagree ": lambda records: of_rank_1(in_ranks(records), r.KvProfile, {"block_bytes": 7}, FOURTH),
    "shared-log": log(log="boots/3/engine.log"),
    "shared-log ": log(log_sha256=f"{3:064x}"),
    "identical-readings": copied_readings,
    "engine-restarted": lambda records: change(records, r.Markers, lambda m: {"pid": 1} if m.moment == "end" else {}),
    "engine-restarted ": lambda records: change(
        records, r.Counters, lambda c: {"pid": 1} if c.moment == "decode" else {}
    ),
    "counter-reset": lambda records: change(
        records, r.Counters, lambda c: {"values": {"vllm:prompt_tokens_total": 1.0}} if c.moment == "decode" else {}
    ),
    "kv-pinned": lambda records: change(records, r.KvProfile, lambda p: {"values": {"source": "pinned"}}),
    "kv-pinned ": condition(kv_cache_memory_bytes=1 << 30),
    "kv-disagrees": lambda records: change(records, r.KvProfile, lambda p: {"values": {"blocks": 7, **p.values}}),
    "fatal-finding": lambda records: [*records, r.Finding(boot=FOURTH, code="fatal-log", text="oom, engine.log:9")],
    "foreign-process": lambda records: [*records, r.Finding(boot=FOURTH, code="device-busy", text="GPU 0: 3 GiB")],
    "kv-disagrees ": lambda records: [*records, r.Finding(boot=FOURTH, code="kv-disagrees", text="10 against 11")],
    "drift": lambda records: [
        record.model_copy(update={"value": 1})
        if isinstance(record, r.Observation) and record.metric == "kv.weights_bytes" and record.boot in (3, 6)
        else record
        for record in records
    ],
}


def codes(verdict):
    return sorted({reason.code for reason in verdict.void})


@pytest.mark.parametrize("code", BROKEN)
def test_a_broken_rule_voids(make_plan, make_records, code):
    plan = make_plan()
    assert [boot.arm for boot in plan.boots[2:]] == ["mhc_input_reuse", "baseline", "baseline", "mhc_input_reuse"]
    verdict = judge(plan, BROKEN[code](make_records(plan)))
    # What is planted as a condition of one boot only is an undeclared difference as well.
    also = {key: ["condition-differs"] for key in ("condition-not-in-effect", "kv-pinned ")}
    also["block-split"] = ["boot-missing"]  # a host has warm-ups of its own
    assert codes(verdict) == sorted([code.strip(), *also.get(code, [])])
    assert (verdict.word, verdict.exit_code) == ("void", 4)
    assert verdict.sentence.startswith("Void, reason ")
    assert all(reason.mend for reason in verdict.void)
    assert {row.word for row in verdict.rows} <= {"void", "not-run"}


def test_sound_records_are_not_void(make_plan, make_records):
    assert judge(make_plan(), make_records(make_plan())).void == []


@pytest.mark.parametrize(
    ("boot", "taken", "refused", "code", "said"),
    [
        (3, {}, {}, "marker-missing", "no marker, no refusal"),
        (3, {"mhc_input_reuse": 0}, {}, "marker-missing", "never taken"),
        (3, {"mhc_input_reuse": -5}, {}, "marker-missing", "never taken"),
        (6, {"mhc_input_reuse": 6}, {"mhc_input_reuse": {"y is held": 8}}, "marker-refused", "at others: y is held"),
        (6, {}, {"mhc_input_reuse": {"y is shared": 7}}, "marker-missing", "refused: y is shared x7"),
        (4, {"mhc_input_reuse": 1}, {}, "marker-misplaced", "off in baseline"),
        (3, {"mhc_input_reuse": 5, "mhc_residual_reuse": 1}, {}, "marker-misplaced", "mhc_residual_reuse is off"),
    ],
)
def test_markers(make_plan, make_records, boot, taken, refused, code, said):
    plan = make_plan()
    records = change(make_records(plan), r.Markers, lambda m: {"taken": taken, "refused": refused}, boot)
    verdict = judge(plan, records)
    assert codes(verdict) == [code]
    assert said in verdict.void[0].text
    assert verdict.void[0].boots == [boot]


def test_a_branch_deleted_by_hand_is_void_not_improved(make_plan, make_records):
    """No marker in any treatment boot, and no saving either."""
    plan = make_plan()
    records = make_records(plan, lambda boot, key: 1_000_000 if key.startswith("kv.") else None)
    for boot in (2, 3, 6):
        records = change(records, r.Markers, lambda m: {"taken": {}}, boot)
    verdict = judge(plan, records)
    assert (verdict.word, codes(verdict)) == ("void", ["marker-missing"])
    assert verdict.void[0].boots == [3, 6]


def test_a_marker_file_that_was_never_written_is_missing(make_plan, make_records):
    plan = make_plan()
    assert codes(judge(plan, drop(make_records(plan), r.Markers, boot=3))) == ["marker-missing", "rank-silent"]


def test_a_required_toggle_must_act_in_the_baseline_too(make_plan, make_records):
    plan = make_plan("mhc_final_fused")
    boot = next(b.number for b in plan.boots if b.arm == "baseline" and b.phase == "measured")
    records = change(make_records(plan), r.Markers, lambda m: {"taken": {}}, boot)
    verdict = judge(plan, records)
    assert codes(verdict) == ["marker-missing"]
    assert "mtp_hidden_skip is on in baseline" in verdict.void[0].text


def test_a_failed_warm_up_is_void(make_plan, make_records):
    plan = make_plan()
    verdict = judge(plan, change(make_records(plan), r.BootEnded, lambda e: {"status": "failed"}, boot=1))
    assert codes(verdict) == ["boot-failed"]


def test_no_records_at_all_is_void(make_plan):
    verdict = judge(make_plan(), [])
    assert codes(verdict) == ["boot-missing", "not-run"]
    assert verdict.exit_code == 4


def test_a_kv_suite_needs_no_server(make_plan, make_records):
    from dsbench.suite import load_suite

    plan = make_plan(suite=load_suite("kv"))
    assert judge(plan, make_records(plan)).word == "improved"


def test_a_boot_of_two_ranks_is_one_engine(make_plan, make_records):
    plan = make_plan()
    records = in_ranks(make_records(plan))
    verdict = judge(plan, records)
    assert verdict.void == []
    assert verdict.word == "improved"
    assert {row.rank for row in verdict.rows} == {None}
    one_rank_moves_less = [
        x.model_copy(update={"value": x.value + 5})
        if isinstance(x, r.Observation) and (x.metric, x.rank) == ("kv.peak_activation_bytes", 1) and x.boot in (3, 6)
        else x
        for x in records
    ]
    rows = [x for x in judge(plan, one_rank_moves_less).rows if x.metric == "kv.peak_activation_bytes"]
    assert [(x.rank, x.delta) for x in rows] == [(0, -32768), (1, -32763)]


def test_every_rule_is_one_of_the_broken_ones(make_plan, make_records, monkeypatch):
    """With any one detector gone, some planted defect above is missed: each rule earns its place."""
    plan = make_plan()
    planted = {**BROKEN, "marker-missing": lambda records: change(records, r.Markers, lambda m: {"taken": {}}, 3)}
    for rule in RULES:
        with monkeypatch.context() as patch:
            patch.setattr("dsbench.void.RULES", tuple(other for other in RULES if other is not rule))
            missed = [
                code
                for code, plant in planted.items()
                if code.strip() not in codes(judge(plan, plant(make_records(plan))))
            ]
        assert missed, rule.__name__


# --- ranks ----------------------------------------------------------------------------------------------------------


def without_rank(records, rank, *kinds):
    return [x for x in records if not (isinstance(x, kinds) and x.rank == rank)]


def test_a_rank_that_is_silent_in_every_boot_is_missed(make_plan, make_records):
    """No other boot has what it lacks, so only the number of ranks tells."""
    plan = make_plan()
    records = without_rank(in_ranks(make_records(plan)), 1, r.Conditions, r.Markers, r.KvProfile, r.Observation)
    verdict = judge(plan, records)
    assert codes(verdict) == ["marker-missing", "rank-silent"]
    said = [reason.text for reason in verdict.void if reason.code == "rank-silent"]
    assert said == [f"rank 1 wrote no {what}: unknown" for what in ("conditions", "KV profile", "markers")]


def test_a_rank_without_markers_voids_a_toggle(make_plan, make_records):
    plan = make_plan()
    verdict = judge(plan, without_rank(in_ranks(make_records(plan)), 1, r.Markers))
    assert codes(verdict) == ["marker-missing", "rank-silent"]
    assert {reason.code: reason.boots for reason in verdict.void} == {
        "marker-missing": [3, 6],
        "rank-silent": [3, 4, 5, 6],
    }


@pytest.mark.parametrize("silent", [(1,), (0, 1)])
def test_a_baseline_without_markers_is_unknown(make_plan, make_records, silent):
    """That the optimized branch was not taken there is what the markers say; conditions only say what was asked."""
    plan = make_plan()
    records = [
        x
        for x in in_ranks(make_records(plan))
        if not (isinstance(x, r.Markers) and x.boot in (4, 5) and x.rank in silent)
    ]
    verdict = judge(plan, records)
    assert codes(verdict) == ["rank-silent"]
    assert [(reason.text, reason.boots) for reason in verdict.void] == [
        (f"rank {rank} wrote no markers: unknown", [4, 5]) for rank in silent
    ]


def test_one_rank_that_took_its_branch_is_not_both(make_plan, make_records):
    plan = make_plan()
    records = [
        x.model_copy(update={"taken": {}}) if isinstance(x, r.Markers) and (x.boot, x.rank) == (6, 1) else x
        for x in in_ranks(make_records(plan))
    ]
    verdict = judge(plan, records)
    assert codes(verdict) == ["marker-missing"]
    assert verdict.void[0].boots == [6]


def test_an_engine_known_by_its_log_alone_has_the_ranks_that_were_seen(make_plan, make_records):
    plan = make_plan("mhc_input_reuse")
    records = [
        x.model_copy(update={"values": x.values | {"tp": 2, "source": "log and HTTP"}})
        if isinstance(x, r.Conditions)
        else x
        for x in make_records(plan)
    ]
    assert judge(plan, records).void == []


def test_four_ranks_that_agree_are_sound(make_plan, make_records):
    plan = make_plan()
    verdict = judge(plan, in_ranks(make_records(plan), 4))
    assert (verdict.word, verdict.void) == ("improved", [])


@pytest.mark.parametrize(
    ("facts", "unlike", "void"),
    [
        ({"tp": 2, "pp": 2, "world_size": 4}, (2, 3), False),  # the second stage, by vLLM's order of ranks
        ({"tp": 2, "pp": 2, "world_size": 4}, (3,), True),
        ({"tp": 2, "pp": 2, "world_size": 8}, (3,), False),  # nobody knows the stage
        ({"tp": 4, "pp": 1, "world_size": 4}, (3,), True),
        ({"tp": 4}, (2, 3), True),
    ],
)
def test_pages_are_alike_on_the_ranks_of_a_pipeline_stage(make_plan, make_records, facts, unlike, void):
    plan = make_plan()
    records = [
        x.model_copy(update={"values": x.values | facts})
        if isinstance(x, r.Conditions)
        else x.model_copy(update={"values": x.values | {"block_bytes": 7}})
        if isinstance(x, r.KvProfile) and x.rank in unlike
        else x
        for x in in_ranks(make_records(plan), 4)
    ]
    assert codes(judge(plan, records)) == (["ranks-disagree"] if void else [])


def test_a_rank_may_tell_its_pipeline_stage(make_plan, make_records):
    """Of an engine whose ranks lie in another order."""
    plan = make_plan()
    records = [
        x.model_copy(update={"values": x.values | {"tp": 1, "pp": 2, "pp_rank": x.rank}})
        if isinstance(x, r.Conditions)
        else x.model_copy(update={"values": x.values | {"block_bytes": 7 + x.rank}})
        if isinstance(x, r.KvProfile)
        else x
        for x in in_ranks(make_records(plan), 2)
    ]
    assert codes(judge(plan, records)) == []
