"""Wordings of requests that no training chat with tools has."""

from __future__ import annotations

NEW_REQUESTS: dict[str, tuple[str, ...]] = {
    "get_weather": ("Give me the weather of {city}.", "Is it warm in {city} today?"),
    "find_contact": ("Search my contacts for {name}.", "Tell me how to reach {name}."),
    "send_email": ("Send {to} an email: subject {subject}, text {body}.", 'Mail {to} "{body}", subject {subject}.'),
    "create_event": (
        "Please put {title} on {date} at {time} in the calendar.",
        "Add an event {title}: {date}, {time}.",
    ),
    "list_events": ("Show me what I have on {date}.", "Which events are on {date}?"),
    "convert_currency": ("Please convert {amount} {from} into {to}.", "How many {to} are {amount} {from}?"),
    "get_stock_price": ("Tell me the stock price of {symbol}.", "How much does {symbol} stock cost?"),
    "search_web": ("Please search for {query} online.", "Look on the web for {query}."),
    "read_file": ("Tell me what {path} says.", "Please open the file {path}."),
    "translate": ('Please translate "{text}" to {language}.', 'Say "{text}" in {language}.'),
    "set_reminder": ("Please remind me to {text} at {time}.", "Reminder at {time}: {text}."),
    "calculate": ("Please work out {expression}.", "Tell me what {expression} is."),
}
