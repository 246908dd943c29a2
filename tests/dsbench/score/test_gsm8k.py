"""GSM8K answers: the shared cases, the order of the rules, and texts made to be slow or odd."""

import json
import os
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsbench.score.gsm8k import (
    Scored,
    extract,
    gold_number,
    lm_eval_equal,
    lm_eval_flexible,
    lm_eval_strict,
    score,
    totals,
)
from dsbench.score.numbers import plain_text, read_number, values, write_number

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "tests/data/gsm8k"
OFFICIAL = Path(os.environ.get("DSBENCH_GSM8K", ROOT.parent / "shared/data/gsm8k/test.jsonl"))
FILES = sorted(DATA.glob("*.jsonl"))
ROWS = [json.loads(line) for path in FILES for line in path.read_text(encoding="utf-8").splitlines()]
COMPARED = ("extracted", "correct", "lm_eval_strict", "lm_eval_flexible", "lm_eval_strict_correct",
            "lm_eval_flexible_correct")  # fmt: skip


@pytest.mark.parametrize(
    ("output", "number"),
    [
        ("the answer is 7! = 5040", "5040"),
        ("The answer is 2^3 = 8.", "8"),
        ("The answer is 5! That was easy, 3 = 3.", "5"),
        ("The answer is 5!", "5"),
        ("#### 12 345", "12345"),
        ("#### $1 234 567.\nDone", "1234567"),
        ("#### -12 345", "-12345"),
        ("#### 12 34", "12"),
        ("#### 12 345 eggs", "12"),
        ("#### 1e3", "1000"),
        ("#### 1.5E+3.", "1500"),
        ("#### 25e-1", "2.5"),
        ("The answer is 2e3x", "2"),
        ("#### 4e2.5", "4"),
        ("#### 3 eggs", "3"),
    ],
)
def test_numbers_that_one_reading_alone_fits(output: str, number: str) -> None:
    assert extract(output).text == number


@given(st.integers(-(10**12), 10**12), st.integers(-12, 20))
def test_blanks_of_thousands_and_powers_are_read_as_written(value: int, power: int) -> None:
    assert extract(f"#### {value:,}".replace(",", " ")).value == value
    assert extract(f"#### {value}e{power}").value == Fraction(value) * Fraction(10) ** power


def scored(row: dict) -> Scored:
    return score(row["id"], row["output"], row["question_gold"], row["finish_reason"])


def test_the_cases_are_there():
    assert len(FILES) == 2
    assert len(ROWS) == 30


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_every_shared_row(row):
    found = scored(row)
    assert {key: getattr(found, key) for key in COMPARED} == {key: row[key] for key in COMPARED}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_totals_of_the_shared_files(path):
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    expected = json.loads(path.with_suffix(".expected.json").read_text(encoding="utf-8"))
    assert totals([scored(row) for row in rows]) == {key: value for key, value in expected.items() if key != "why"}


@pytest.mark.skipif(not OFFICIAL.is_file(), reason=f"no official test file at {OFFICIAL}; DSBENCH_GSM8K names one")
def test_the_official_file_gives_its_golds():
    answers = [json.loads(line)["answer"] for line in OFFICIAL.read_text(encoding="utf-8").splitlines()]
    golds = [gold_number(answer) for answer in answers]
    assert len(golds) == 1319
    assert None not in golds
    assert [golds[0], golds[489], min(golds)] == [18, Fraction(answers[489].split("#### ")[1].replace(",", "")), -10]
    assert [extract(answer).value for answer in answers] == golds


@pytest.mark.parametrize(
    ("text", "value", "source"),
    [
        # The last of boxes and markers stands.
        (r"\boxed{3} no, wait.\n#### 4", "4", "marker"),
        ("#### 3\nso \\boxed{4}", "4", "box"),
        (r"\boxed{\frac{1}{2}}", "0.5", "box"),
        (r"\boxed{x = 16 - 7 = 9 \text{ eggs}}", "9", "box"),
        (r"\boxed{12\text{ cm}^2}", "12", "box"),
        (r"\boxed{7", "7", "last number"),
        (r"\boxed{} and 5", "5", "last number"),
        ("#### 16 - 3 - 4 = 9 eggs", "9", "marker"),
        ("####\n**$1,234.50**", "1234.5", "marker"),
        ("#### Answer: 12", "12", "marker"),
        ("#### 30\n#### ", "30", "marker"),
        ("#### 1. Count the eggs\nThere are 9.\n#### 2. Sell them\nShe gets $18.", "18", "last number"),
        ("#### Step 2\nIt is 14.", "14", "last number"),
        # Stated answers.
        ("The answer is 36, not 38.", "36", "statement"),
        ("The answer is that she sells 9 eggs. Of 16 there are.", "9", "statement"),
        ("The answer is 5. Wait. The answer is 7.", "7", "statement"),
        ("**Answer**: 1/3", "1/3", "statement"),
        ("Answer: She has 16 - 7 = 9 eggs. She gets 18 dollars.", "18", "statement"),
        ("The final answer: \\(42\\).", "42", "statement"),
        # The last number, and what is none.
        ("There are 12, so 3-4 apiece.", "12", "last number"),
        ("There are 12 at 10:45.", "12", "last number"),
        ("She needs 12 tiles of 3 x 4 cm.", "12", "last number"),
        ("3 x 4 = 12", "12", "last number"),
        ("There are 12 left (25% of all).", "12", "last number"),
        ("There are 12 left.\nTo verify, 12 + 4 = 16.", "12", "last number"),
        ("There are 12 left on the 3rd day.", "12", "last number"),
        ("It takes 12 of the COVID-19 tests.", "12", "last number"),
        ("It is the 3rd.", "3", "last number"),
        ("It takes 3-5 days.", None, "none"),
        ("No idea.", None, "none"),
        # Thinking and new questions.
        ("12 + 24 </think> 36", "36", "last number"),
        ("<think>1</think>2<think>3</think>", "2", "last number"),
        ("<think>a <think> 3 </think> #### 4", "4", "marker"),
        ("<think>1</think>\n#### 2\n<think>", None, "open thinking"),
        ("Question: what is 7 - 2?\nIt is 5.", "5", "last number"),
        ("#### 5\nQ: And 3 + 4?\nA: 7 #### 7", "5", "marker"),
    ],
)  # fmt: skip
def test_the_order(text, value, source):
    found = extract(text.replace("\\n", "\n"))
    assert (found.text, found.source) == (value, source)


