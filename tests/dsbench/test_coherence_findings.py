"""Notes about replies to long prompts that stand beside the shares."""

import pytest

from dsbench import records as r
from dsbench.judge import judge
from tests.dsbench.probes.serving import plan_of

PLAN = plan_of("""
[probes.coherence]
style = "pairs"
lines = 40
needles = 2
distractors = 1
concurrencies = [1, 8]
seeds = 2
payloads = ["unique"]
""")
REQUESTS = [f"c{n} unique s{seed} #{number}" for n in (1, 8) for seed in (1, 2) for number in range(1, n + 1)]


@pytest.fixture
def verdict(make_records):
    """The verdict where these items are 0 in these arms, with such a text."""

    def give(lost=(), unsound=(), arms="b", text="leaked control token: the log <x>", hides="", unasked=(),
             failed=False):  # fmt: skip
        def observed(record):
            arm = PLAN.boots[record.boot - 1].arm
            bad, sound = arm in arms, HIDDEN if arm in hides else "42"
            if record.metric == "coherence.recall":
                asked = [request for request in REQUESTS if not (bad and request in unasked)]
                for item in (f"{request} needle {k}" for request in asked for k in (1, 2)):
                    value = int(not (bad and item in lost))
                    yield record.model_copy(update={"item": item, "value": value, "cluster": item[:-9]})
            elif record.metric in ("coherence.clean", "coherence.finished"):
                for item in REQUESTS:
                    value = int(not (bad and item in unsound and record.metric == "coherence.clean"))
                    yield record.model_copy(
                        update={"item": item, "value": value, "cluster": item, "text": sound if value else text}
                    )
            elif record.metric == "coherence.prefix_reuse":
                for part in ("c1 unique", "c8 unique"):
                    yield record.model_copy(update={"item": part, "value": None, "raw": None})

        records, seen = [], set()
        for record in make_records(PLAN):
            if isinstance(record, r.Observation) and record.metric.startswith("coherence."):
                if (record.boot, record.metric) not in seen:
                    records += observed(record)
                seen.add((record.boot, record.metric))
            elif isinstance(record, r.Check) and failed and record.boot == PLAN.boots[-1].number:
                records.append(record.model_copy(update={"status": "failed", "reason": "1 request had no answer"}))
            else:
                records.append(record)
        return judge(PLAN, records)

    return give


def findings(verdict):
    return [note for note in verdict.notes if note.startswith("finding")]


def words(verdict):
    return {row.metric: row.word for row in verdict.rows}


def test_sound_arms_have_no_findings(verdict):
    told = verdict()
    assert (told.void, findings(told)) == ([], [])
    assert words(told)["coherence.clean"] == words(told)["coherence.finished"] == "inconclusive"  # 18 clusters
    assert words(told)["coherence.prefix_reuse"] == "inconclusive"


def test_one_leaked_token_is_told_although_no_test_can_fire(verdict):
    told = verdict(unsound=[REQUESTS[5]])
    assert words(told)["coherence.clean"] == "inconclusive"
    (note,) = findings(told)
    # Two measured boots an arm give the item.
    assert note == "finding, incoherent text: b in 2 of 36 replies: leaked control token 2"


def test_replies_in_which_no_leak_could_be_seen_are_told(verdict):
    told = verdict(unsound=[REQUESTS[5]], text="control tokens unseen: repetition: aaaa")
    notes = [note for note in told.notes if "control tokens" in note]
    assert notes == [
        "leaked control tokens cannot be seen in 2 of 36 replies of b: its server refuses skip_special_tokens and "
        "takes them out of the text"
    ]
    assert findings(told) == ["finding, incoherent text: b in 2 of 36 replies: repetition 2"]
    assert not any("cannot be seen" in note for note in verdict(unsound=[REQUESTS[5]]).notes)


HIDDEN = "control tokens unseen: 42"


@pytest.mark.parametrize(("leaks", "hides"), [("b", "a"), ("a", "b")])
def test_arms_that_were_not_asked_alike_are_not_told_apart(verdict, leaks, hides):
    """One leaks in all its replies, which the other's server would have taken out of the text."""
    assert words(verdict(unsound=REQUESTS, arms=leaks))["coherence.clean"] == {"b": "regressed", "a": "improved"}[leaks]
    told = verdict(unsound=REQUESTS, arms=leaks, hides=hides)
    (clean,) = [row for row in told.rows if row.metric == "coherence.clean"]
    seen = {leaks: 36, hides: 0}
    assert (clean.word, clean.p, clean.p_holm, clean.blocks_needed) == ("inconclusive", None, None, None)
    assert clean.notes == [
        f"not asked alike: control tokens are shown in {seen['a']} of 36 replies of a and {seen['b']} of 36 replies of "
        "b; elsewhere the server refused skip_special_tokens=false, so that a leak would not be seen"
    ]
    assert f"leaked control tokens cannot be seen in 36 of 36 replies of {hides}" in " ".join(told.notes)


def test_arms_whose_servers_hide_control_tokens_alike_are_judged_as_ever(verdict):
    told = verdict(unsound=REQUESTS, text="control tokens unseen: repetition: aaaa", hides="ab")
    assert words(told)["coherence.clean"] == "regressed"


def test_needles_lost_alone_are_told_and_those_that_both_lose_are_not(verdict):
    item = f"{REQUESTS[0]} needle 2"
    assert findings(verdict(lost=[item])) == [
        f"finding, needles lost alone: b loses 1 of 4 that a recalls with one request at a time, the first is {item}"
    ]
    assert findings(verdict(lost=[item], arms="ab")) == []
    assert findings(verdict(lost=[f"{REQUESTS[6]} needle 1"])) == []


def test_many_lost_needles_are_a_regression(verdict):
    told = verdict(lost=[f"{request} needle {k}" for request in REQUESTS[:10] for k in (1, 2)])
    assert words(told)["coherence.recall"] == "regressed"
    assert words(told)["coherence.clean"] != "regressed"


def test_a_baseline_that_recalls_little_has_little_to_lose(verdict):
    everything = [f"{request} needle {k}" for request in REQUESTS for k in (1, 2)]
    assert findings(verdict(lost=everything, arms="ab")) == [
        "finding, the baseline itself recalls 0 of 72 needles: little is left to lose, so take shorter prompts or "
        "another model"
    ]
    assert findings(verdict(lost=everything[:17], arms="ab")) == []


def test_needles_that_were_not_asked_for_are_not_lost(verdict):
    """Void, as their items are not there; what is told must not count them, all the same."""
    alone = [note for note in verdict(unasked=REQUESTS[:1]).notes if "lost alone" in note]
    assert alone == []
    item = f"{REQUESTS[1]} needle 1"
    (alone,) = [note for note in verdict(unasked=REQUESTS[:1], lost=[item]).notes if "lost alone" in note]
    assert alone.endswith(f"b loses 1 of 2 that a recalls with one request at a time, the first is {item}")


def test_what_is_found_in_a_void_experiment_says_that_it_is_void(verdict):
    told = verdict(lost=[f"{REQUESTS[0]} needle 2"], unsound=[REQUESTS[5]], failed=True)
    assert (told.word, findings(told)) == ("void", [])
    found = [note for note in told.notes if "finding, " in note]
    assert len(found) == 2
    begins = "of a void experiment, so no evidence for or against an arm: finding, "
    assert all(note.startswith(begins) for note in found)
