"""What is fuzzed: readers of logs, metrics pages, other programs' results, stored experiments, and TOML files."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from dsbench.errors import InputError
from dsbench.record_lines import lines_of, parse
from dsbench.selftest.mutations import changed_json, changed_text
from dsbench.selftest.shapes import LOG_WORDS, PAGE, RESULTS, RIG, SUITE, checkout_files, shipped_suites
from dsbench.store import PLAN, RECORDS

Case = dict[str, bytes]
"""Files of one input by name."""
LONG = 10_000_000
"""Bytes of an adversarial line."""
SHOWN_ONE_IN = 256
"""Cases whose whole command is called, tables and all; of the others what was read is only written as JSON."""


@dataclass(frozen=True)
class Target:
    """One family of readers."""

    name: str
    command: str
    """How a person reads such files."""
    shapes: Callable[[], Sequence[Case]]
    """Real inputs."""
    vary: Callable[[random.Random, Case], Case]
    read: Callable[[Path, Case], None]
    """Read the case, whose files stand in a folder. InputError where it is refused; anything else is a crash."""
    long: Callable[[], Iterator[Case]]
    """Inputs with a line of ten megabytes."""


def _shown(case: Case) -> bool:
    return any(zlib.crc32(content) % SHOWN_ONE_IN == 0 for content in case.values())


def _called(command: click.Command, *args: str) -> None:
    """The whole command, with a standard output that takes UTF-8 and nothing else."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        command.main([*args], standalone_mode=False)
        out.flush()


# --- logs and metrics pages -------------------------------------------------------------------------------------------


@functools.cache
def _logs() -> tuple[Case, ...]:
    rng = random.Random(0)
    woven = ["\n".join(_woven_line(rng) for _ in range(12)).encode() for _ in range(24)]
    return tuple({"engine.log": text} for text in [*checkout_files("tests/data/logs", ".log"), *woven])


def _woven_line(rng: random.Random) -> str:
    """Words that the readers look for, in any order."""
    return "".join(rng.choice(LOG_WORDS) + rng.choice(("", " ", "1.5", "7 GiB", ": 12,345", "=3")) for _ in range(5))


def _vary_log(rng: random.Random, case: Case) -> Case:
    return {"engine.log": changed_text(rng, case["engine.log"], [other["engine.log"] for other in _logs()])}


def _read_log(folder: Path, case: Case) -> None:
    from dsbench.cli.inspect import inspect as command
    from dsbench.engines.read_back import log_boot
    from dsbench.parse.inspect import inspect
    from dsbench.parse.progress import compile_lines, phases_of

    text = case["engine.log"].decode("utf-8", "replace")
    json.dumps(inspect(text), allow_nan=False).encode()
    phases_of(text)
    compile_lines(text)
    if _shown(case):
        log_boot(folder / "engine.log")
        _called(command, str(folder / "engine.log"))


@functools.cache
def _pages() -> tuple[Case, ...]:
    pages = [*checkout_files("tests/data/metrics", ".prom"), PAGE]
    # Most cases are parts of a page: a whole one takes ten times as long to read and shows no more.
    parts = [
        b"\n".join(page.split(b"\n")[at : at + 8]) + b"\n" for page in pages for at in range(0, page.count(b"\n"), 6)
    ]
    heads = [b"# SNAPSHOT 2026-05-08T16:21:55+00:00 status=200\n" + part for part in parts]
    both = [head + heads[(at + 1) % len(heads)] for at, head in enumerate(heads)]
    return tuple({"metrics.prom": page} for page in [*pages, *parts, *both])


def _vary_page(rng: random.Random, case: Case) -> Case:
    return {"metrics.prom": changed_text(rng, case["metrics.prom"], [other["metrics.prom"] for other in _pages()])}


