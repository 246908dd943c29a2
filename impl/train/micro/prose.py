"""Prose of a small grammar: filler between lines, and running text whose next word is open."""

from __future__ import annotations

import random

from impl.train.packing import PROSE, Segments

DETERMINERS = ("the", "a", "one", "this", "that", "every", "some", "no")
ADJECTIVES = (
    "small", "old", "red", "quiet", "bright", "slow", "green", "young", "kind", "cold", "tall", "brown", "quick",
    "lazy", "warm", "empty", "gentle", "proud", "silver", "wild",
)  # fmt: skip
NOUNS = (
    "cat", "dog", "bird", "child", "farmer", "teacher", "boat", "horse", "king", "baker", "fox", "sailor", "painter",
    "doctor", "lamp", "wagon", "miller", "singer", "goat", "guest",
)  # fmt: skip
PLACES = (
    "house",
    "river",
    "hill",
    "garden",
    "market",
    "bridge",
    "forest",
    "school",
    "harbor",
    "tower",
    "field",
    "road",
)
VERBS = (
    "sees",
    "follows",
    "finds",
    "likes",
    "helps",
    "hears",
    "calls",
    "knows",
    "carries",
    "greets",
    "paints",
    "visits",
)
MOVES = ("walks", "runs", "sleeps", "waits", "sings", "jumps", "works", "rests", "stays", "plays")
PREPOSITIONS = ("near", "behind", "by", "in", "under", "over", "beside", "across from")
TIMES = ("In the morning", "At night", "On Sunday", "After the rain", "In winter", "Before noon", "Once a week")
LINKS = ("and", "but", "while", "because")


def noun_phrase(rng: random.Random) -> str:
    adjective = f"{rng.choice(ADJECTIVES)} " if rng.random() < 0.6 else ""
    return f"{rng.choice(DETERMINERS)} {adjective}{rng.choice(NOUNS)}"


def clause(rng: random.Random) -> str:
    if rng.random() < 0.35:
        text = f"{noun_phrase(rng)} {rng.choice(MOVES)}"
    else:
        text = f"{noun_phrase(rng)} {rng.choice(VERBS)} {noun_phrase(rng)}"
    if rng.random() < 0.45:
        text += f" {rng.choice(PREPOSITIONS)} the {rng.choice(PLACES)}"
    return text


def sentence(rng: random.Random) -> str:
    text = clause(rng)
    if rng.random() < 0.2:
        text += f" {rng.choice(LINKS)} {clause(rng)}"
    if rng.random() < 0.15:
        return f"{rng.choice(TIMES)} {text}."
    return f"{text[0].upper()}{text[1:]}."


def paragraph(rng: random.Random) -> Segments:
    return [(" ".join(sentence(rng) for _ in range(rng.randint(1, 8))) + "\n", PROSE)]
