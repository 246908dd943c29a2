"""The twelve mocked tools: their arguments, values for these, what they answer, and how that is told.

Values are strings as the user writes them; an amount is a number, and a day is a date where the chat tells which day
it is. Results are JSON with made-up facts, which the model can only know from the result's line.
"""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Mapping
from typing import Any

from impl.train.micro.words import CITIES, MONTHS, NAMES, SURNAMES, WEEKDAYS

TOOLS: dict[str, tuple[str, ...]] = {
    "get_weather": ("city",), "find_contact": ("name",), "send_email": ("to", "subject", "body"),
    "create_event": ("title", "date", "time"), "list_events": ("date",),
    "convert_currency": ("amount", "from", "to"), "get_stock_price": ("symbol",), "search_web": ("query",),
    "read_file": ("path",), "translate": ("text", "language"), "set_reminder": ("text", "time"),
    "calculate": ("expression",),
}  # fmt: skip
GOALS = {
    "get_weather": "the weather", "find_contact": "a contact", "send_email": "an email sent",
    "create_event": "a new event", "list_events": "the events of a day", "convert_currency": "money converted",
    "get_stock_price": "a stock price", "search_web": "a web search", "read_file": "a file's text",
    "translate": "a translation", "set_reminder": "a reminder", "calculate": "a calculation",
}  # fmt: skip

SUBJECTS = ("Lunch", "Report", "Hello", "Invoice", "Meeting", "Trip", "Plan", "Party", "Question", "Update", "Thanks")
BODIES = (
    "see you at noon", "the report is done", "call me back", "I will be late", "please send the list",
    "the room is booked", "thank you for the help", "we start on Monday", "the plan has changed", "all is well",
    "bring the keys", "dinner is at eight",
)  # fmt: skip
TITLES = (
    "Team meeting", "Dentist", "Lunch with Ann", "Yoga class", "Project review", "Piano lesson", "Budget talk",
    "Birthday party", "Car service", "Book club", "Standup", "Dinner with Leo", "Interview", "Training",
)  # fmt: skip
ACTIONS = (
    "call the bank", "buy milk", "water the plants", "feed the cat", "pay the rent", "take the pills", "lock the door",
    "send the report", "call Mia", "pick up the kids", "charge the phone", "book a table", "close the window",
    "take an umbrella", "bring a coat",
)  # fmt: skip
CURRENCIES = ("USD", "EUR", "GBP", "JPY", "CHF", "SEK", "NOK", "CAD", "AUD", "INR")
SYMBOLS = ("AAPL", "MSFT", "NVDA", "TSLA", "AMZN", "GOOG", "META", "IBM", "INTC", "ORCL", "SAP", "AMD", "NFLX", "DIS")
QUERIES = (
    "electric cars", "pasta recipes", "train times", "solar panels", "cheap hotels", "chess openings", "bird songs",
    "garden tools", "old maps", "local news", "moon landing", "python lists", "best museums", "winter shoes",
)  # fmt: skip
PATHS = (
    "notes.txt", "todo.txt", "report.txt", "data/list.csv", "docs/plan.md", "readme.md", "log.txt", "letters/anna.txt",
    "budget.csv", "ideas.md", "config.ini", "home/story.txt",
)  # fmt: skip
PHRASES = (
    "good morning", "thank you", "where is the station", "the house is red", "I am hungry", "see you tomorrow",
    "how are you", "the water is cold", "happy birthday", "I like music", "good night", "the book is old",
)  # fmt: skip
LANGUAGES = ("French", "German", "Spanish", "Italian", "Swedish", "Polish", "Dutch", "Latin")
SKIES = ("sunny", "cloudy", "rainy", "windy", "clear", "foggy", "snowy")
FOREIGN = ("salu", "mira", "tovo", "lende", "karis", "pon", "vell", "dura", "sima", "noch", "bel", "arto")


OFFSETS = {"today": 0, "tomorrow": 1, "the day after tomorrow": 2}


def some_day(rng: random.Random) -> datetime.date:
    return datetime.date(2024, 1, 1) + datetime.timedelta(days=rng.randrange(1500))


