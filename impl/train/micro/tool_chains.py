"""Chats with tools in which a result decides the next call: look-ups first, then the step that needs them."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from typing import Any

from impl.train.micro.tools import (
    ACTIONS,
    BODIES,
    GOALS,
    LANGUAGES,
    SUBJECTS,
    SYMBOLS,
    TITLES,
    address,
    arguments,
    full_name,
    result,
    said_date,
    time,
    told,
    worded,
)  # fmt: skip
from impl.train.micro.transcript import Reply, Transcript
from impl.train.micro.words import CITIES, NAMES

Day = datetime.date | None
"""Today, where the chat tells it."""


def calling(*calls: tuple[str, dict[str, Any]]) -> Reply:
    """Calls, with the thought that leads to them."""
    goals = " and ".join(GOALS[tool] for tool, _ in calls)
    names = " and ".join(tool for tool, _ in calls)
    given = ", ".join(name for _, values in calls for name in values)
    return Reply(calls=calls, thought=f"The user wants {goals}: {names}.", check=f"I have {given}. Nothing is missing.")


def answering(text: str) -> Reply:
    """The last answer of a chat whose calls are done."""
    return Reply(text, thought="The result is here.", check="All parts are done. I answer.")


def look_up(
    rng: random.Random, chat: Transcript, *calls: tuple[str, dict[str, Any]], changed: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Calls and their results in the midst of a chain; `changed` replaces values of the last result."""
    chat.say(calling(*calls))
    results = [result(rng, tool, given)[0] for tool, given in calls]
    results[-1] |= changed or {}
    for found in results:
        chat.result(told(found))
    return results


def finish(rng: random.Random, chat: Transcript, tool: str, given: dict[str, Any]) -> None:
    """The call that a chain ends with, at times with its result and the answer."""
    chat.say(Reply(calls=((tool, given),), thought=f"Next comes {tool}.", check="The result gives what it needs."))
    if rng.random() < 0.4:
        found, answer = result(rng, tool, given)
        chat.result(told(found))
        chat.say(answering(answer))


def stop(chat: Transcript, answer: str) -> None:
    """The end of a chain whose condition does not hold."""
    chat.say(Reply(answer, thought="The condition does not hold.", check="So nothing else is called."))


def ask(rng: random.Random, chat: Transcript, *wordings: str, **values: object) -> None:
    chat.user(worded(rng.choice(wordings), values))


def email_of_contact(rng: random.Random, chat: Transcript, today: Day) -> None:
    name, subject, body = full_name(rng), rng.choice(SUBJECTS), rng.choice(BODIES)
    ask(rng, chat, 'Find the email of {n} and send a mail with subject "{s}" and text "{b}".',
        "Look up {n} and email: subject {s}, text {b}.",
        "Get the address of {n} from my contacts, then mail {b} with the subject {s}.",
        n=name, s=subject, b=body)  # fmt: skip
    (found,) = look_up(rng, chat, ("find_contact", {"name": name}))
    finish(rng, chat, "send_email", {"to": found["email"], "subject": subject, "body": body})


def mailed_events(rng: random.Random, chat: Transcript, today: Day) -> None:
    """Two look-ups side by side, then a mail of both."""
    name, (spoken, day) = rng.choice(NAMES), said_date(rng, today)
    ask(rng, chat, "Send {n} my events of {d}.", "Email my calendar of {d} to {n}.",
        "{n} needs to know what I have on {d}. Write a mail.", n=name, d=spoken)  # fmt: skip
    contact, calendar = look_up(rng, chat, ("find_contact", {"name": name}), ("list_events", {"date": day}))
    body = ", ".join(calendar["events"]) or "no events"
    finish(rng, chat, "send_email", {"to": contact["email"], "subject": "Events", "body": body})


def event_if_free(rng: random.Random, chat: Transcript, today: Day) -> None:
    title, hour, (spoken, day) = rng.choice(TITLES), time(rng), said_date(rng, today)
    ask(rng, chat, "If I am free on {d}, create {t} at {h}.", "Is {d} free? Then schedule {t} for {h}.",
        "Check my calendar for {d} and add {t} at {h} if nothing is planned.", d=spoken, t=title, h=hour)  # fmt: skip
    (found,) = look_up(rng, chat, ("list_events", {"date": day}))
    if found["events"]:
        stop(chat, f"You are busy: {', '.join(found['events'])}.")
    else:
        finish(rng, chat, "create_event", {"title": title, "date": day, "time": hour})


