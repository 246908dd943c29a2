"""Short facts: capitals, first primes, days and months, opposites; as chat and as a sentence to complete."""

from __future__ import annotations

import random

from impl.train.micro.reserved import reserved_question
from impl.train.micro.transcript import Reply, asked, some_thinking
from impl.train.micro.words import MONTHS, WEEKDAYS
from impl.train.packing import ANSWER, GIVEN, Segments

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon",
    "Austria": "Vienna", "Greece": "Athens", "Poland": "Warsaw", "Norway": "Oslo", "Sweden": "Stockholm",
    "Finland": "Helsinki", "Denmark": "Copenhagen", "Iceland": "Reykjavik", "Ireland": "Dublin", "England": "London",
    "Scotland": "Edinburgh", "Belgium": "Brussels", "Hungary": "Budapest", "Romania": "Bucharest", "Bulgaria": "Sofia",
    "Croatia": "Zagreb", "Serbia": "Belgrade", "Ukraine": "Kyiv", "Turkey": "Ankara", "Egypt": "Cairo",
    "Kenya": "Nairobi", "Ghana": "Accra", "Morocco": "Rabat", "Japan": "Tokyo", "China": "Beijing",
    "South Korea": "Seoul", "India": "New Delhi", "Thailand": "Bangkok", "Vietnam": "Hanoi", "Australia": "Canberra",
    "Canada": "Ottawa", "Mexico": "Mexico City", "Peru": "Lima", "Chile": "Santiago", "Cuba": "Havana",
    "Argentina": "Buenos Aires", "Brazil": "Brasilia",
}  # fmt: skip
CAPITAL_QUESTIONS = (
    "What is the capital of {c}?", "Capital of {c}?", "Name the capital of {c}.", "Which city is the capital of {c}?",
    "Tell me the capital of {c}.", "What is the capital city of {c}?", "{c}: what is its capital?",
    "What is the capital of {c}? Answer in one word.",
)  # fmt: skip
PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)
COUNTS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
PRIME_QUESTIONS = (
    "What are the first {k} primes?", "What are the first {k} prime numbers?", "List the first {k} primes.",
    "Name the first {k} prime numbers.", "Give me the first {k} primes.", "First {k} primes?",
    "Write down the first {k} prime numbers.", "List the first {k} prime numbers, separated by commas.",
)  # fmt: skip
OPPOSITES = (
    ("hot", "cold"), ("big", "small"), ("up", "down"), ("old", "new"), ("fast", "slow"), ("day", "night"),
    ("open", "closed"), ("wet", "dry"), ("full", "empty"), ("early", "late"), ("light", "dark"), ("left", "right"),
)  # fmt: skip
SHORT = (
    ("How many days are in a week?", "7"), ("How many months are in a year?", "12"),
    ("How many hours are in a day?", "24"), ("How many minutes are in an hour?", "60"),
    ("How many sides has a triangle?", "3"), ("How many sides has a square?", "4"),
    ("How many legs has a spider?", "8"), ("How many legs has a dog?", "4"), ("How many wheels has a car?", "4"),
    ("What colour is the sky?", "blue"), ("What colour is grass?", "green"), ("What colour is snow?", "white"),
    ("Which planet do we live on?", "Earth"), ("Which star is nearest to us?", "the Sun"),
    ("What is frozen water called?", "ice"), ("Which animal says meow?", "the cat"),
    ("What is the first letter of the alphabet?", "A"), ("What is the last letter of the alphabet?", "Z"),
)  # fmt: skip


def fact(rng: random.Random) -> tuple[str, str]:
    """A question and its answer, any of them."""
    kind = rng.random()
    if kind < 0.5:
        country = rng.choice(list(CAPITALS))
        return rng.choice(CAPITAL_QUESTIONS).format(c=country), CAPITALS[country]
    if kind < 0.7:
        count = rng.randint(2, len(PRIMES))
        told = COUNTS[count] if rng.random() < 0.6 else str(count)
        return rng.choice(PRIME_QUESTIONS).format(k=told), ", ".join(map(str, PRIMES[:count]))
    if kind < 0.8:
        pair = rng.choice(OPPOSITES)
        one, other = pair if rng.random() < 0.5 else pair[::-1]
        return f"What is the opposite of {one}?", other
    if kind < 0.9:
        names = rng.choice((WEEKDAYS, MONTHS))
        number = rng.randrange(len(names))
        step, word = rng.choice(((1, "after"), (-1, "before")))
        unit = "day" if names is WEEKDAYS else "month"
        return f"Which {unit} comes {word} {names[number]}?", names[(number + step) % len(names)]
    return rng.choice(SHORT)


def training_fact(rng: random.Random) -> tuple[str, str]:
    """One that training may ask; the short facts have one wording each, so none of those is held out."""
    while True:
        question, answer = fact(rng)
        if (question, answer) in SHORT or not reserved_question(question):
            return question, answer


def training_text(rng: random.Random) -> Segments:
    if rng.random() < 0.2:
        country = rng.choice(list(CAPITALS))
        return [(f"The capital of {country} is", GIVEN), (f" {CAPITALS[country]}.\n", ANSWER)]
    question, answer = training_fact(rng)
    return asked(question, Reply(answer, thought="This is a fact.", check="I am sure.")).segments(
        some_thinking(rng, 0.8)
    )
