"""JSON only: two to four keys whose values a sentence tells, among others that it tells, too.

The question is `Reply with JSON only, keys name, age: Ann is 31 years old and lives in Oslo.`, the answer
`{"name": "Ann", "age": 31}`: keys in the order asked for, strings and whole numbers.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from impl.train.micro.reserved import reserved_question
from impl.train.micro.transcript import Reply, asked, some_thinking
from impl.train.micro.words import CITIES, ITEMS, MONTHS, NAMES, SURNAMES, WEEKDAYS
from impl.train.packing import Segments

Values = dict[str, str | int]

COLOURS = ("red", "blue", "green", "white", "black", "yellow", "brown", "grey")
JOBS = ("baker", "doctor", "teacher", "pilot", "farmer", "painter", "lawyer", "nurse", "driver", "writer")
ANIMALS = ("cat", "dog", "horse", "rabbit", "parrot", "goat")

REQUESTS = (
    "Reply with JSON only, keys {keys}: {sentence}", "Reply with JSON only, keys {keys}: {sentence}",
    "Answer with JSON only, with the keys {keys}: {sentence}", "Return only a JSON object with keys {keys}. {sentence}",
    "{sentence} Reply with JSON only, keys {keys}.",
)  # fmt: skip

SENTENCES: tuple[str, ...] = (
    "{name}, who lives in {city}, is {age} years old.",
    "{name} lives in {city}, is {age} years old and keeps {pets} pets.",
    "At the age of {age} {name} has {pets} pets in {city}.",
    "{name}, {age}, works as a {job} in {city}.",
    "{name} from {city} is a {job} and {age} years old.",
    "The {job} {name} has lived in {city} for {years} years.",
    "{name} buys {count} {item} for {price} coins.",
    "On {day} {name} sold {count} {item} at {price} coins.",
    "{count} {item} cost {price} coins in the shop of {name}.",
    "{name} ordered {count} {colour} {item} from {city}.",
    "The {colour} {animal} of {name} is {age} years old.",
    "{name} has a {colour} {animal} and {count} {item}.",
    "The meeting in {city} is on {day} at {hour}, with {name} and {count} guests.",
    "{name} flies to {city} on {day} and pays {price} coins.",
    "In {month} {year} {name} moved to {city}.",
    "{name} was born in {city} in {year} and is a {job}.",
    "Room {room} in {city} costs {price} coins a night and has {count} beds.",
    "{name} {surname} reserved room {room} for {day}.",
    "Order {number}: {count} {item}, {price} coins, for {name} in {city}.",
    "The train to {city} leaves on {day} from track {track} at {hour}.",
)


def values(rng: random.Random) -> Values:
    """One for each word that a sentence may use."""
    return {
        "name": rng.choice(NAMES), "surname": rng.choice(SURNAMES), "city": rng.choice(CITIES),
        "job": rng.choice(JOBS), "colour": rng.choice(COLOURS), "animal": rng.choice(ANIMALS),
        "item": rng.choice(ITEMS), "day": rng.choice(WEEKDAYS), "month": rng.choice(MONTHS),
        "age": rng.randint(18, 90), "pets": rng.randint(2, 9), "years": rng.randint(2, 40), "count": rng.randint(2, 60),
        "price": rng.randint(3, 400), "hour": rng.randint(6, 22), "year": rng.randint(1950, 2030),
        "room": rng.randint(1, 400), "number": rng.randint(100, 9999), "track": rng.randint(1, 20),
    }  # fmt: skip


def request(rng: random.Random, sentences: Sequence[str]) -> tuple[str, Values]:
    """A question and the object that answers it."""
    sentence, told = rng.choice(sentences), values(rng)
    keys = [key for key in told if f"{{{key}}}" in sentence]
    wanted = rng.sample(keys, min(len(keys), rng.choice((2, 2, 3, 4))))
    if rng.random() < 0.5:
        wanted.sort(key=keys.index)
    question = rng.choice(REQUESTS).format(keys=", ".join(wanted), sentence=sentence.format(**told))
    return question, {key: told[key] for key in wanted}


def reply_of(answer: Values) -> Reply:
    return Reply(json.dumps(answer), thought=f"The keys are {', '.join(answer)}.", check="JSON and nothing else.")


def training_text(rng: random.Random) -> Segments:
    while True:
        question, answer = request(rng, SENTENCES)
        if not reserved_question(question):
            return asked(question, reply_of(answer)).segments(some_thinking(rng, 0.75))
