"""Two runs by test id: what is new, what is inherited, and what is no failure of a test at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsbench.errors import InputError
from dsbench.score.pytest_ids import check_named, compare_reports
from dsbench.score.pytest_parents import parent_cases
from dsbench.score.pytest_report import SESSION, Case, PytestReport, read_console, read_junit
from tests.dsbench.score.pytest_files import junit

MHC = "tests/kernels/test_mhc_kernels.py"
SAMPLER = "tests/v1/spec_decode/test_rejection_sampler_utils.py"
WRONG = "failed: AssertionError: tensors are not close"


def report(cases: dict[str, str], collection: dict[str, str] | None = None) -> PytestReport:
    return read_junit(junit(cases, collection), "made.xml")


def compared(before: dict[str, str], after: dict[str, str], inherits: dict[str, str] | None = None):
    return compare_reports(report(before), report(after), inherits)


def kinds(answer) -> dict[str, str]:
    return {d.id.rpartition("::")[2]: d.kind for d in answer.differences}


# --- the source document's kernel-test A/B --------------------------------------------------------------------------
# Totals as the maintainer's notes give them; which tests they fall on is made up, the named ones apart.

SEAM = "test_mhc_fused_post_pre[*-128] (by name, parameters and reason)"
NO_FLASH = "failed: ImportError: requires the CUDA flash attention extensions (_vllm_fa2_C or _vllm_fa3_C)"


def mhc_before() -> dict[str, str]:
    """13 failed, 31 passed, 8 skipped: every case of the fused transition at 128 fails, and nine others."""
    cases = {f"{MHC}::test_mhc_fused_post_pre[{n}-{h}]": "passed" for n in (1, 16, 17, 8192) for h in (64, 256)}
    cases |= {f"{MHC}::test_mhc_fused_post_pre[{n}-128]": NO_FLASH for n in (1, 16, 17, 8192)}
    cases |= {f"{MHC}::test_mhc_head[{n}-128]": NO_FLASH for n in range(6)}
    cases |= {f"{MHC}::test_mhc_aux_mean[{n}]": NO_FLASH for n in range(3)}
    cases |= {f"{MHC}::test_mhc_pre[{n}]": "passed" for n in range(23)}
    return cases | {f"{MHC}::test_mhc_rocm[{n}]": "skipped: needs ROCm" for n in range(8)}


def mhc_after() -> dict[str, str]:
    """11 failed, 53 passed, 8 skipped: three are mended, and of 20 tests that are new one fails."""
    cases = mhc_before() | {f"{MHC}::test_mhc_aux_mean[{n}]": "passed" for n in range(3)}
    cases |= {f"{MHC}::test_mhc_fused_post_pre_reuses_dead_buffers[{h}]": "passed" for h in (64, 256)}
    cases |= {f"{MHC}::test_mhc_post_hc_head[{n}]": "passed" for n in range(17)}
    return cases | {f"{MHC}::test_mhc_fused_post_pre_reuses_dead_buffers[128]": NO_FLASH}


def sampler(passed: int) -> dict[str, str]:
    return {f"{SAMPLER}::test_rejection[{n}]": "passed" for n in range(passed)}


def counts(report: PytestReport) -> tuple[int, ...]:
    return tuple(report.count(status) for status in ("failed", "passed", "skipped"))


def test_the_merge_introduced_no_failure():
    before, after = report(mhc_before()), report(mhc_after())
    assert (counts(before), counts(after)) == ((13, 31, 8), (11, 53, 8))
    answer = compare_reports(before, after)
    assert answer.of("new failure") == []
    assert [len(answer.of(kind)) for kind in ("fixed", "inherited", "added")] == [3, 11, 19]
    (only_after,) = [d for d in answer.of("inherited") if d.baseline is None]
    assert only_after.id == f"{MHC}::test_mhc_fused_post_pre_reuses_dead_buffers[128]"
    assert only_after.note == f"inherits from {SEAM}: 4 cases red in both arms"
    assert answer.word == "improved"


@pytest.mark.parametrize(
    "reason",
    [
        "failed: RuntimeError: CUDA error: an illegal memory access was encountered",
        "failed: ImportError: cannot import name 'reuse'",
        "failed: AssertionError: Tensor-likes are not close!",
        "failed",
    ],
)
def test_the_merge_with_another_failure_in_the_variant_is_a_new_failure_mode(reason):
    """The review excuses the case for its parent's failure, and for no other one."""
    variant = f"{MHC}::test_mhc_fused_post_pre_reuses_dead_buffers[128]"
    answer = compared(mhc_before(), mhc_after() | {variant: reason})
    (new,) = answer.of("new failure")
    assert (new.id, answer.word) == (variant, "regressed")
    assert new.note.startswith(f"fails otherwise than its parent {SEAM}: ImportError: requires")


