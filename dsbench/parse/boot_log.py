"""Boots in a server's log: KV memory by rank, tokens, concurrency, compilation, and why a boot failed.

A figure is taken from the line that states it and from no other: memory quoted in an error, padding in per cent,
block sizes and advice are not KV memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from dsbench.parse.boot_facts import Boot
from dsbench.parse.boot_lines import BLOCKS, INITIALIZING, TAKES, TOKENS, engine_tag, kv_figure, rank_tag, whole
from dsbench.parse.health import read_health
from dsbench.parse.lines import Line


def read_boots(lines: Iterable[Line]) -> list[Boot]:
    """Every boot of a log, in order; a file that shows none gives an empty list."""
    boots = [Boot()]
    for line in lines:
        header = line.major_header
        if header is not None:
            if boots[-1].told:
                boots.append(Boot())
            label, colon, described = header.partition(":")
            boots[-1].label, boots[-1].described = (label.strip(), described) if colon else (None, header)
        elif _begins(line, boots[-1]):
            boots.append(Boot())
        _read(line, boots[-1])
    found = [boot for boot in boots if boot.told]
    for boot in found[:-1]:
        boot.followed = True
    for boot in found:
        boot.health = read_health(boot.lines)
    return found


def _begins(line: Line, boot: Boot) -> bool:
    """Whether a line cannot belong to the boot so far: it states again, otherwise, what was stated."""
    text = line.text
    if "Initializing a" in text and INITIALIZING.search(text):
        return engine_tag(line) in boot.tokens or engine_tag(line) in boot.kv_gib
    if "vLLM API server version" in text or "..  version " in text:
        return bool(boot.kv_gib or boot.tokens)
    if figure := kv_figure(text):
        tag = rank_tag(line, boot)
        return tag in boot.kv_gib and (boot.kv_gib[tag] != figure or bool(boot.tokens or boot.blocks))
    if "KV cache size:" in text and (tokens := TOKENS.search(text)):
        return boot.tokens.get(engine_tag(line), whole(tokens[1])) != whole(tokens[1])
    if " blocks:" in text and (blocks := BLOCKS.search(text)):
        return (boot.blocks or whole(blocks[1])) != whole(blocks[1])
    return False


def _read(line: Line, boot: Boot) -> None:
    boot.lines.append(line)
    if "Worker" in line.process and line.rank is not None and line.rank not in boot.workers:
        boot.workers.append(line.rank)
    for phrase, take in TAKES:
        if phrase in line.text:
            take(line, boot)
