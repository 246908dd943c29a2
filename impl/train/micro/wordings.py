"""Wordings of word problems that training uses, each with the steps that solve it.

`{n}`, `{m}` and `{o}` are names, `{i}` and `{j}` things, `{a}` to `{e}` numbers. A plan is one step a word: operands
are letters, results of earlier steps by number, or `:2` for the number two.
"""

from __future__ import annotations

Wording = tuple[str, str]

TWO_STEPS: tuple[Wording, ...] = (
    ("{n} has {a} {i} and buys {b} more. Then {n} gives {c} to {m}. How many {i} does {n} have left?", "a+b 1-c"),
    ("{n} has {a} {i} and {m} has {b}. Together they use {c}. How many {i} are left?", "a+b 1-c"),
    ("{n} has {a} {i}. {m} has {b} more than {n}. How many {i} do they have together?", "a+b a+1"),
    ("{n} finds {a} {i}, then {b} more, then {c} more. How many {i} is that in all?", "a+b 1+c"),
    ("A bag holds {a} {i}, a box holds {b} and a tin holds {c}. How many {i} are there in all?", "a+b 1+c"),
    ("{n} had {a} {i}, lost {b} of them and then got {c} new ones. How many {i} does {n} have now?", "a-b 1+c"),
    ("{n} has {a} {i}. {m} takes {b} and {c} break. How many {i} are left?", "a-b 1-c"),
    ("There were {a} {i} on a table. {n} took {b} and {m} took {c}. How many {i} are still there?", "a-b 1-c"),
    ("{n} packs {a} boxes with {b} {i} each and has {c} {i} left over. How many {i} were there?", "a*b 1+c"),
    ("{n} has {a} boxes of {b} {i}. {n} gives away {c} {i}. How many are left?", "a*b 1-c"),
    ("There are {a} rows of {b} chairs. {c} chairs are taken. How many chairs are free?", "a*b 1-c"),
    ("{n} gets {a} {i} a day for {b} days and has {c} at home. How many {i} in all?", "a*b 1+c"),
    ("A ticket costs {a} coins. {n} buys {b} tickets and pays with {c} coins. How many coins come back?", "a*b c-1"),
    ("{n} earns {a} coins a day for {b} days and spends {c}. How many coins are left?", "a*b 1-c"),
    ("{n} shares {a} {i} equally among {b} friends. Each friend then finds {c} more. How many {i} does each friend "
     "have?", "a/b 1+c"),
    ("{a} {i} are put equally into {b} bags. {c} fall out of one bag. How many {i} stay in that bag?", "a/b 1-c"),
    ("{n} has {a} {i}. {m} has twice as many. How many {i} do they have together?", "a*:2 a+1"),
    ("{n} has {a} {i}. {m} has {b} times as many. How many more {i} does {m} have?", "a*b 1-a"),
    ("{n} and {m} pick {a} and {b} {i} and split them equally. How many {i} does each get?", "a+b 1/:2"),
    ("{a} children and {b} parents sit down at tables for {c}. How many tables do they fill?", "a+b 1/c"),
)  # fmt: skip

THREE_STEPS: tuple[Wording, ...] = (
    ("{n} has {a} bags of {b} {i} and {c} bags of {d} {i}. How many {i} are there in all?", "a*b c*d 1+2"),
    ("{n} buys {a} pens for {b} coins each and a book for {c} coins. {n} had {d} coins. How many coins are left?",
     "a*b 1+c d-2"),
    ("{n} picks {a} {i}, {m} picks {b} and {o} picks {c}. They eat {d}. How many {i} are left?", "a+b 1+c 2-d"),
    ("{n} bakes {a} trays of {b} pies, sells {c} and gives {d} to {m}. How many pies are left?", "a*b 1-c 2-d"),
    ("{n} saves {a} coins a week for {b} weeks, buys a toy for {c} coins and gets {d} coins as a gift. How many coins "
     "does {n} have now?", "a*b 1-c 2+d"),
    ("{n} has {a} {i}. {m} has {b} fewer, and {o} has {c} more than {m}. How many {i} do {n} and {o} have together?",
     "a-b 1+c a+2"),
    ("A bus starts with {a} people. At the first stop {b} get on, at the next {c} get off and {d} get on. How many "
     "people are on the bus?", "a+b 1-c 2+d"),
    ("{n} cuts {a} ropes into {b} pieces each. {c} pieces are too short. The rest is shared by {d} friends. How many "
     "pieces does each get?", "a*b 1-c 2/d"),
    ("{n} has {a} {i} and {b} {j}. {m} has {c} {i} and {d} {j}. How many things do they have together?",
     "a+b c+d 1+2"),
    ("{n} reads {a} pages on Monday and twice as many on Tuesday. The book has {b} pages. How many pages are left?",
     "a*:2 a+1 b-2"),
    ("{n} fills {a} jars with {b} {i} each. {m} fills {c} jars with {d} each. How many more {i} does {n} have?",
     "a*b c*d 1-2"),
    ("A shop has {a} {i}. It sells {b} a day for {c} days and then gets {d} new ones. How many {i} does it have now?",
     "b*c a-1 2+d"),
    ("{n} had {a} coins. {n} bought {b} {i} for {c} coins each and found {d} coins. How many coins does {n} have?",
     "b*c a-1 2+d"),
    ("{n} has {a} {i}, gives half of them to {m} and then buys {b} more. {m} had {c} before. How many more {i} does "
     "{m} have than {n} bought?", "a/:2 1+c 2-b"),
)  # fmt: skip