def _read_page(folder: Path, case: Case) -> None:
    from dsbench.cli.inspect import inspect as command
    from dsbench.engines.client import read_counters
    from dsbench.parse.inspect import inspect

    text = case["metrics.prom"].decode("utf-8", "replace")
    json.dumps(inspect(text), allow_nan=False).encode()
    if _shown(case):
        _called(command, str(folder / "metrics.prom"))
    try:
        read_counters(text)
    except ValueError as error:
        raise InputError(str(error)[:200]) from None


def _long_texts(name: str, pieces: Sequence[str]) -> Iterator[Case]:
    for piece in pieces:
        yield {name: (piece * (LONG // len(piece))).encode()}


# --- results of other programs ----------------------------------------------------------------------------------------


@functools.cache
def _results() -> tuple[Case, ...]:
    found = [*checkout_files("tests/data/results", ".json"), *checkout_files("tests/data/results", ".jsonl"), *RESULTS]
    tables = checkout_files("tests/data/verdicts", ".json")
    return (*({"result.json": text} for text in found), *({"table.json": text} for text in tables))


def _vary_result(rng: random.Random, case: Case) -> Case:
    ((name, text),) = case.items()
    if rng.random() < 0.6:
        lines = text.strip().split(b"\n") if text.strip().count(b"}\n{") else [text]
        at = rng.randrange(len(lines))
        lines[at] = changed_json(rng, json.loads(lines[at]))
        text = b"\n".join(lines)
    if rng.random() < 0.5:
        text = changed_text(rng, text, [content for other in _results() for content in other.values()])
    return {name: text}


def _read_result(folder: Path, case: Case) -> None:
    from dsbench.cli.importing import import_results
    from dsbench.cli.judge import judge
    from dsbench.parse.foreign.recognise import import_result
    from dsbench.table_input import load_table

    if "table.json" in case:
        load_table(folder / "table.json")
        if zlib.crc32(case["table.json"]) % 16 == 0:
            _called(judge, "--from-table", str(folder / "table.json"))
        return
    path = str(folder / "result.json")
    found = import_result(folder / "result.json")
    json.dumps(found, allow_nan=False).encode()
    if _shown(case):
        _called(import_results, path)
        _called(import_results, path, path, "--arms", "a,b", "--table", str(folder / "made.json"))
        _called(judge, "--from-table", str(folder / "made.json"))


def _long_results() -> Iterator[Case]:
    numbers, words = b"1.5," * (LONG // 4), b'"a\\u0000",' * (LONG // 10)
    yield {"result.json": b'{"model_id":"' + b"x" * LONG + b'","num_prompts":1,"completed":1,"output_throughput":1}'}
    yield {"result.json": b'{"n_prompt":1,"n_gen":1,"avg_ts":1,"samples_ts":[' + numbers + b"1]}"}
    yield {"result.json": b'{"metrics":null,"command":["bench","serve",' + words + b'""]}'}
    yield {"result.json": b'{"results":{},"n-shot":{}},' * (LONG // 26)}
    yield {"result.json": b"[" * LONG}
    yield {"result.json": b"9" * LONG}
    yield {"result.json": b'{"id":"a","error":null,"output":"' + b"word \\u200b" * (LONG // 11) + b'"}'}
    yield {"table.json": b'{"arms":{"a":{"boots":[' + numbers + b"1]}}}"}
    yield {"table.json": b'{"' + b"a" * LONG + b'":1}'}


# --- stored experiments -----------------------------------------------------------------------------------------------


@functools.cache
def _stores() -> tuple[Case, ...]:
    """Whole experiments with few readings, of both kinds of drafts and of none."""
    from dsbench.plan import plan_experiment
    from dsbench.records import RECORD
    from dsbench.simulation.boots import simulated_records
    from dsbench.suite import parse_suite
    from impl.dims import PICO

    found = []
    for number, (suite, more) in enumerate(SUITE.items()):
        plan = plan_experiment(["mhc_input_reuse"], parse_suite(suite, "fuzz.toml"), PICO,
                               engine_args=["--dims", "pico", "--seed", "0", *more])  # fmt: skip
        records = simulated_records(plan, np.random.default_rng(number))
        lines = b"".join(lines_of(map(RECORD.dump_json, records)))
        found.append({PLAN: plan.model_dump_json().encode(), RECORDS: lines})
    return tuple(found)


def _vary_store(rng: random.Random, case: Case) -> Case:
    """A changed plan, changed bytes of the records, moved lines, or changed records under checksums that are right."""
    kind = rng.random()
    if kind < 0.2:
        return {**case, PLAN: changed_json(rng, json.loads(case[PLAN]))}
    if kind < 0.25:
        return {**case, PLAN: changed_text(rng, case[PLAN], [case[PLAN]])}
    lines = case[RECORDS].splitlines(keepends=True)
    if kind < 0.5:
        at = rng.randrange(len(lines))
        beside = lines[at : at + 3]
        return {**case, RECORDS: b"".join([*lines[:at], changed_text(rng, b"".join(beside), lines), *lines[at + 3 :]])}
    if kind < 0.6:
        return {**case, RECORDS: b"".join(_moved(rng, lines))}
    contents = [parse(line[:-1]).content for line in lines]
    for _ in range(rng.choice((1, 1, 2, 5))):
        if rng.random() < 0.2:
            contents = _moved(rng, contents) or [b"{}"]
        else:
            at = rng.randrange(len(contents))
            contents[at] = _changed_record(rng, contents[at])
    summed = rng.choice((0, 0, 0, 0, 0, len(contents), rng.randrange(len(contents) + 1)))
    return {**case, RECORDS: b"".join(_as_written(contents, summed, rng.randrange(summed + 1)))}


def _moved(rng: random.Random, lines: list[bytes]) -> list[bytes]:
    """With one line left out, doubled, tripled or put elsewhere."""
    at, to = rng.randrange(len(lines)), rng.randrange(len(lines))
    rest = [*lines[:at], *lines[at + 1 :]]
    again = [lines[at]] * rng.choice((0, 1, 2, 3))
    return [*rest[:to], *again, *rest[to:]] if len(again) == 1 else [*lines[:at], *again, *lines[at + 1 :]]


def _changed_record(rng: random.Random, content: bytes) -> bytes:
    """A changed record; what was changed before to something else stays."""
    try:
        return changed_json(rng, json.loads(content))
    except (ValueError, RecursionError):
        return content


def _as_written(contents: Sequence[bytes], summed: int, bare: int) -> Iterator[bytes]:
    """Lines of a file whose first ones an older dsbench wrote, the first of all with no checksum."""
    for content in contents[:bare]:
        yield content + b"\n"
    for content in contents[bare:summed]:
        yield b'%b,"crc32":"%08x"}\n' % (content[:-1], zlib.crc32(content))
    before = contents[summed - 1] if summed else b""
    yield from lines_of(contents[summed:], zlib.crc32(before))


def _read_store(folder: Path, case: Case) -> None:
    from dsbench.cli.judge import judge as command
    from dsbench.judge import judge
    from dsbench.store import load_plan, load_records

    plan = load_plan(folder)
    records, _ = load_records(folder)
    judge(plan, records).model_dump_json().encode()
    if _shown(case):
        _called(command, str(folder))


def _long_stores() -> Iterator[Case]:
    case = _stores()[0]
    finding = b'{"boot":1,"record":"finding","code":"x","text":"'
    lines = (
        b"x" * LONG,
        b"[" * LONG,
        b"\0" * LONG,
        b'{"record":' * (LONG // 10),
        finding + b"\\u0000" * (LONG // 6) + b'"}',
        b'{"record":"' + b"y" * LONG + b'"}',
        b',"crc32":"00000000"}' * (LONG // 20),
        b',"after":"00000000","crc32":"00000000"}' * (LONG // 39),
    )
    for line in lines:
        yield {**case, RECORDS: case[RECORDS] + line + b"\n" + case[RECORDS][:200]}
        last = parse(case[RECORDS].splitlines()[-1])
        yield {**case, RECORDS: case[RECORDS] + b"".join(lines_of([line], last.crc32))}
    yield {**case, PLAN: b'{"id":"' + b"x" * LONG + b'"}'}
    yield {**case, PLAN: b"[" * LONG}


# --- suites, policies and rigs ----------------------------------------------------------------------------------------

POLICY = b"""inconclusive = "rerun"
guards_resolved = true
[[rule]]
metric = "kv.available_bytes"
must = "improve"
by = "64 KiB"
[[rule]]
metric = "decode.tps.*"
arm = "mhc_*"
inconclusive = "pass"
[[rule]]
metric = "gsm8k.correct"
margin = "1 point"
"""


@functools.cache
def _tomls() -> tuple[Case, ...]:
    suites = [*shipped_suites(), *(suite.encode() for suite in SUITE)]
    return (*({"suite.toml": text} for text in suites), *({"policy.toml": POLICY} for _ in suites), {"rig.toml": RIG})


def _vary_toml(rng: random.Random, case: Case) -> Case:
    ((name, text),) = case.items()
    return {name: changed_text(rng, text, [content for other in _tomls() for content in other.values()])}


def _read_toml(folder: Path, case: Case) -> None:
    from dsbench.cli.suites import suites as command
    from dsbench.policy import load_policy
    from dsbench.rig import load_rig
    from dsbench.suite import load_suite

    readers: dict[str, Callable[[Path], Any]] = {
        "suite.toml": lambda path: load_suite(str(path)), "policy.toml": load_policy, "rig.toml": load_rig
    }  # fmt: skip
    for name in case:
        readers[name](folder / name)
        if name == "suite.toml" and _shown(case):
            _called(command, str(folder / name))


def _long_tomls() -> Iterator[Case]:
    lines = (
        b'name = "' + b"x" * LONG + b'"',
        b'blocks = "' + b"\\u0041" * (LONG // 6) + b'"',
        b"a." * (LONG // 2) + b"b = 1",
        b"[" + b"a." * (LONG // 2) + b"b]",
        b"x = " + b"[" * LONG,
        b"x = " + b"9" * LONG,
        b"x = [" + b"1," * (LONG // 2) + b"]",
        b"# " + b"x" * LONG,
        b"=" * LONG,
        b" " * LONG,
    )
    for line in lines:
        for name in ("suite.toml", "policy.toml", "rig.toml"):
            yield {name: line}


LONG_LOGS = (
    " ", "1", "\x1b[", "[1;31m", "(Worker_TP0 ", "Available KV cache memory: 1", "err ", "Assertion `", "= ", "\0",
    "^M", "\r", "SpecDecoding metrics: Accepted: 1 ",
    "05-08 16:21:55 ", "Engine 0: Avg prompt throughput: 1", "--- ",
    "KeyError: 'a.", "sh: a", "arm=", "Initializing an LLM engine (v1", "guard ", "\ufffd",
)  # fmt: skip
LONG_PAGES = (
    "# SNAPSHOT ", "vllm:a{", 'vllm:a{b="', 'a{b="\\', "# TYPE a ", "# HELP a", "a 1 ", "a{,", 'a="b",', "#", "\\", "{",
    "vllm:prompt_tokens_total 1", "a ",
)  # fmt: skip
"""What lines of ten megabytes are made of."""

TARGETS: tuple[Target, ...] = (
    Target("log", "dsbench inspect {}/engine.log", _logs, _vary_log, _read_log,
           lambda: _long_texts("engine.log", LONG_LOGS)),
    Target("metrics", "dsbench inspect {}/metrics.prom", _pages, _vary_page, _read_page,
           lambda: _long_texts("metrics.prom", LONG_PAGES)),
    Target("results", "dsbench import {}/result.json", _results, _vary_result, _read_result, _long_results),
    Target("records", "dsbench judge {}", _stores, _vary_store, _read_store, _long_stores),
    Target("toml", "dsbench plan --suite {}/suite.toml", _tomls, _vary_toml, _read_toml, _long_tomls),
)  # fmt: skip
