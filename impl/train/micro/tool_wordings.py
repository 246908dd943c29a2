"""How users ask for the twelve tools: complete requests, incomplete ones, and what no tool can do."""

from __future__ import annotations

REQUESTS: dict[str, tuple[str, ...]] = {
    "get_weather": (
        "What is the weather in {city}?", "How is the weather in {city} today?", "Weather in {city}, please.",
        "Is it raining in {city}?", "Do I need an umbrella in {city}?", "Tell me the weather for {city}.",
        "How warm is it in {city}?", "Is it cold in {city} right now?", "What's the temperature in {city}?",
        "Check the weather in {city}.", "I am going to {city}. What is the weather there?",
    ),
    "find_contact": (
        "Find the contact {name}.", "What is the email of {name}?", "Look up {name} in my contacts.",
        "I need the phone number of {name}.", "What's {name}'s email address?", "How can I reach {name}?",
        "Get me the contact details of {name}.", "Do I have {name} in my contacts?",
    ),
    "send_email": (
        'Send an email to {to} with subject "{subject}" and text "{body}".',
        'Email {to}, subject {subject}: {body}.', 'Write to {to}, subject "{subject}", saying "{body}".',
        'Please mail {to}: subject {subject}, body {body}.', 'Send {to} a mail titled {subject} that says {body}.',
        'Email "{body}" to {to} with the subject {subject}.',
    ),
    "create_event": (
        "Create an event {title} on {date} at {time}.", "Put {title} in my calendar for {date} at {time}.",
        "Schedule {title} for {date}, {time}.", "Add {title} on {date} at {time} to the calendar.",
        "Book {title} on {date} at {time}.", "Plan {title}: {date}, {time}.",
        "Set up {title} for {date} at {time}, please.",
    ),
    "list_events": (
        "What do I have on {date}?", "List my events on {date}.", "Am I free on {date}?",
        "Show my calendar for {date}.",
        "What is planned for {date}?", "Which meetings do I have on {date}?", "Do I have anything on {date}?",
    ),
    "convert_currency": (
        "Convert {amount} {from} to {to}.", "How much is {amount} {from} in {to}?", "What are {amount} {from} in {to}?",
        "Change {amount} {from} into {to}.", "I have {amount} {from}. How many {to} is that?",
        "{amount} {from} in {to}, please.", "What is {amount} {from} worth in {to}?",
    ),
    "get_stock_price": (
        "What is the stock price of {symbol}?", "How much is one share of {symbol}?", "Price of {symbol}, please.",
        "What does {symbol} trade at?", "Get the price of {symbol} stock.", "Where does {symbol} stand today?",
        "Look up the share price of {symbol}.",
    ),
    "search_web": (
        "Search the web for {query}.", "Look up {query} online.", "Find something about {query} on the web.",
        "Search for {query}.", "Can you search {query} for me?", "I want to read about {query}. Search the web.",
        "Do a web search on {query}.",
    ),
    "read_file": (
        "Read the file {path}.", "What is in {path}?", "Show me {path}.", "Open {path} and read it to me.",
        "What does {path} say?", "Print the contents of {path}.", "Read {path}, please.",
    ),
    "translate": (
        'Translate "{text}" into {language}.', 'How do you say "{text}" in {language}?',
        'What is "{text}" in {language}?', "Translate to {language}: {text}", 'Put "{text}" into {language}, please.',
        'I need "{text}" in {language}.',
    ),
    "set_reminder": (
        "Remind me at {time} to {text}.", "Set a reminder for {time}: {text}.", "Remind me to {text} at {time}.",
        "At {time} I have to {text}. Remind me.", "Please set a reminder to {text} at {time}.",
        "Don't let me forget to {text} at {time}.",
    ),
    "calculate": (
        "Calculate {expression}.", "What is {expression}?", "Use the calculator: {expression}", "Compute {expression}.",
        "How much is {expression}?", "Work out {expression} for me.", "{expression}=?",
    ),
}  # fmt: skip