FOUR_STEPS: tuple[Wording, ...] = (
    ("{n} buys {a} bags of {b} apples and {c} bags of {d} plums. {e} of them are bad. How many are good?",
     "a*b c*d 1+2 3-e"),
    ("{n} sells {a} cups for {b} coins each and {c} plates for {d} coins each. {n} started with {e} coins. How many "
     "coins does {n} have now?", "a*b c*d 1+2 3+e"),
    ("{n} has {a} {i}, {m} has {b} more than {n} and {o} has {c} fewer than {m}. How many {i} do the three have?",
     "a+b 1-c a+1 3+2"),
    ("{n} has {a} {i}. {n} buys {b} packs of {c}, gives {d} to {m} and loses {e}. How many {i} are left?",
     "b*c a+1 2-d 3-e"),
    ("A farm has {a} hens that lay {b} eggs each. {c} eggs break and {d} are eaten. The rest goes into boxes of {e}. "
     "How many boxes are filled?", "a*b 1-c 2-d 3/e"),
    ("{n} works {a} hours on Monday and {b} on Friday for {c} coins an hour. {n} pays {d} for food and {e} for the "
     "bus. How many coins are left?", "a+b 1*c 2-d 3-e"),
    ("A library has {a} shelves of {b} books. It lends {c}, gets {d} back and buys {e}. How many books does it have?",
     "a*b 1-c 2+d 3+e"),
    ("{n} has {a} red, {b} blue and {c} green {i}. {n} gives {d} away and shares the rest with {m} equally. How many "
     "{i} does each have?", "a+b 1+c 2-d 3/:2"),
)  # fmt: skip

TEMPLATES = TWO_STEPS + THREE_STEPS + FOUR_STEPS

# Stories put together from sentences: an opening, then changes, then a question. `{x}` is the number of the sentence.
OPENINGS: tuple[Wording, ...] = (
    ("{n} has {x} {i}.", ""),
    ("{n} starts with {x} {i}.", ""),
    ("In a box there are {x} {i}.", ""),
    ("{n} owns {x} bags of {y} {i}.", "*"),
    ("There are {x} boxes with {y} {i} in each.", "*"),
    ("{n} collects {x} {i} a day for {y} days.", "*"),
)
CHANGES: tuple[Wording, ...] = (
    ("{n} buys {x} more.", "+"),
    ("{m} brings {x} more.", "+"),
    ("{n} finds {x} more {i}.", "+"),
    ("{m} gives {n} another {x}.", "+"),
    ("Then {x} {i} are added.", "+"),
    ("{n} wins {x} {i}.", "+"),
    ("{n} gives {x} to {m}.", "-"),
    ("{n} loses {x} of them.", "-"),
    ("{n} sells {x} {i}.", "-"),
    ("{x} of them break.", "-"),
    ("{m} takes {x} away.", "-"),
    ("{n} throws away {x}.", "-"),
    ("Then the number of {i} doubles.", "*2"),
    ("Half of them are sold.", "/2"),
)
QUESTIONS = (
    "How many {i} are there now?", "How many {i} are left?", "How many {i} does {n} have now?",
    "How many {i} remain at the end?", "What is the number of {i} now?",
)  # fmt: skip
