"""`dsbench ab --a URL --b URL` on real servers: the same twice, and one with a defect planted."""

import json

import pytest
from click.testing import CliRunner

from dsbench import records as r
from dsbench import store
from dsbench.cli import main
from dsbench.cli.experiment import Asked
from dsbench.errors import InputError
from dsbench.report.rerun import command
from tests.impl import serving

TOKENS = """
name = "tokens"
summary = "tokens and answers"
blocks = 2
warmup_boots = 0
guards = ["identity.tokens", "smoke.correct"]
[[probes.smoke.items]]
prompt = "7*8="
answer = 56
[probes.identity]
prompts = ["The quick brown fox", "kx=42\\nab=17\\nqr=93\\nzz=55\\nmn=68\\nop=21\\nst=77\\nuv=39\\ncd=11\\n?ab="]
tokens = 16
together = 0
"""
DRAFTS = """
name = "drafts"
summary = "drafts and the law"
blocks = 2
warmup_boots = 0
guards = ["accept.*", "output_law"]
[probes.kv]
[probes.identity]
prompts = ["7*8="]
tokens = 4
[probes.acceptance]
prose = ["The small "]
structured = ["kx=42\\n?kx="]
tokens = 24
samples = 1
[probes.output_law]
prompts = ["The quick brown fox", "Ben "]
requests = 60
contexts = 8
"""


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """URLs by toggles and flags; each server runs until the tests of this module are done."""
    started = {}

    def url_of(toggles, *flags):
        if (toggles, flags) not in started:
            folder = tmp_path_factory.mktemp("server")
            started[toggles, flags] = serving.start(
                folder, "--load-format", "auto", "--memory-budget", str(64 << 20), *flags, toggles=toggles
            )
        return str(started[toggles, flags].client.base_url).rstrip("/")

    yield url_of
    for server in started.values():
        server.client.close()
        server.process.terminate()
        server.process.wait(20)


@pytest.fixture
def ab(tmp_path):
    """Runs the command; gives exit code, verdict, plan and records."""

    def run(suite, a, b, *more):
        (tmp_path / "s.toml").write_text(suite)
        args = ["ab", "--a", a, "--b", b, "-s", str(tmp_path / "s.toml"), "-o", str(tmp_path / "out"), "--json", *more]
        done = CliRunner().invoke(main, args, prog_name="dsbench")
        made = [path for path in (tmp_path / "out").iterdir() if (path / "plan.json").is_file()]
        folder = max(made, key=lambda path: (path / "plan.json").stat().st_mtime_ns)
        return done.exit_code, json.loads(done.stdout), store.load_plan(folder), store.load_records(folder)[0]

    return run


def words(verdict):
    return {row["metric"]: row["word"] for row in verdict["rows"]}


def test_the_same_server_twice_is_an_a_a_whose_visits_alternate_in_blocks(ab, servers):
    url = servers("")
    code, verdict, plan, records = ab(TOKENS, url, f"{url}/")
    assert (code, verdict["word"], verdict["void"]) == (0, "equivalent", [])
    assert words(verdict) == {"identity.tokens": "equivalent", "smoke.correct": "equivalent"}
    assert [arm.url for arm in plan.arms] == [url, url]
    order = [boot.arm for boot in plan.boots]
    assert sorted(order[:2]) == ["a", "b"]
    assert order[2:] == order[:2][::-1]
    ran = [(record.boot, record.probe) for record in records if isinstance(record, r.Check)]
    assert ran == [(boot.number, probe) for boot in plan.boots for probe in ("smoke", "identity")]


def test_a_server_with_corrupted_rows_is_regressed(ab, servers):
    code, verdict, *_ = ab(TOKENS, servers(""), servers("c128_row_corrupt:2"))
    assert (code, verdict["word"], verdict["void"]) == (1, "regressed", [])
    assert words(verdict)["identity.tokens"] == "regressed"
    assert verdict["sentence"].startswith("b regressed: identity.tokens")


@pytest.mark.slow
def test_a_stale_draft_is_regressed_on_the_law(ab, servers):
    sound, stale = (
        servers(toggles, "--speculative", "dspark")
        for toggles in ("rejection_keyword_binding", "draft_logits_persistent=off")
    )
    code, verdict, plan, _ = ab(DRAFTS, sound, stale)
    assert plan.probes.names() == ["identity", "acceptance", "output_law"]
    assert {arm.speculative for arm in plan.arms} == {"unknown"}
    assert (code, verdict["word"], verdict["void"]) == (1, "regressed", [])
    assert words(verdict)["output_law"] == "regressed"


