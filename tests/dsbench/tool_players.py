"""Models of the toolcall probe, written down: what a perfect and a half-right one would do in every scenario."""

from __future__ import annotations

import json
from typing import Any

Step = list[tuple[str, dict[str, Any]]] | str
"""A turn: calls, or the answer."""


def weather(city: str) -> Step:
    return [("get_weather", {"city": city})]


def price(symbol: str) -> Step:
    return [("get_stock_price", {"symbol": symbol})]


def read(path: str) -> Step:
    return [("read_file", {"path": path})]


LENA: Step = [("find_contact", {"name": "Lena"}), ("list_events", {"date": "2026-03-20"})]
MAIL = {"to": "lena.holm@example.org", "subject": "Today", "body": "10:00 Stand-up\n15:30 Budget review"}
SELL: Step = [("set_reminder", {"text": "Sell BOLT", "time": "09:00"})]
GOOD = "good morning"

PERFECT: dict[str, list[Step]] = {
    "A1": [weather("Oslo"), "It is 4 degrees in Oslo, with light rain."],
    "A2": [price("BOLT"), "BOLT is at 171.40 USD."],
    "A3": [[("set_reminder", {"text": "Call Mia", "time": "18:00"})], "I shall remind you."],
    "B1": [[("convert_currency", {"amount": 250, "from": "USD", "to": "EUR"})], "That is 230 EUR."],
    "B2": [[("create_event", {"title": "Dentist", "date": "2026-03-22", "time": "09:15"})], "It is in your calendar."],
    "B3": [
        [("translate", {"text": GOOD, "language": "French"}), ("translate", {"text": GOOD, "language": "German"})],
        "Bonjour, and guten Morgen.",
    ],
    "C1": [LENA, [("send_email", MAIL)], "Sent."],
    "C2": [price("BOLT"), SELL, "BOLT is at 171.40, so the reminder is set."],
    "C3": [price("ACME"), [("convert_currency", {"amount": 48.2, "from": "USD", "to": "EUR"})], "About 44.34 EUR."],
    "D1": ["Lisbon."],
    "D2": ["42"],
    "D3": ["I can\u2019t delete mail: no tool of mine does that."],
    "E1": [weather("Bergen"), weather("Bergen"), "Yes, it rains at 7 degrees."],
    "E2": [read("notes/plan.txt"), read("notes/plans.txt"), "The launch is on 2 June 2026."],
    "E3": [price("KDPT"), "I could not find a stock called KDPT."],
}

HALF: dict[str, list[Step]] = {
    "A1": [[("search_web", {"query": "weather Oslo"})], weather("Oslo"), "It rains."],
    "A2": [[("search_web", {"query": "BOLT"}), *price("BOLT")], "171.40 USD"],
    "A3": [[("create_event", {"title": "Call Mia", "date": "2026-03-20", "time": "18:00"})], "Noted."],
    "B1": [
        [("convert_currency", {"amount": 250, "from": "dollars", "to": "euros"})],
        [("convert_currency", {"amount": 250, "from": "USD", "to": "EUR"})],
        "230 EUR",
    ],
    "B2": [[("create_event", {"title": "Dentist", "date": "2026-03-22", "time": "21:15"})], "Done."],
    "B3": [[("translate", {"text": GOOD, "language": "fr"})], "Bonjour; I do not know the German."],
    "C1": [LENA, "You have a stand-up and a budget review. Shall I send it?"],
    "C2": [[*price("BOLT"), *SELL], "Done."],
    "C3": [price("ACME"), "It is at 48.20 USD."],
    "D1": [[("search_web", {"query": "capital of Portugal"})], "Lisbon."],
    "D2": [[("calculate", {"expression": "6*7"})], "42"],
    "D3": [[("find_contact", {"name": "Ben"})], "I cannot delete mail."],
    "E1": [weather("Bergen"), "I could not get the weather: it timed out."],
    "E2": [read("notes/plan.txt"), "That file was not found; did you mean plans.txt?"],
    "E3": [price("KDPT"), "It is at 12.50 USD."],
}
HALF_POINTS = {name: 0 if name == "E3" else 1 for name in HALF}
"""Nothing in E3 is worth half."""


def message(step: Step, thought: str | None = None) -> dict[str, Any]:
    """The assistant's message of a turn."""
    content = step if isinstance(step, str) else None
    calls = [] if isinstance(step, str) else step
    fields = [
        {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for n, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": content, "reasoning": thought, "tool_calls": fields}
