"""Bundles: a stored result as one redacted tar.gz for a pull request; the same result gives the same bytes."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dsbench import __version__
from dsbench.errors import InputError
from dsbench.judge import judge
from dsbench.plan_nouns import plan_digest
from dsbench.record_lines import lines_of
from dsbench.records import RECORD, ExperimentVerdict, Plan, Run
from dsbench.redact import Redaction, hosts_of
from dsbench.store import PLAN, RECORDS, VERDICTS, Result

INDEX = "bundle.json"
HEAD, TAIL, TELLING, WIDEST = 150, 250, 100, 400
"""Lines kept of a log's beginning and end, lines kept in between that tell of trouble, and characters of a line."""
LARGEST = 1 << 20
"""Of a file that is neither record nor log."""
_TELLING = re.compile(r"\b(?:ERROR|WARNING|CRITICAL|Traceback|\w+Error|\w+Exception)\b")


@dataclass(frozen=True)
class Bundle:
    """What is written."""

    content: bytes
    files: list[str]
    left_out: list[str]
    shortened: dict[str, int]
    """Lines left out, by log."""
    redacted: dict[str, int]
    """Texts that something was taken out of, by kind."""


def bundle(result: Result, redaction: Redaction | None = None) -> Bundle:
    """Plan, records, verdicts, boots' read-back files and shortened logs, redacted. InputError without records, or if a
    known secret would still be in it.
    """
    if not result.records:
        raise InputError(f"{result.folder} has no records: there is nothing to bundle")
    clean = redaction or Redaction(hosts_of(result.plan))
    texts = _own_files(result, clean)
    left_out: list[str] = []
    shortened: dict[str, int] = {}
    for path in _others(result.folder):
        name = clean.text(path.relative_to(result.folder).as_posix())
        text = _text_of(path)
        if text is None:
            left_out.append(name)
        elif path.suffix == ".log":
            texts[name], dropped = shorten(clean.text(text))
            shortened |= {name: dropped} if dropped else {}
        else:
            texts[name] = _other(path, text, clean)
    redacted = {kind: count for kind, count in sorted(clean.counts.items()) if count}
    index = {"result": result.plan.id, "dsbench": __version__, "redacted": redacted, "shortened": shortened,
             "left_out": left_out}  # fmt: skip
    texts[INDEX] = _json(index)
    root = clean.text(result.plan.id)
    files = {f"{root}/{name}": text.encode() for name, text in sorted(texts.items())}
    for name, content in files.items():
        if found := clean.left_in(content):
            raise InputError(f"bundle {result.folder}: {found} would still be in {name}; please report this")
    return Bundle(_tar(files), list(files), left_out, shortened, redacted)


def shorten(log: str) -> tuple[str, int]:
    """A log's first and last lines and the telling ones between, each cut; and how many lines are left out."""
    lines = [line if len(line) <= WIDEST else f"{line[:WIDEST]} [...]" for line in log.splitlines()]
    if len(lines) <= HEAD + TAIL:
        return "".join(f"{line}\n" for line in lines), 0
    middle = lines[HEAD:-TAIL]
    kept = [line for line in middle if _TELLING.search(line)][:TELLING]
    dropped = len(middle) - len(kept)
    gap = [f"[... {dropped} lines left out ...]"] if dropped else []
    return "\n".join([*lines[:HEAD], *gap, *kept, *lines[-TAIL:]]) + "\n", dropped


def _own_files(result: Result, clean: Redaction) -> dict[str, str]:
    """Plan, records and verdicts; this version still reads them."""
    verdict = result.verdict or judge(result.plan, result.records)
    texts = {PLAN: _json(clean.value(result.plan.model_dump(mode="json")))}
    try:
        texts[RECORDS] = _records(result, clean, plan_digest(texts[PLAN]))
        texts[VERDICTS] = _json(clean.value(verdict.model_dump(mode="json")))
        Plan.model_validate_json(texts[PLAN])
        ExperimentVerdict.model_validate_json(texts[VERDICTS])
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise InputError(f"bundle {result.folder}: a host or user name is also a word of ours, at {where}") from None
    return texts


def _records(result: Result, clean: Redaction, digest: str) -> str:
    """They belong to the redacted plan, as they did to the one that was redacted."""
    contents = []
    for record in result.records:
        content = clean.value(json.loads(RECORD.dump_json(record)))
        if isinstance(record, Run) and record.plan_sha256:
            content["plan_sha256"] = digest
        RECORD.validate_python(content)
        contents.append(json.dumps(content, separators=(",", ":")).encode())
    return b"".join(lines_of(contents)).decode()


def _others(folder: Path) -> Iterator[Path]:
    """Files beside the plan, the records and the verdicts, in order; no links."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).parts
        ours = len(inside) == 1 and inside[0] in (PLAN, RECORDS, VERDICTS)
        if path.is_file() and not path.is_symlink() and not ours and not inside[-1].startswith("."):
            yield path


def _text_of(path: Path) -> str | None:
    """The text of a log, or of a small JSON file; None for everything else, which stays out."""
    if path.suffix not in (".log", ".json") or path.name == "ready.json":
        return None
    if path.suffix == ".json" and path.stat().st_size > LARGEST:
        return None
    return path.read_text(encoding="utf-8", errors="replace")


def _other(path: Path, text: str, clean: Redaction) -> str:
    try:
        return _json(clean.value(json.loads(text)))
    except (ValueError, RecursionError):
        return clean.text(text)


def _json(content: Any) -> str:
    return json.dumps(content, indent=1) + "\n"


def _tar(files: dict[str, bytes]) -> bytes:
    """Nothing in it depends on the time, the user or the file system."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), compresslevel=9, mtime=0)