def test_the_sampler_gained_two_tests():
    before, after = report(sampler(29)), report(sampler(31))
    assert (before.count("passed"), after.count("passed")) == (29, 31)
    answer = compare_reports(before, after)
    assert len(answer.of("added")) == 2
    assert answer.word == "equivalent"


def test_the_run_without_a_compiler_is_no_43_against_63_failures():
    """The maintainer's third false result: a shell without nvcc turned every test red that compiles a kernel."""
    red = "failed: RuntimeError: tilelang_callback_cuda_compile"
    cpu = {f"{MHC}::test_shapes[{n}]": "passed" for n in range(9)}
    before = cpu | {f"{MHC}::test_mhc[{n}]": red for n in range(43)}
    answer = compared(before, before | {f"{MHC}::test_mhc[{n}]": red for n in range(63)})
    assert (answer.word, answer.of("new failure"), answer.of("inherited")) == ("void", [], [])
    assert answer.reasons == ["63 tests red because of the machine, without device or compiler"]


def test_the_merge_with_one_case_mended_is_another_matter():
    """Where one of the parents passes, the variant's failure is its own."""
    before = mhc_before() | {f"{MHC}::test_mhc_fused_post_pre[17-128]": "passed"}
    after = mhc_after() | {f"{MHC}::test_mhc_fused_post_pre[17-128]": "passed"}
    (new,) = compared(before, after).of("new failure")
    assert new.note == f"does not inherit from {SEAM}: only 3 of 4 cases red"
    mended = compared(mhc_before(), after)
    assert [d.note for d in mended.of("new failure")] == [f"does not inherit from {SEAM}: 1 of them mended"]
    assert mended.word == "regressed"


# --- classes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "kind", "word"),
    [
        ("passed", "passed", "unchanged", "equivalent"),
        ("passed", WRONG, "new failure", "regressed"),
        ("passed", "error: RuntimeError: set-up", "new failure", "regressed"),
        ("skipped: no", WRONG, "new failure", "regressed"),
        (WRONG, WRONG, "inherited", "equivalent"),
        (WRONG, "error: x", "inherited", "equivalent"),
        (WRONG, "passed", "fixed", "improved"),
        ("passed", "skipped: no", "newly skipped", "inconclusive"),
        ("passed", "xfailed: bug", "newly skipped", "inconclusive"),
        (WRONG, "skipped: no", "newly skipped", "inconclusive"),
        ("skipped: no", "skipped: no", "skipped", "equivalent"),
        (None, "passed", "added", "equivalent"),
        (None, "skipped: no", "skipped", "equivalent"),
        (None, WRONG, "new failure", "regressed"),
        ("passed", None, "removed", "inconclusive"),
        (WRONG, None, "removed", "equivalent"),
        ("passed", "failed: RuntimeError: No CUDA GPUs are available", "machine", "void"),
        ("error: RuntimeError: Found no NVIDIA driver on your system", "passed", "machine", "void"),
    ],
)
def test_one_id_beside_a_test_that_passes(before, after, kind, word):
    other = {"t/test_a.py::test_other": "passed"}
    name = "t/test_a.py::test_it"
    answer = compared(other | ({name: before} if before else {}), other | ({name: after} if after else {}))
    assert kinds(answer)["test_it"] == kind
    assert answer.word == word


def test_a_loss_outweighs_what_could_not_be_compared():
    before = {"t/test_a.py::test_a": "passed", "t/test_a.py::test_b": "passed"}
    after = {"t/test_a.py::test_a": WRONG, "t/test_a.py::test_b": "skipped: no"}
    answer = compare_reports(report(before, {"t/test_c.py": "SyntaxError: x"}), report(after, {"t/test_c.py": "x"}))
    assert answer.word == "regressed"
    assert answer.reasons[0] == "1 new failure"
    assert len(answer.reasons) == 3


def test_a_failure_that_has_changed_its_kind_is_named():
    answer = compared(
        {"t/test_a.py::test_a": WRONG, "t/test_a.py::test_b": "passed"},
        {
            "t/test_a.py::test_a": "failed: RuntimeError: CUDA error: an illegal memory access",
            "t/test_a.py::test_b": "passed",
        },
    )
    assert answer.word == "equivalent"
    assert "fails otherwise than in the baseline" in answer.notes[0]


