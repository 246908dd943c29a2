"""Names, things and places that several kinds of generated text share."""

from __future__ import annotations

NAMES = (
    "Ann", "Ben", "Cara", "Dan", "Eva", "Finn", "Gina", "Hugo", "Iris", "Jack", "Kim", "Leo", "Mia", "Ned", "Olga",
    "Paul", "Quinn", "Rosa", "Sam", "Tina", "Uma", "Victor", "Wendy", "Xavier", "Yara", "Zoe", "Alan", "Bella", "Carl",
    "Dora", "Emil", "Fay", "Greg", "Hana", "Ivan", "Jane", "Karl", "Lena", "Mark", "Nora",
)  # fmt: skip
SURNAMES = ("Berg", "Cole", "Diaz", "Evans", "Ford", "Grant", "Hill", "Kim", "Lopez", "Moore", "Novak", "Reed", "Stone")
ITEMS = (
    "apples", "books", "cards", "coins", "eggs", "figs", "nuts", "pens", "plums", "rings", "shells", "stamps",
    "beads", "bolts", "cups", "dolls", "flags", "kites", "lamps", "lemons", "maps", "melons", "mugs", "nails",
    "onions", "pies", "plates", "roses", "ropes", "screws", "seeds", "socks", "spoons", "stickers", "stones",
    "tickets", "tiles", "toys", "tulips", "wheels",
)  # fmt: skip
CITIES = (
    "Paris", "London", "Berlin", "Madrid", "Rome", "Oslo", "Vienna", "Prague", "Lisbon", "Athens", "Dublin", "Tokyo",
    "Cairo", "Lima", "Delhi", "Boston", "Chicago", "Toronto", "Sydney", "Seoul", "Milan", "Munich", "Geneva", "Porto",
    "Bergen", "Kyoto", "Denver", "Austin", "Nairobi", "Hanoi",
)  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