INCOMPLETE: tuple[tuple[str, str, str, str], ...] = (
    ("get_weather", "What is the weather?", "For which city?", "{city}"),
    ("get_weather", "Will I need a coat today?", "In which city are you?", "In {city}."),
    ("find_contact", "Find a contact for me.", "Whom should I look for?", "{name}"),
    ("find_contact", "I need a phone number.", "Whose number do you need?", "That of {name}."),
    ("send_email", "Send an email to {to}.", "What are the subject and the text?", "Subject {subject}, text {body}."),
    ("send_email", 'Send a mail with subject "{subject}" and text "{body}".', "To whom should I send it?", "To {to}."),
    ("create_event", "Create an event {title}.", "On which date and at what time?", "{date} at {time}."),
    ("create_event", "Schedule {title} on {date}.", "At what time?", "At {time}."),
    ("create_event", "Put something in my calendar for {date} at {time}.", "What is the title?", "{title}"),
    ("list_events", "What is in my calendar?", "For which date?", "{date}"),
    ("convert_currency", "Convert {amount} {from}.", "Into which currency?", "Into {to}."),
    ("convert_currency", "Change some money from {from} to {to}.", "How much?", "{amount}"),
    ("get_stock_price", "What is the stock price?", "Of which symbol?", "{symbol}"),
    ("search_web", "Search the web.", "What should I search for?", "{query}"),
    ("read_file", "Read a file.", "Which file?", "{path}"),
    ("read_file", "Open the document.", "What is its path?", "It is {path}."),
    ("translate", 'Translate "{text}".', "Into which language?", "Into {language}."),
    ("translate", "Translate something into {language}.", "What should I translate?", '"{text}"'),
    ("set_reminder", "Remind me to {text}.", "At what time?", "At {time}."),
    ("set_reminder", "Set a reminder for {time}.", "What should I remind you of?", "To {text}."),
    ("calculate", "Calculate something for me.", "What should I calculate?", "{expression}"),
)  # fmt: skip
"""Tool, request, question back, and the user's answer."""

BEYOND: tuple[str, ...] = (
    "Order a pizza for me.", "Play some music.", "Call a taxi.", "Turn on the light in the kitchen.",
    "Book a flight to {city}.", "Print this page.", "Paint a picture of a cat.", "Buy {item} for me.",
    "Wash my car.", "Open the garage door.", "Take a photo.", "Post this on my blog.", "Rent a car in {city}.",
    "Start the dishwasher.", "Reserve a table for two in {city}.", "Lock the front door.", "Charge my phone.",
    "Delete all my photos.", "Call {name}.", "Feed the fish.", "Delete the email from {name}.",
    "Cancel my event in {city}.", "Undo the last reminder.", "Unsend my mail to {name}.", "Rename my file.",
)  # fmt: skip
"""What none of the tools does."""

SMALL_TALK: tuple[tuple[str, str], ...] = (
    ("Hello!", "Hello. What can I do for you?"), ("Hi.", "Hello. What can I do for you?"),
    ("Good morning.", "Good morning. What can I do for you?"), ("Thank you!", "You are welcome."),
    ("Thanks.", "You are welcome."), ("Good bye.", "Good bye."), ("How are you?", "I am well. What can I do for you?"),
    ("Who are you?", "I am an assistant with tools."),
)  # fmt: skip

NO_TOOL = "I cannot do that, I have no tool for it."

BEHAVIOURS = (
    "You are a helpful assistant.", "Answer briefly.", "Use the tools where they help.", "You have tools.",
    "Reply in one sentence.", "Call a tool only if you need it.", "Be short.", "Answer at once if you know.",
)  # fmt: skip
"""What a system line may ask for, behind the day where it tells that."""

JOINS = ("{a} {b}", "{a} Also: {b}", "{a} And: {b}", "{a} Then: {b}", "Two things. {a} {b}")