NUMBERS = st.fractions(min_value=-(10**9), max_value=10**9, max_denominator=1) | st.decimals(
    min_value=-(10**6), max_value=10**6, places=2
).map(Fraction)
STYLES = ("#### {}", "#### ${}", "so ####{}", "\\boxed{{{}}}", "$$\\boxed{{ {} }}$$", "The answer is {}.", "Answer: {}",
          "So it is **{}**.", "In all {} apples, of course.", "<think>9 or 8</think>It is {}")  # fmt: skip


@given(NUMBERS, st.sampled_from(STYLES), st.booleans())
def test_a_number_comes_back_however_it_is_written(number, style, thousands):
    written = f"{int(number):,}" if thousands and number.denominator == 1 else write_number(number)
    assert extract(style.format(written)).value == number


@given(st.fractions(min_value=-(10**9), max_value=10**9, max_denominator=10**6))
def test_writing_and_reading_a_number(number):
    assert read_number(write_number(number)) == number


PIECES = st.sampled_from(
    ["####", "#", "\\boxed{", "{", "}", "<think>", "</think>", "Question:", "\nQ:", "Answer:", "the answer is ", "12",
     "-7", "1,000", "1/2", "2 1/2", "\\frac{1}{2}", "3-5", "7:30", "2x3", "(", "%)", "check:", "=", ".", "\n", " ", "$",
     "½", "٣", "x"]
)  # fmt: skip


@given(st.lists(PIECES | st.text(max_size=5), max_size=40).map("".join))
def test_any_text_is_read_and_thinking_in_front_changes_nothing(text):
    found = extract(text)
    assert (found.value is None) == (found.source in ("none", "open thinking"))
    assert found.text is None or read_number(found.text) == found.value
    if "think" not in text.lower():
        assert extract(f"<think>#### 99 \\boxed{{98}}</think>{text}") == found
        assert extract(f"<think>{text}").source == "open thinking"
    lm_eval_equal(lm_eval_strict(text), text)
    lm_eval_flexible(text)


LONG = 60_000
SLOW = ["#", "####", "#### ", "\\boxed{", "\\boxed{1", "{", "}", "<think>", "</think>", "<think></think>", "1", "1,",
        "1,234,", "1-", "1:", "1x", "1 x ", "(", "(%", "Question:", "\nQ:", "Answer:", "the answer is ", "answer is. ",
        "-", "$", " ", "\n", "check:", ".check ", "to ", "a", "a1", "1 1/2 ", "1/", "\\frac{1}{", "=", "1=", "^{1",
        "from 1 to ", "½", "#### 1. a", "answer \n"]  # fmt: skip


@pytest.mark.parametrize("piece", SLOW)
def test_texts_that_are_slow_for_a_reader_that_looks_back(piece):
    """Time that grows with the square of the length would be minutes here."""
    text = piece * (LONG // len(piece))
    for whole in (text, f"{text}####", f"the answer is {text}"):
        extract(whole)
        lm_eval_equal(lm_eval_strict(whole), lm_eval_flexible(whole))


def test_numbers_that_nobody_meant():
    assert list(values(plain_text(f"{'9' * 5000} and 1/0 and 3"))) == [3]
    assert extract(f"#### {'9' * 5000}").value is None


@pytest.mark.parametrize(
    ("text", "number"),
    [("18", "18"), ("-$1,250.50", "-1250.5"), ("€7", "7"), ("25%", "25"), ("2 1/2", "2.5"), ("1\u202f250", "1250"),
     ("eggs", None), ("", None), ("1 2", None), ("1,2", None)],
)  # fmt: skip
def test_a_text_that_is_one_number(text, number):
    found = read_number(text)
    assert (None if found is None else write_number(found)) == number


def test_gold_answers():
    assert gold_number("16 - 7 = 9\n#### 2,125") == 2125
    assert gold_number("no number") is None
    with pytest.raises(ValueError, match="the gold answer is no number: 'eggs'"):
        score("1", "18", "eggs", None)
    assert score("1", "18", "#### 18.0", None).correct
    assert score("1", "18", "#### 18", None).truncated is None
    assert totals([score("1", "18", "18", None)])["truncated_share"] is None
    assert totals([score("1", "18", "18", None), score("2", "18", "18", "length")])["truncated_share"] == 1.0
