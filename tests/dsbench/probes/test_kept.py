"""A reply is scored whole, and stored within a bound that says how long it was."""

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsbench.engines.secrets import REDACTED
from dsbench.probes import boot, coherence, gsm8k, identity, instruction, smoke, toolcall
from dsbench.probes.boot import MOST_OF_A_REPLY, kept
from tests.dsbench.probes.serving import plan_of, run

NOTE = 80
HUGE = 1_000_000
SMOKE = '[probes.smoke]\nitems = [{ prompt = "x", expect = "kept whole" }]\n'


def saying(text, reason="stop"):
    """A server that says this to whatever it is asked."""
    choice = {"text": text, "message": {"content": text}, "finish_reason": reason}

    def answer(body):
        ids = [1] * body["max_tokens"]
        usage = {"prompt_tokens": 1, "completion_tokens": len(ids)}
        return httpx.Response(200, json={"choices": [{**choice, "token_ids": ids}], "usage": usage})

    return answer


PROBES = {
    smoke: SMOKE,
    identity: "",
    gsm8k: "[probes.gsm8k]\nlimit = 2\nmax_tokens = 9\n",
    instruction: "[probes.instruction]\nitems = 2\n",
    coherence: '[probes.coherence]\nstyle = "report"\nlines = 60\nconcurrencies = [1]\nseeds = 1\n',
    toolcall: '[probes.toolcall]\nscenarios = ["A1"]\nthinking = ["off"]\nmax_tokens = 99\n',
}


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.__name__.rpartition(".")[2])
def test_no_probe_stores_a_huge_reply_whole(probe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where a boot's own files go
    readings, _ = run(probe, plan_of(PROBES[probe]), saying("word " * (HUGE // 5), reason="s" * HUGE))
    texts = [reading.text for reading in readings if reading.text is not None]
    assert max(map(len, texts)) <= MOST_OF_A_REPLY + NOTE
    assert any("characters left out" in text and f"of {HUGE:,}"[:6] in text for text in texts)


def test_the_scorer_sees_what_is_not_stored():
    reply = "a" * HUGE + " kept whole " + "b" * HUGE
    (reading,), _ = run(smoke, plan_of(SMOKE), saying(reply))
    assert reading.value == 1
    assert "kept whole" not in reading.text
    left_out = len(reply) - MOST_OF_A_REPLY
    assert f"\n[... {left_out:,} of {len(reply):,} characters left out ...]\n" in reading.text
    assert (reading.text[0], reading.text[-1]) == ("a", "b")


@given(st.text(max_size=200), st.integers(8, 100))
def test_the_beginning_and_the_end_stay_and_a_short_reply_is_whole(text, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boot, "MOST_OF_A_REPLY", most)
        found = kept(text)
    if len(text) <= most:
        assert found == text
    else:
        assert len(found) <= most + NOTE
        assert found.startswith(text[: most * 3 // 4])
        assert found.endswith(text[-(most // 4) :])
        assert f"of {len(text):,} characters" in found


def test_a_secret_at_the_cut_leaves_no_part_of_it(monkeypatch):
    secret = "planted-4711-abcdefgh"
    monkeypatch.setenv("SOME_API_KEY", secret)
    for at in (MOST_OF_A_REPLY * 3 // 4 - 7, HUGE - MOST_OF_A_REPLY // 4 - 7):
        found = kept("y" * at + secret + "y" * (HUGE - at))
        assert "planted" not in found
        assert "efgh" not in found
    assert REDACTED in kept(secret)