def test_without_speculation_drafts_are_not_asked_for(ab, servers):
    _, verdict, plan, _ = ab(DRAFTS, servers(""), servers(""))
    assert plan.probes.names() == ["identity"]
    assert any("acceptance, output_law: not-run, no arm has speculation" in note for note in verdict["notes"])


SMOKE = TOKENS.replace("blocks = 2", "blocks = 1")


def test_another_model_in_one_arm_voids_the_result_unless_it_is_declared(ab, servers):
    code, verdict, plan, _ = ab(SMOKE, servers(""), servers("", "--dims", "micro"))
    assert (code, verdict["word"]) == (4, "void")
    assert {reason["code"] for reason in verdict["void"]} == {"condition-differs"}
    (of_model,) = [reason for reason in verdict["void"] if "difference of served_model" in reason["text"]]
    assert "'pico' in a" in of_model["text"]
    assert "'micro' in b" in of_model["text"]
    assert of_model["mend"] == (
        "visit servers with the same served_model, or add --declare served_model where one model has two names"
    )
    assert any(note.startswith("served_model differs (pico in a, micro in b), which voids") for note in plan.notes)


def test_another_model_that_is_declared_is_compared_and_told(ab, servers):
    meant = ("--declare", "served_model", "--declare", "max_model_len")
    code, verdict, plan, _ = ab(SMOKE, servers(""), servers("", "--dims", "micro"), *meant)
    assert (code, verdict["word"], verdict["void"]) == (1, "regressed", [])
    assert any("declared differences of b: served_model pico -> micro" in note for note in verdict["notes"])
    assert command(plan)[5:7] == ["--declare", "served_model"]


def test_another_longest_request_in_one_arm_voids_the_result(ab, servers):
    url, shorter = servers(""), servers("", "--max-model-len", "1024")
    code, verdict, *_ = ab(SMOKE, url, shorter)
    assert (code, [reason["code"] for reason in verdict["void"]]) == (4, ["condition-differs"])
    assert verdict["void"][0]["text"].startswith("undeclared difference of max_model_len: ")
    assert "--declare max_model_len" in verdict["void"][0]["mend"]
    assert ab(SMOKE, url, shorter, "--declare", "max_model_len")[1]["void"] == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--declare", "served_modle"], "--declare served_modle: running servers tell served_model, max_model_len, "),
        (["--engine", "vllm", "--declare", "served_model"], "--declare served_model is for running servers: "),
        (["--engine", "embedded", "--declare", "served_model"], "--declare is for another --engine"),
    ],
)
def test_what_cannot_be_declared(tmp_path, more, said):
    urls = [] if "--engine" in more else ["--a", "http://127.0.0.1:9", "--b", "http://127.0.0.1:9"]
    line = ["plan", *urls, *more, *(["-t", "mhc_input_reuse"] if not urls else []), "-o", str(tmp_path)]
    line += ["--serve-args", "org/m"] if "vllm" in more else []
    done = CliRunner().invoke(main, line, prog_name="dsbench")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr


def asked(**options):
    fields = dict.fromkeys(
        ("until", "timeout", "max_num_batched_tokens", "max_model_len", "hidden_size", "speculative",
         "draft_load_format", "synthetic_acceptance_rates", "synthetic_acceptance_length")
    )  # fmt: skip
    return Asked(**{**fields, "suite_name": "quick", "seed": 0, "shape": "micro", "load_format": "auto",
                    "eager": False, **options})  # fmt: skip


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"a": "http://x"}, "--a URL compares with nothing: give --a and --b"),
        ({"b": "http://x"}, "--b URL compares with nothing: give --a and --b"),
        ({"a": "http://x", "b": "http://y", "endpoints": ("c=http://z",)}, "leave out --endpoint c=http://z"),
        ({"a": "http://x", "b": "http://y", "engine": "vllm"}, "leave out --engine vllm"),
    ],
)
def test_options_that_do_not_fit(options, said):
    with pytest.raises(InputError, match=said):
        asked(**options)


def test_a_server_that_does_not_answer_is_refused_before_the_first_visit(tmp_path):
    ports = ["--a", "http://127.0.0.1:9", "--b", "http://127.0.0.1:9"]
    done = CliRunner().invoke(main, ["ab", *ports, "-o", str(tmp_path / "out")], prog_name="dsbench")
    assert done.exit_code == 2
    assert done.stderr == (
        "dsbench: --endpoint a=http://127.0.0.1:9: it does not answer http://127.0.0.1:9/health; start it first\n"
    )
    assert not (tmp_path / "out").exists()
