"""Cards of weights: what is made is replaced, what was written by hand stays."""

import hashlib
import json
from pathlib import Path

from impl.train import card

SHIPPED = Path(__file__).resolve().parents[3] / "impl/weights"


def test_the_shipped_card_is_that_of_the_shipped_weights():
    facts = json.loads((SHIPPED / "micro.json").read_text())
    assert facts["sha256"] == hashlib.sha256((SHIPPED / "micro.safetensors").read_bytes()).hexdigest()
    page = (SHIPPED / "micro.md").read_text()
    assert card.with_made_part(page, card.made_part(facts)) == page


def test_hand_written_text_stays_and_made_text_goes():
    page = card.with_made_part("# x weights\n\nBy hand.\n", "old")
    again = card.with_made_part(page + "\nMore by hand.\n", "new")
    assert "By hand." in again
    assert "More by hand." in again
    assert "new" in again
    assert "old" not in again
    assert card.with_made_part(again, "new") == again


def test_a_missed_target_is_called_missed(tmp_path):
    score = {"right": 1, "n": 4, "share": 0.25, "low": 0.05, "high": 0.7}
    curve = [{"step": 5, "tokens": 10, "minutes": 0.1, "answer_loss": {"sums": 1.5}, "index_kl": 0.2}]
    scores = {"sums": {**score, "target": "100%", "met": False}, "prose": score}
    made = card.made_part(card.card(SHIPPED / "pico.safetensors", scores, curve, "train", "here"))
    assert "0 of 1 targets are met" in made
    assert "| sums | 1 of 4, 25.0% [5.0%, 70.0%] | 100% | **missed** |" in made
    assert "| prose | 1 of 4, 25.0% [5.0%, 70.0%] |  |  |" in made
    assert "| 5 | 10 | 0.1 | 1.500 | 0.200 |" in made