def date(rng: random.Random) -> str:
    """A day as the user says it, where nobody knows which day it is."""
    form = rng.random()
    if form < 0.5:
        return rng.choice(WEEKDAYS)
    if form < 0.7:
        return f"{rng.choice(MONTHS)} {rng.randint(1, 28)}"
    return some_day(rng).isoformat()


def said_date(rng: random.Random, today: datetime.date | None) -> tuple[str, str]:
    """A day as the user says it, and as the argument has it."""
    if today is None:
        day = date(rng)
        return day, day
    if rng.random() < 0.3:
        day = some_day(rng).isoformat()
        return day, day
    words = rng.choice(list(OFFSETS))
    return words, (today + datetime.timedelta(days=OFFSETS[words])).isoformat()


def time(rng: random.Random) -> str:
    if rng.random() < 0.15:
        return f"{rng.randint(1, 12)} {rng.choice(('am', 'pm'))}"
    hour = rng.randint(6, 22)
    return f"{f'{hour:02}' if rng.random() < 0.7 else hour}:{rng.choice(('00', '15', '30', '45'))}"


def full_name(rng: random.Random) -> str:
    return rng.choice(NAMES) if rng.random() < 0.4 else f"{rng.choice(NAMES)} {rng.choice(SURNAMES)}"


def address(rng: random.Random, name: str = "") -> str:
    """An email address, of `name` where there is one."""
    user = (name or rng.choice(NAMES)).lower().replace(" ", ".")
    return f"{user}@{rng.choice(('mail.com', 'example.com', 'post.org', 'work.net'))}"


def expression(rng: random.Random) -> str:
    """Something to calculate; never a fact of the times table, which needs no tool."""
    a, b, c = rng.randint(13, 99), rng.randint(2, 99), rng.randint(2, 99)
    form = rng.random()
    if form < 0.6:
        return f"{a}{rng.choice('+-*')}{b}"
    return f"({a}+{b})*{c}" if form < 0.75 else f"{a * 11}{rng.choice('+-')}{b}" if form < 0.9 else f"{a}*{b}+{c}"


def arguments(rng: random.Random, tool: str) -> dict[str, Any]:
    """A value for every argument of a tool, as the user says it."""
    if tool == "get_weather":
        return {"city": rng.choice(CITIES)}
    if tool == "find_contact":
        return {"name": full_name(rng)}
    if tool == "send_email":
        to = address(rng) if rng.random() < 0.7 else rng.choice(NAMES)
        return {"to": to, "subject": rng.choice(SUBJECTS), "body": rng.choice(BODIES)}
    if tool == "create_event":
        return {"title": rng.choice(TITLES), "date": date(rng), "time": time(rng)}
    if tool == "list_events":
        return {"date": date(rng)}
    if tool == "convert_currency":
        source, target = rng.sample(CURRENCIES, 2)
        return {"amount": rng.choice((rng.randint(2, 999), rng.randint(1, 99) * 10)), "from": source, "to": target}
    if tool == "get_stock_price":
        return {"symbol": rng.choice(SYMBOLS) if rng.random() < 0.6 else "".join(rng.choices("ABCDEFGHKLMNOPRST", k=4))}
    if tool == "search_web":
        return {"query": rng.choice(QUERIES)}
    if tool == "read_file":
        return {"path": rng.choice(PATHS)}
    if tool == "translate":
        return {"text": rng.choice(PHRASES), "language": rng.choice(LANGUAGES)}
    if tool == "set_reminder":
        return {"text": rng.choice(ACTIONS), "time": time(rng)}
    return {"expression": expression(rng)}