# --- inheritance ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "known", "parents"),
    [
        ("m.py::test_x_reuses_y[128]", ["m.py::test_x[1-128]", "m.py::test_x[2-128]", "m.py::test_x[1-64]"], [0, 1]),
        ("m.py::test_x_reuses_y[128]", ["m.py::test_x[1128]", "m.py::test_xy[1-128]", "n.py::test_x[1-128]"], []),
        ("m.py::test_x_y_z[128]", ["m.py::test_x[1-128]", "m.py::test_x_y[2-128]"], [1]),
        ("m.py::T::test_x_y[128]", ["m.py::T::test_x[1-128]", "m.py::test_x[1-128]"], [0]),
        ("m.py::test_x_y[128]", ["m.py::test_x[128]", "m.py::test_x[64]"], [0]),
        ("m.py::test_x_y", ["m.py::test_x[1]", "m.py::test_x[2]", "m.py::test_x"], []),
        ("m.py::test_x_y[2]", ["m.py::test_x"], []),
        ("m.py::test_x[bf16-128]", ["m.py::test_x[128]", "m.py::test_x[64]"], [0]),
        ("m.py::test_x[128-bf16]", ["m.py::test_x[128]", "m.py::test_x[64]"], [0]),
        ("m.py::test_x[256]", ["m.py::test_x[128]"], []),
        ("m.py::test_x[256]", ["m.py::test_x"], []),
    ],
)
def test_parents_by_parametrization(name, known, parents):
    found = parent_cases(name, known, {})
    assert (found.cases if found else []) == [known[i] for i in parents]


def test_a_name_that_begins_alike_excuses_no_defect():
    """Seen: two defects of new tests passed as inherited, whatever they failed for."""
    before = {"m.py::test_post[128]": NO_FLASH, "m.py::test_kv": NO_FLASH, "m.py::test_k": "passed"}
    after = before | {
        "m.py::test_post_reuses_r[128]": "failed: AssertionError: RuntimeError: CUDA error: an illegal memory access",
        "m.py::test_kv_new_feature": NO_FLASH,
    }
    answer = compared(before, after)
    assert (len(answer.of("new failure")), answer.word) == (2, "regressed")


SHAPES = "failed: ValueError: shapes (4, 128) and (4, 64)"


@pytest.mark.parametrize(
    ("parent", "own", "kind"),
    [
        (SHAPES, "failed: ValueError: shapes (8, 128) and (8, 64)", "inherited"),
        (SHAPES, "failed: ValueError: no block of this size", "inherited"),
        (SHAPES, "failed: TypeError: no block", "new failure"),
        ("failed: assert 1 == 2", "failed: AssertionError: not close", "inherited"),
        (
            "failed: RuntimeError: no kernel",
            "failed: RuntimeError: CUDA error: an illegal memory access",
            "new failure",
        ),
        ("failed: torch.OutOfMemoryError: 2 GiB", "failed: torch.OutOfMemoryError: 3 GiB", "inherited"),
    ],
)
def test_a_further_parameter_inherits_the_type_of_error_alone(parent, own, kind):
    before = {"m.py::test_x[128]": parent, "m.py::test_k": "passed"}
    answer = compared(before, before | {"m.py::test_x[bf16-128]": own})
    assert kinds(answer)["test_x[bf16-128]"] == kind
    told = next(d.note for d in answer.differences if "bf16" in d.id)
    assert "test_x[128] (by its parameters)" in told
    assert told.startswith("inherits from" if kind == "inherited" else "fails otherwise than its parent")
    mapped = compared(before, before | {"m.py::test_z": own}, {"test_z": "test_x[*]"})
    assert kinds(mapped)["test_z"] == kind


def test_a_parent_that_left_with_the_candidate_fails_in_one_arm_alone():
    before = {"m.py::test_old[1]": WRONG, "m.py::test_old[2]": WRONG, "m.py::test_k": "passed"}
    after = {"m.py::test_old_renamed[1]": WRONG, "m.py::test_k": "passed"}
    for inherits in ({}, {"test_old_renamed[1]": "test_old[1]"}):
        answer = compared(before, after, inherits)
        assert kinds(answer)["test_old_renamed[1]"] == "new failure"
        assert "1 of 1 case not in the candidate" in answer.of("new failure")[0].note


def test_the_map_names_parents_that_no_rule_finds():
    before = {"m.py::test_seam[1-128]": WRONG, "m.py::test_seam[1-64]": "passed"}
    after = before | {"m.py::test_other_name[128]": WRONG}
    assert kinds(compared(before, after))["test_other_name[128]"] == "new failure"
    answer = compared(before, after, {"test_other_name[128]": "test_seam[*-128]"})
    assert kinds(answer)["test_other_name[128]"] == "inherited"
    wide = compared(before, after, {"test_other_name[128]": "m.py::test_seam[*]", "test_gone": "test_seam"})
    assert kinds(wide)["test_other_name[128]"] == "new failure", "one of its parents passes"
    assert wide.notes == ["the map's 'test_gone' is no test of either arm"]


