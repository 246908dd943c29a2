"""What `vllm serve` is started with, how its start is followed, and what its arguments say."""

import sys

import pytest

from dsbench.engines import vllm
from dsbench.engines.server import EngineFailed
from dsbench.errors import InputError


@pytest.mark.parametrize(
    ("args", "method"),
    [
        (["m"], None),
        (["m", "--speculative-config", '{"method": "ngram"}'], "ngram"),
        (["m", '--speculative-config={"model": "draft"}'], "draft_model"),
        (["m", "--speculative_config", "{}"], "none"),
        (["m", "--speculative-config.method", "ngram", "--speculative-config.num_speculative_tokens=3"], "ngram"),
    ],
)
def test_the_speculative_method(args, method):
    assert vllm.speculative_method(args) == method


@pytest.mark.parametrize("text", ["dspark", "[1]", "3"])
@pytest.mark.parametrize("read", [vllm.speculative_method, vllm.synthetic_drafts])
def test_a_speculative_config_that_is_no_object(read, text):
    with pytest.raises(InputError, match="not a JSON object"):
        read(["m", "--speculative-config", text])


SYNTHETIC, STRICT = '{"method": "dspark", "rejection_sample_method": "synthetic"}', '{"method": "dspark"}'


@pytest.mark.parametrize(
    ("args", "synthetic"),
    [
        (["m"], False),
        (["m", "--speculative-config", STRICT], False),
        (["m", "--speculative-config", '{"method": "dspark", "synthetic_acceptance_length": null}'], False),
        (["m", "--speculative-config", SYNTHETIC], True),
        (["m", "-sc", SYNTHETIC], True),
        (["m", "--speculative_config", '{"method": "dspark", "synthetic_acceptance_length": 3.3}'], True),
        (["m", '--speculative-config={"method": "dspark", "synthetic_acceptance_rates": [1, 0.5]}'], True),
        (["m", "--speculative-config", SYNTHETIC, "--speculative-config", STRICT], False),
        (["m", "-sc.method", "dspark", "-sc.rejection_sample_method", "synthetic"], True),
        (["m", "--speculative_config.synthetic_acceptance_rates+=0.9,0.5"], True),
        (["m", "--speculative-config", SYNTHETIC, "--speculative-config.method=ngram"], False),
    ],
)
def test_drafts_accepted_unseen(args, synthetic):
    assert vllm.synthetic_drafts(args) == synthetic


@pytest.mark.parametrize(
    ("args", "ranks"),
    [([], 1), (["-tp", "2"], 2), (["--tensor-parallel-size=2", "--pipeline-parallel-size", "2", "-dp", "3"], 12)],
)
def test_workers(args, ranks):
    assert vllm.world_size(["m", *args]) == ranks


def test_workers_that_are_no_number():
    with pytest.raises(InputError, match="--tensor-parallel-size two"):
        vllm.world_size(["-tp", "two"])


def test_the_model_is_the_first_argument():
    assert vllm.model_of(["org/model", "--seed", "1"]) == "org/model"
    assert vllm.model_of(["--model", "org/model"]) == "org/model"
    with pytest.raises(InputError, match="must begin with the model"):
        vllm.model_of(["--seed", "1"])


def test_limits_are_the_plain_numbers():
    args = ["m", "--max-model-len", "4096", "--max-num-seqs=8", "--max-num-batched-tokens", "auto"]
    assert vllm.limits(args) == {"max_model_len": 4096, "max_num_seqs": 8}


SERVER = """
import http.server, os, pathlib, sys, time
folder = pathlib.Path(os.environ["DSBENCH_BOOT_DIR"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *args): pass
def say(text): print(text, flush=True)
say("Starting to load model m...")
if "stuck" in sys.argv: time.sleep(60)
say("Available KV cache memory: 1.50 GiB")
if "plugin" in sys.argv:
    (folder / "conditions.rank0.json").write_text("{}")
    (folder / "kv_profile.rank0.json").write_text('{"available_bytes": 1610612736}')
say("GPU KV cache size: 2,000 tokens, Maximum concurrency for 1,000 tokens per request: 2.00x")
if "second" in sys.argv:
    time.sleep(0.4); (folder / "kv_profile.rank1.json").write_text("{}")
say("Capturing CUDA graphs (FULL): 100%")
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
say("Application startup complete.")
server.serve_forever()
"""