def reminder_if_rain(rng: random.Random, chat: Transcript, today: Day) -> None:
    city, action, hour = rng.choice(CITIES), rng.choice(ACTIONS), time(rng)
    ask(rng, chat, "Check the weather in {c}. If it is rainy, remind me to {a} at {h}.",
        "If it rains in {c}, set a reminder for {h}: {a}.",
        "Remind me at {h} to {a}, but only if it is rainy in {c}.", c=city, a=action, h=hour)  # fmt: skip
    sky = rng.choice(("rainy", "rainy", "sunny", "clear"))
    chat.say(calling(("get_weather", {"city": city})))
    chat.result(told({"city": city, "temp": rng.randint(-9, 35), "sky": sky}))
    if sky == "rainy":
        finish(rng, chat, "set_reminder", {"text": action, "time": hour})
    else:
        stop(chat, f"It is {sky} in {city}, no reminder.")


def reminder_by_price(rng: random.Random, chat: Transcript, today: Day) -> None:
    symbol, hour, deed = rng.choice(SYMBOLS), time(rng), rng.choice(("sell", "buy", "check"))
    limit, above = rng.randint(2, 80) * 10, rng.random() < 0.5
    ask(rng, chat, "Remind me at {h} to {a} {s} if it trades {w} {l}.",
        "Check {s}: if the price is {w} {l}, remind me to {a} {s} at {h}.",
        "When {s} is {w} {l} now, a reminder at {h} to {a} {s}, please.",
        s=symbol, h=hour, a=deed, l=limit, w="above" if above else "below")  # fmt: skip
    (found,) = look_up(rng, chat, ("get_stock_price", {"symbol": symbol}),
                       changed={"price": round(limit * rng.uniform(0.3, 1.7), 2)})  # fmt: skip
    if (found["price"] > limit) == above:
        finish(rng, chat, "set_reminder", {"text": f"{deed} {symbol}", "time": hour})
    else:
        stop(chat, f"{symbol} stands at {found['price']}, no reminder.")


def text_of(found: dict[str, Any]) -> str:
    """The text of a file's result, whatever its field is called."""
    (text,) = found.values()
    return str(text)


def translated_file(rng: random.Random, chat: Transcript, today: Day) -> None:
    path, language = arguments(rng, "read_file")["path"], rng.choice(LANGUAGES)
    ask(rng, chat, "Read {p} and translate it into {l}.", "What does {p} say in {l}?",
        "Open {p}, then put the text into {l}.", p=path, l=language)  # fmt: skip
    (found,) = look_up(rng, chat, ("read_file", {"path": path}))
    finish(rng, chat, "translate", {"text": text_of(found), "language": language})


def mailed_file(rng: random.Random, chat: Transcript, today: Day) -> None:
    path, to, subject = arguments(rng, "read_file")["path"], address(rng), rng.choice(SUBJECTS)
    ask(rng, chat, "Read {p} and mail it to {t} with subject {s}.", "Send the text of {p} to {t}, subject {s}.",
        p=path, t=to, s=subject)  # fmt: skip
    (found,) = look_up(rng, chat, ("read_file", {"path": path}))
    finish(rng, chat, "send_email", {"to": to, "subject": subject, "body": text_of(found)})


def cost_of_shares(rng: random.Random, chat: Transcript, today: Day) -> None:
    count, symbol = rng.randint(2, 20), rng.choice(SYMBOLS)
    ask(rng, chat, "What do {n} shares of {s} cost?", "How much are {n} shares of {s}?",
        "I want {n} shares of {s}. What is the sum?", n=count, s=symbol)  # fmt: skip
    price = rng.randint(10, 900)
    look_up(rng, chat, ("get_stock_price", {"symbol": symbol}), changed={"price": price})
    finish(rng, chat, "calculate", {"expression": f"{count}*{price}"})


def converted_price(rng: random.Random, chat: Transcript, today: Day) -> None:
    symbol, currency = rng.choice(SYMBOLS), rng.choice(("EUR", "GBP", "JPY", "CHF"))
    ask(rng, chat, "How much is {s} stock in {c}?", "Price of {s} in {c}, please.",
        "Get the price of {s} and convert it to {c}.", s=symbol, c=currency)  # fmt: skip
    (found,) = look_up(rng, chat, ("get_stock_price", {"symbol": symbol}), changed={"currency": "USD"})
    finish(rng, chat, "convert_currency", {"amount": found["price"], "from": "USD", "to": currency})


CHAINS: tuple[tuple[Callable[[random.Random, Transcript, Day], None], tuple[str, ...]], ...] = (
    (email_of_contact, ("find_contact", "send_email")), (event_if_free, ("list_events", "create_event")),
    (mailed_events, ("find_contact", "list_events", "send_email")),
    (reminder_if_rain, ("get_weather", "set_reminder")), (reminder_by_price, ("get_stock_price", "set_reminder")),
    (translated_file, ("read_file", "translate")), (mailed_file, ("read_file", "send_email")),
    (cost_of_shares, ("get_stock_price", "calculate")), (converted_price, ("get_stock_price", "convert_currency")),
)  # fmt: skip
"""Each chain with the tools it needs."""
