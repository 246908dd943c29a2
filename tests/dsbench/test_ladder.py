"""The table's arithmetic: from steps to states, from boots to steps, and how far from what was published."""

from itertools import pairwise

import pytest

from dsbench import ladder, published
from dsbench.errors import InputError
from dsbench.plan import plan_experiment
from dsbench.projection import Projection, project
from dsbench.records import BootEnded, BootStarted, KvProfile
from dsbench.suite import load_suite
from impl.dims import FLASH, PICO
from impl.kv_geometry import KvGeometry
from impl.toggles import REGISTRY
from tests.impl.engine.engines import boot_runner

MIB = 1 << 20
SIZES = (256, 256, 0, 256, 256, 64)


def projection(sizes=SIZES, **changes):
    steps = [
        {"toggle": name, "line_bytes": size * MIB, "modelled": name == "q_in_place", "phases": {"profile": size * MIB},
         "index_maps": 0, "refused": []}
        for name, size in zip(ladder.ROWS, sizes, strict=True)
    ]  # fmt: skip
    phases = [{"name": "load", "bytes": 300 * MIB, "on_line": True, "sites": []}]
    arm = {"toggles": [], "weights_bytes": MIB, "workspace_bytes": MIB, "phases": phases, "index_maps_per_step": 1,
           "modelled_reservation_bytes": 0, "profiled_bytes": 302 * MIB, "line_bytes": 302 * MIB}  # fmt: skip
    known = {"dims": FLASH.to_json(), "platform": "sm120", "tp": 2, "padded_heads": 32, "local_heads": 32}
    return Projection.model_validate(
        {**known, "arms": [arm], "alone": steps, "cumulative": steps, "apart": [], **changes}
    )


def test_states_follow_from_the_budget_and_stand_beside_the_published_ones():
    rows = ladder.projected_rows(projection(), ladder.published_budget())
    theirs = ladder.published_rows(8192, 524_288)
    assert [row.state for row in rows] == [row.state for row in theirs]
    assert [row.capacity.blocks for row in rows] == [10_511, 10_760, 11_009, 11_009, 11_258, 11_507, 11_570]
    distances = [ladder.Distance.of(row, other) for row, other in zip(rows, theirs, strict=True)]
    assert [distance.blocks for distance in distances] == [0, -1, -1, -1, -1, -2, -1]
    assert max(abs(distance.step_bytes) for distance in distances) < 1_077_120, "steps agree to a block"
    assert [row.note for row in rows if row.note] == ["modelled reservation", "unverified on SM120"]


def test_a_step_that_shrinks_shows_in_every_later_state():
    usual, other = (ladder.projected_rows(projection(sizes), 10**10) for sizes in (SIZES, (256, 0, 0, 256, 256, 64)))
    lost = [a.capacity.available_bytes - b.capacity.available_bytes for a, b in zip(usual, other, strict=True)]
    assert lost == [0, 0] + [256 * MIB] * 5


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"tp": 1}, "sm120 at TP=2"),
        ({"platform": "sm90"}, "sm120 at TP=2"),
        ({"dims": PICO.to_json()}, "is of flash, this is pico"),
        ({"dims": FLASH.with_changes(max_num_batched_tokens=4096).to_json()}, "is of T=8,192"),
    ],
)
def test_only_what_was_published_has_a_distance(changes, why):
    found = ladder.comparable(projection(**changes))
    assert why in found
    assert bool(found) == bool(why)


def test_arms_of_the_measured_ladder_are_the_states_and_two_apart():
    arms = ladder.ladder_arms()
    assert [arm.toggles for arm in arms[:7]] == [ladder.ROWS[:i] for i in range(7)]
    assert [arm.toggles for arm in arms[7:]] == [("c128a_topk_shared",), ("dflash_staging_skip",)]
    memory = [t.name for t in REGISTRY.values() if t.expected_bytes and t.kind == "optimization"]
    assert sorted((*ladder.ROWS, *ladder.APART)) == sorted(memory), "every memory toggle has a row"


# --- measured -------------------------------------------------------------------------------------------------------


def plan(arms=None):
    return plan_experiment(
        (), load_suite("kv"), PICO, arms=arms or ladder.ladder_arms(), engine_args=["--dims", "pico"]
    )


def records(plan, profile_of):
    for boot in plan.boots:
        yield BootStarted(boot=boot.number, time="t", arm=boot.arm, block=boot.block, phase=boot.phase)
        yield KvProfile(boot=boot.number, rank=0, values=profile_of(plan.arm(boot.arm), boot))
        yield BootEnded(boot=boot.number, time="t", status="ok", seconds=1, log="l", log_bytes=1, log_sha256="0" * 64)