def asked_for(
    rng: random.Random, tool: str, today: datetime.date | None, **fixed: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Values of a call as the user says them, and its arguments; `today` where the chat tells the day."""
    spoken = arguments(rng, tool) | fixed
    given = dict(spoken)
    if "date" in spoken:
        spoken["date"], given["date"] = said_date(rng, today)
    return spoken, given


def worded(wording: str, spoken: Mapping[str, Any]) -> str:
    """A wording with values put in: "on tomorrow" becomes "tomorrow"."""
    text = wording.format(**spoken)
    return text.replace("on today", "today").replace("on tomorrow", "tomorrow").replace("on the day", "the day")


def result(rng: random.Random, tool: str, given: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """What a call gives, and the sentence that tells the user. Names of fields and their order vary."""
    if tool == "get_weather":
        temperature, sky = rng.randint(-9, 35), rng.choice(SKIES)
        degrees = rng.choice(("temp", "temperature", "temperature_c", "degrees"))
        fields = {degrees: temperature, rng.choice(("sky", "conditions", "weather")): sky}
        where = {"city": given["city"]} if rng.random() < 0.5 else {}
        return where | fields, f"It is {temperature} degrees and {sky} in {given['city']}."
    if tool == "find_contact":
        name = given["name"] if " " in given["name"] else f"{given['name']} {rng.choice(SURNAMES)}"
        found = {"name": name, "email": address(rng, name)}
        if rng.random() < 0.4:
            found["phone"] = f"555-{rng.randint(0, 9999):04}"
        return found, f"{', '.join(found.values())}."
    if tool == "send_email":
        return {"status": "sent"}, f"The email to {given['to']} is sent."
    if tool == "create_event":
        return {"status": "created"}, f"{given['title']} is in the calendar: {given['date']}, {given['time']}."
    if tool == "list_events":
        events = [event(rng) for _ in range(rng.randint(0, 3))]
        return {"events": events}, f"{given['date']}: {', '.join(events) or 'no events'}."
    if tool == "convert_currency":
        value = round(given["amount"] * rng.randint(20, 300) / 100, 1)
        return {"result": value}, f"{given['amount']} {given['from']} are {value} {given['to']}."
    if tool == "get_stock_price":
        price = rng.randint(10, 900) if rng.random() < 0.4 else rng.randint(1000, 99999) / 100
        more = {"currency": "USD"} if rng.random() < 0.5 else {}
        return {"symbol": given["symbol"], "price": price} | more, f"{given['symbol']} stands at {price}."
    if tool == "search_web":
        pages = [f"{rng.choice(('All about', 'A guide to', 'News on', 'Ten'))} {given['query']}"]
        return {"results": pages}, f"Found: {pages[0]}."
    if tool == "read_file":
        content = file_text(rng)
        return {rng.choice(("text", "content")): content}, f"The file says: {content}"
    if tool == "translate":
        foreign = " ".join(rng.sample(FOREIGN, rng.randint(1, 3)))
        return {rng.choice(("text", "translation")): foreign}, f"In {given['language']}: {foreign}."
    if tool == "set_reminder":
        return {"status": "set"}, f"I will remind you at {given['time']}: {given['text']}."
    value = eval_expression(given["expression"])
    return {"result": value}, f"{given['expression']} is {value}."


def event(rng: random.Random) -> str:
    title, hour = rng.choice(TITLES), time(rng)
    return f"{hour} {title}" if rng.random() < 0.5 else f"{title} {hour}"


def file_text(rng: random.Random) -> str:
    """One or two short sentences."""
    day = some_day(rng)
    sentences = (
        f"{rng.choice(BODIES).capitalize()}.", f"{rng.choice(TITLES)}: {day.day} {MONTHS[day.month - 1]} {day.year}.",
        f"Ask {rng.choice(NAMES)}.", f"Owner: {rng.choice(NAMES)}.", f"Budget: {rng.randint(10, 999)} coins.",
    )  # fmt: skip
    return " ".join(rng.sample(sentences, rng.choice((1, 2))))


def eval_expression(text: str) -> int:
    """The value of one of `expression`'s forms."""
    if text.startswith("("):
        inner, _, factor = text[1:].partition(")*")
        return eval_expression(inner) * int(factor)
    for sign in "+-*":
        left, found, right = text.rpartition(sign)
        if found:
            a, b = eval_expression(left), eval_expression(right)
            return a + b if sign == "+" else a - b if sign == "-" else a * b
    return int(text)


def told(found: dict[str, Any]) -> str:
    """A result as the line `R: ...` holds it."""
    return json.dumps(found)