@pytest.fixture
def start(tmp_path):
    def build(*words, ranks=1):
        port = vllm.free_port()
        line = [sys.executable, "-c", SERVER, str(port), *words]
        environment = {"DSBENCH_BOOT_DIR": str(tmp_path)}
        return vllm.VllmServer(line, environment, tmp_path, stop_s=3, port=port, ranks=ranks)

    return build


def test_a_start_is_followed_through_its_phases(start):
    with start() as server:
        ready = server.wait_ready(30)
        assert (ready.port, ready.pid) == (server.port, server.process.pid)
        while server.advanced():
            pass
        assert {"loading", "profiling", "serving"} <= set(server.phase_seconds)
    assert not server.alive()


def test_a_phase_that_takes_too_long_is_named(start):
    with start("stuck") as server, pytest.raises(EngineFailed, match=r"engine did not answer .* Starting to load"):
        server.wait_ready(1.0)


@pytest.mark.parametrize(("words", "ranks"), [((), 1), (("plugin",), 1), (("plugin", "second"), 2)])
def test_a_boot_may_end_after_its_profile(start, words, ranks, tmp_path):
    with start(*words, ranks=ranks) as server:
        server.wait_profile(30)
        assert len(list(tmp_path.glob("kv_profile.*"))) == (ranks if words else 0)


def test_a_rank_that_writes_no_profile_is_waited_for(start):
    with start("plugin", ranks=2) as server, pytest.raises(EngineFailed, match="no KV profile within 1 s"):
        server.wait_profile(1.0)


def test_the_command_line(make_plan):
    plan = make_plan(engine_args=["org/m", "--max-num-seqs", "8"])
    arm = plan.arms[1].model_copy(update={"args": ["--enforce-eager"], "python": "/venv/bin/python"})
    line = vllm.command(plan, arm, 1234)
    assert line[:6] == ["/venv/bin/python", "-P", "-m", "vllm.entrypoints.cli.main", "serve", "org/m"]
    assert line[6:] == ["--max-num-seqs", "8", "--enforce-eager", "--seed", "0", "--host", "127.0.0.1",
                        "--port", "1234"]  # fmt: skip
    given = make_plan(engine_args=["org/m", "--seed=5"])
    assert vllm.command(given, arm, 1)[6:8] == ["--seed=5", "--enforce-eager"]


@pytest.fixture
def site(tmp_path):
    """The path of an environment in which vLLM of a version is installed."""

    def make(version):
        info = tmp_path / version / f"vllm-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
        return {"PYTHONPATH": str(info.parent)}

    return make


def boot_line(plan, arm, tmp_path):
    """The command line of a boot; the server itself ends at once."""
    with vllm.Vllm(plan).boot(arm, tmp_path) as server:
        return list(server.process.args)


@pytest.mark.parametrize(
    ("version", "args", "told"),
    [
        *((version, [], True) for version in vllm.TELLS_EACH),
        ("0.26.0+cu130", [], True),
        ("0.26.0", ["--no-jit-monitor-verbose"], False),
        ("0.26.0", ["--jit_monitor_verbose"], False),
        ("0.99.0", [], False),
    ],
)
def test_every_compilation_is_told_where_a_version_can(version, args, told, make_plan, site, tmp_path):
    plan = make_plan(engine_args=["org/m", *args])
    arm = plan.baseline.model_copy(update={"env": site(version)})
    assert (vllm.EACH_COMPILATION in boot_line(plan, arm, tmp_path)) == told


def test_a_boot_to_its_profile_serves_nothing_to_be_told_of(make_plan, site, tmp_path):
    plan = make_plan(engine_args=["org/m"]).model_copy(update={"until": "profile"})
    arm = plan.baseline.model_copy(update={"env": site("0.26.0")})
    assert vllm.EACH_COMPILATION not in boot_line(plan, arm, tmp_path)


def test_an_interpreter_that_cannot_be_asked_is_left_to_the_boot(make_plan, tmp_path):
    plan = make_plan(engine_args=["org/m"])
    arm = plan.baseline.model_copy(update={"python": "/bin/false"})
    assert vllm.EACH_COMPILATION not in boot_line(plan, arm, tmp_path)


def test_an_environment_without_vllm():
    with pytest.raises(InputError, match="no vllm is installed there"):
        vllm.look_into(sys.executable, {})
    with pytest.raises(InputError, match="cannot be asked"):
        vllm.look_into("/bin/false", {})