def profile(arm, boot=None, **wrong):
    """Each toggle takes its expected bytes from one component; a thousand bytes each at first."""
    values = dict.fromkeys(ladder.NEEDED, 1 << 30) | {"index_maps_per_step": 1}
    of_phase = {"load": "persistent_bytes", "init": "persistent_bytes", "profile": "peak_activation_bytes",
                "serve": "runtime_peak_bytes"}  # fmt: skip
    for name in arm.takes:
        toggle = REGISTRY[name]
        size = toggle.expected_bytes(PICO)
        if toggle.phase in of_phase:
            values[of_phase[toggle.phase]] -= size
        if toggle.phase in ("load", "init", "after profile"):
            values["resident_bytes"] -= size
        values["available_bytes"] += size if toggle.moves_line else 0
    return {**values, **wrong}


def test_steps_come_from_the_arms_that_differ_in_one_toggle():
    made = plan()
    rows, apart = ladder.measured_rows(made, list(records(made, profile)))
    for row in (*rows[1:], *apart):
        toggle = REGISTRY[row.toggle]
        assert row.step_bytes == ladder.expected_step(row.toggle, PICO)
        assert dict(row.phases) == {toggle.phase: toggle.expected_bytes(PICO)}
    assert rows[-1].capacity.available_bytes == (1 << 30) + sum(row.step_bytes for row in rows)
    assert [row.toggle for row in apart] == list(ladder.APART)


def test_a_cumulative_matrix_of_all_toggles_serves_too():
    made = plan_experiment(
        (*ladder.ROWS, *ladder.APART), load_suite("kv"), PICO, matrix="ladder", engine_args=["--dims", "pico"]
    )
    rows, _ = ladder.measured_rows(made, list(records(made, profile)))
    assert [row.step_bytes for row in rows[1:]] == [ladder.expected_step(name, PICO) for name in ladder.ROWS]


@pytest.mark.parametrize(("method", "layers"), [("none", 0), ("mtp", 1), ("dspark", PICO.n_draft_layers)])
def test_tokens_count_the_draft_layers_that_the_engine_had(method, layers):
    made = plan_experiment(ladder.ROWS, load_suite("kv"), PICO, matrix="ladder", speculative=method)
    rows, _ = ladder.measured_rows(made, list(records(made, profile)))
    geometry = KvGeometry.of(PICO, n_draft_layers=layers)
    assert rows[0].capacity == geometry.capacity(1 << 30, PICO.max_num_batched_tokens, PICO.max_model_len, "0.25.1")


def test_boots_that_disagree_and_arms_that_lack_are_named():
    made = plan()
    varying = records(made, lambda arm, boot: profile(arm, resident_bytes=boot.number))
    with pytest.raises(InputError, match="resident_bytes of arm 'baseline' is"):
        ladder.measured_rows(made, list(varying))
    unknown = records(made, lambda arm, boot: profile(arm, runtime_peak_bytes=None))
    with pytest.raises(InputError, match="runtime_peak_bytes of arm 'baseline' is None"):
        ladder.measured_rows(made, list(unknown))
    short = plan(ladder.ladder_arms()[:3])
    with pytest.raises(InputError, match="no two arms differ in c128_indices_in_place alone"):
        ladder.measured_rows(short, list(records(short, profile)))


@pytest.mark.slow
def test_the_engines_own_profiles_make_the_ladder():
    made = plan()
    found = {}
    for arm in made.arms:
        engine = boot_runner(toggles=",".join(arm.takes), speculative="dspark")
        more = {"resident_bytes": engine.resident_bytes, "index_maps_per_step": engine.index_maps_per_step}
        found[arm.name] = {**engine.profile.to_json(), "available_bytes": engine.capacity.available_bytes, **more}
    rows, apart = ladder.measured_rows(made, list(records(made, lambda arm, boot: found[arm.name])))
    assert [row.step_bytes - ladder.expected_step(row.toggle, PICO) for row in (*rows, *apart)] == [0] * 9


# --- the subprocess -------------------------------------------------------------------------------------------------


def test_the_projection_answers_and_reports_its_progress():
    seen = []
    arguments = ["--dims", "pico", "-T", "40", "--toggle", "mtp_hidden_skip"]
    found = project(arguments, lambda done, of: seen.append((done, of)))
    (step,) = found.cumulative
    assert (step.toggle, step.line_bytes) == ("mtp_hidden_skip", 40 * 4 * PICO.hidden_size * 2)
    assert seen == [(1, 2), (2, 2)]


def test_what_the_projection_refuses_is_the_users_to_mend():
    with pytest.raises(InputError, match=r"^unknown toggle 'mtp_hidden_skp': did you mean mtp_hidden_skip"):
        project(["--toggle", "mtp_hidden_skp"])


def test_published_rows_are_in_blocks():
    rows = ladder.published_rows(8192, 524_288)
    block = rows[0].capacity.block_bytes
    blocks = [state.blocks for state in published.STATES]
    assert [row.step_bytes for row in rows[1:]] == [(b - a) * block for a, b in pairwise(blocks)]
