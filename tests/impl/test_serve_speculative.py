"""The server with speculation, as its clients see it: the same text, vLLM's counters, and conditions that say so."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from impl.serve import main
from tests.impl.serving import Server, start

BODY = {"max_tokens": 24, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
PROMPTS = ["hello", "Q: 17+25\nA:", "the quick brown fox"]

DSPARK_SYNTHETIC = ("--speculative", "dspark", "--rejection-sample-method", "synthetic")


def stop(server: Server) -> None:
    server.client.close()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == -signal.SIGTERM


def texts(server: Server) -> list[list[int]]:
    return [server.complete(prompt=prompt, **BODY)["choices"][0]["token_ids"] for prompt in PROMPTS]


def test_drafts_change_no_text_and_are_counted(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "spec").mkdir()
    plain = start(tmp_path / "plain")
    expected = texts(plain)
    assert "spec_decode" not in plain.client.get("/metrics").text
    stop(plain)
    server = start(tmp_path / "spec", "--speculative", "dspark", "--max-num-seqs", "2")
    assert texts(server) == expected
    drafts, drafted = (server.metric(f"vllm:spec_decode_num_{name}_total") for name in ("drafts", "draft_tokens"))
    accepted = server.metric("vllm:spec_decode_num_accepted_tokens_total")
    assert drafts > 0
    assert drafts <= drafted <= 5 * drafts
    assert server.metric("vllm:spec_decode_num_accepted_tokens_per_pos_total") == accepted
    conditions, profile = (
        json.loads((tmp_path / "spec" / f"{name}.rank0.json").read_text()) for name in ("conditions", "kv_profile")
    )
    assert (conditions["speculative"], conditions["graph_mode"]) == ("dspark", "replay")
    assert conditions["draft_weights"] == "dummy:0"
    assert profile["graph_bytes"] > 0
    stop(server)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rejection-sample-method", "synthetic"], "needs drafts: add --speculative mtp or dspark"),
        (["--synthetic-acceptance-length", "3"], "need --rejection-sample-method synthetic"),
        (["--speculative", "mtp", "--draft-load-format", "auto"], "none are shipped: use --draft-load-format dummy"),
        (
            [*DSPARK_SYNTHETIC, "--synthetic-acceptance-rates", ".5,.6,0,0,0"],
            "synthetic acceptance rates increase at position 1",
        ),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_one_line(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--dims", "pico", "--load-format", "dummy", "--until", "profile", *flags]) == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert "\n" not in said