def test_the_map_excuses_no_test_that_passed():
    answer = compared(
        {"m.py::test_a": "passed", "m.py::test_b": WRONG},
        {"m.py::test_a": WRONG, "m.py::test_b": WRONG},
        {"test_a": "test_b"},
    )
    assert kinds(answer)["test_a"] == "new failure"


# --- collection errors and red environments --------------------------------------------------------------------------

BAD = {"t/test_bad.py": "ImportError: cannot import name 'fused'"}
GOOD = {"t/test_a.py::test_a": "passed"}


@pytest.mark.parametrize(
    ("before", "after", "word", "said"),
    [
        ({}, BAD, "regressed", "the candidate cannot collect t/test_bad.py"),
        (BAD, BAD, "void", "neither arm can collect t/test_bad.py"),
        (BAD, {}, "equivalent", ""),
    ],
)
def test_collection_errors_are_no_test_failures(before, after, word, said):
    answer = compare_reports(report(GOOD, before), report(GOOD, after))
    assert answer.word == word
    assert answer.of("new failure") == []
    assert said in " ".join(answer.reasons)


def test_tests_of_a_module_that_one_arm_cannot_collect():
    more = GOOD | {"t/test_bad.py::test_x": "passed", "t/test_bad.py::test_y": WRONG}
    assert kinds(compare_reports(report(more), report(GOOD, BAD)))["test_x"] == "not collected"
    mended = compare_reports(report(GOOD, BAD), report(more))
    assert (kinds(mended)["test_x"], kinds(mended)["test_y"]) == ("added", "no baseline")
    assert mended.word == "void"


@pytest.mark.parametrize("red", [WRONG, "failed: ModuleNotFoundError: No module named 'vllm._C'"])
def test_a_baseline_that_could_not_begin_is_compared_with_nothing(red):
    """Seen: its conftest did not import, and what the candidate fails was called two new failures."""
    after = report({"t/test_a.py::test_a": red, "t/test_a.py::test_b": red})
    answer = compare_reports(PytestReport({}, {SESSION: "ModuleNotFoundError: No module named 'x'"}), after)
    assert (answer.word, answer.of("new failure")) == ("void", [])
    assert "the baseline" in answer.reasons[0]
    if red == WRONG:
        assert kinds(answer) == {"test_a": "no baseline", "test_b": "no baseline"}
        assert answer.reasons[0] == (
            "2 tests red that cannot be compared: the baseline cannot collect anything: "
            "ModuleNotFoundError: No module named 'x'"
        )
    broken = compare_reports(report(GOOD), PytestReport({}, {SESSION: "ImportError: x"}))
    assert (broken.word, kinds(broken)) == ("regressed", {"test_a": "not collected"})
    neither = compare_reports(PytestReport({}, {SESSION: "x"}), report(GOOD, BAD))
    assert (neither.word, neither.reasons[0]) == ("void", "neither arm can collect t/test_bad.py: not run")


def crashed(name: str, **before: str) -> PytestReport:
    """A run whose process died in a test, after others."""
    cases = {f"t/test_a.py::{test}": Case(status) for test, status in before.items()}
    return PytestReport({**cases, f"t/test_a.py::{name}": Case("error", "the process ended with signal SIGSEGV")})


def test_what_a_crash_never_reached_is_compared_with_nothing():
    whole = report({"t/test_a.py::test_a": "passed", "t/test_a.py::test_b": WRONG, "t/test_a.py::test_c": "passed"})
    answer = compare_reports(crashed("test_a"), whole)
    assert kinds(answer) == {"test_a": "fixed", "test_b": "no baseline", "test_c": "added"}
    assert (answer.word, answer.reasons[0]) == (
        "void",
        "1 test red that cannot be compared: the baseline never got there: "
        "the process ended with signal SIGSEGV in t/test_a.py::test_a",
    )
    lost = compare_reports(whole, crashed("test_a"))
    assert kinds(lost) == {"test_a": "new failure", "test_b": "not reached", "test_c": "not reached"}
    assert (lost.word, lost.reasons[0]) == ("regressed", "1 new failure")
    known = compare_reports(whole, crashed("test_b", test_a="passed"))
    assert (known.word, kinds(known)) == (
        "void",
        {"test_a": "unchanged", "test_b": "inherited", "test_c": "not reached"},
    )
    assert "1 test of the baseline never reached: the candidate's run ended in t/test_a.py::test_b" in known.reasons[0]
    both = compare_reports(crashed("test_b", test_a="passed"), crashed("test_b", test_a="passed"))
    assert (both.word, both.of("new failure")) == ("void", [])
    assert "what comes later was not run in either arm" in both.reasons[0]


NO_CUDA = "error: RuntimeError: No CUDA GPUs are available"
NO_MODULE = "failed: ModuleNotFoundError: No module named 'vllm._C'"
OTHER = "failed: TypeError: launch() missing 'grid' at 0x7f{}"


def everywhere(told: str, n: int = 3) -> dict[str, str]:
    return {f"t/test_a.py::test_{i}": told.format(i) for i in range(n)}


@pytest.mark.parametrize(
    ("before", "after", "word", "said"),
    [
        ("passed", NO_MODULE, "regressed", "import error"),
        ("passed", OTHER, "regressed", "every test fails for one reason"),
        ("passed", NO_CUDA, "void", "the candidate was not tested: no device or compiler"),
        (NO_CUDA, NO_CUDA, "void", "both arms were not tested: no device or compiler"),
        (NO_MODULE, "passed", "void", "the baseline was not tested: import error"),
    ],
)
def test_a_red_environment_is_called_that(before, after, word, said):
    answer = compared(everywhere(before), everywhere(after))
    assert answer.word == word
    assert said in answer.reasons[0]
    assert answer.differences == []


@pytest.mark.parametrize("told", [WRONG, "failed: RuntimeError: CUDA error: an illegal memory access was encountered"])
def test_assertions_and_faults_are_the_codes_however_many(told):
    answer = compared(everywhere("passed"), everywhere(told))
    assert (len(answer.of("new failure")), answer.word) == (3, "regressed")


def test_one_failing_function_is_no_environment():
    cases = {f"t/test_a.py::test_a[{i}]": "passed" for i in range(3)}
    answer = compared(cases, dict.fromkeys(cases, "failed: ValueError: x"))
    assert len(answer.of("new failure")) == 3


def test_nothing_in_common_is_void():
    assert compared({"a.py::test_a": "passed"}, {"b.py::test_b": "passed"}).reasons[0] == "no test ran in both arms"
    assert compared({}, {}).word == "void"
    assert compared({"a.py::test_a": "skipped: x"}, {"a.py::test_a": "skipped: x"}).word == "void"


def test_reds_without_any_id_in_common_are_no_regression():
    """Seen: two checkouts under one ini file, whose ids began with their folders."""
    answer = compared(
        {"A/t.py::test_a": "passed", "A/t.py::test_b": WRONG}, {"B/t.py::test_a": "passed", "B/t.py::test_b": WRONG}
    )
    assert (answer.word, answer.of("new failure")) == ("void", [])
    assert answer.reasons[0] == "1 test red that cannot be compared: the arms have no test id in common"


def test_results_without_names_are_refused():
    with pytest.raises(InputError, match=r"a\.txt: 29 passed tests without a name: run pytest with -rA"):
        check_named(read_console("=== 29 passed, 2 skipped in 1.00s ===\n", "a.txt"), "a.txt")


# --- for any two runs -------------------------------------------------------------------------------------------------

runs = st.dictionaries(
    st.sampled_from([f"t/test_{m}.py::test_{n}" for m in "ab" for n in ("x", "x_y", "x[1-2]", "x_y[2]", "z")]),
    st.sampled_from(["passed", "skipped: x", "xfailed: x", WRONG, "failed: ValueError: y", NO_CUDA]),
)


@given(runs, runs)
def test_every_id_has_one_class_and_no_loss_is_hidden(before, after):
    answer = compared(before, after)
    if any(answer.environment):
        assert answer.word in ("void", "regressed")
        return
    assert [d.id for d in answer.differences] == sorted({*before, *after})
    red = (WRONG, "failed: ValueError: y")
    lost = [n for n, told in before.items() if told == "passed" and after.get(n) in red]
    assert {d.id for d in answer.of("new failure")} >= set(lost)
    new = [n for n, told in after.items() if told in red and n not in before and before.keys() & after.keys()]
    parents = [n for n in before if before[n] in red and after.get(n) in red]
    assert parents or {d.id for d in answer.of("new failure")} >= set(new), "nothing to inherit from"
    assert (answer.word == "regressed") == bool(answer.of("new failure"))


@given(runs)
def test_a_run_against_itself_loses_nothing(run):
    answer = compared(run, run)
    assert answer.word in ("equivalent", "void")
    assert answer.of("new failure") == answer.of("fixed") == answer.of("removed") == []
