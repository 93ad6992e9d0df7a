"""Lists questions with short answers: small talk, Python, and everyday facts."""

import random

from .words import (
    CAPITALS,
    COLOR_OF,
    DAYS,
    MONTHS,
    NUMBER_WORDS,
    OPPOSITES,
    SOUNDS,
)

Exchange = tuple[str, str]

SMALL_TALK: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (
        ("Hello", "Hello!", "Hi", "Hi!", "Hey", "Hi there", "Hello there!", "Good morning", "Good evening!"),
        ("Hello! How can I help?", "Hi! What can I do for you?", "Hello. What would you like to know?"),
    ),
    (
        ("How are you?", "How are you today?", "How is it going?", "Are you well?", "How do you do?"),
        ("I am well, thank you. How can I help?", "Very well, thanks. What do you need?", "Fine, thank you."),
    ),
    (
        (
            "Who are you?",
            "What are you?",
            "What is your name?",
            "Tell me about yourself.",
            "Introduce yourself.",
        ),
        (
            "I am a small language model that runs as a demo.",
            "I am the demo model: small, fast, and not very clever.",
            "I am a demo model. I know a little Python and a little JSON.",
        ),
    ),
    (
        ("What can you do?", "How can you help me?", "What do you know?", "Can you help me?", "Help!"),
        (
            "I can answer short questions, write JSON and call functions.",
            "I can chat a little, write some Python and fill in JSON.",
            "Ask me a short question, or give me a function to call.",
        ),
    ),
    (
        ("Thanks", "Thank you", "Thanks!", "Thank you very much.", "Great, thanks.", "Perfect, thank you!"),
        ("You are welcome.", "You are welcome! Is there anything else?", "Gladly."),
    ),
    (
        ("Bye", "Goodbye", "Goodbye!", "See you", "See you later.", "Good night"),
        ("Goodbye!", "Goodbye, and have a good day.", "See you later."),
    ),
    (
        ("Yes", "Yes.", "OK", "Okay.", "Sure", "Good.", "I see."),
        ("Good. What is next?", "All right. What else can I do?", "Good."),
    ),
    (
        ("No", "No.", "Not now.", "No, thanks.", "Never mind."),
        ("All right.", "All right. Just ask when you need me."),
    ),
    (
        ("Tell me a joke.", "Do you know a joke?", "Make me laugh.", "A joke, please."),
        (
            "Why did the loop end? It had a break.",
            "I would tell you a joke about a queue, but you would have to wait.",
            "There are two hard things: names, caches, and counting.",
        ),
    ),
    (
        ("Are you a robot?", "Are you human?", "Are you a person?", "Are you an AI?"),
        ("I am a program, not a person.", "No person, just a small language model."),
    ),
    (
        ("Tell me a story.", "Tell me a short story.", "Write a short story.", "Write a story about a mill."),
        (
            "A river came to an old mill. The wheel turned, and the village had bread.",
            "Once a small model lived on a laptop. It answered every question, and all of them were short.",
            "A cat found a box. It sat in the box all day. In the evening it was happy.",
        ),
    ),
    (
        ("Write a poem.", "A poem, please.", "Write a short poem.", "Write a poem about water."),
        (
            "The water runs, the wheel goes round,\nthe stones make flour without a sound.",
            "A queue is long, a day is short;\nthe answers come of every sort.",
        ),
    ),
)

MODULES = {
    "json": "reads and writes JSON",
    "os": "talks to the operating system: files, processes and environment variables",
    "sys": "gives access to the interpreter: its arguments, its path and its streams",
    "re": "matches regular expressions",
    "math": "has mathematical functions for floats",
    "random": "draws pseudo-random numbers",
    "time": "reads clocks and waits",
    "datetime": "has dates, times and time differences",
    "csv": "reads and writes tables as comma-separated text",
    "pathlib": "has paths of files as objects",
    "threading": "runs functions in threads and has locks",
    "queue": "passes objects between threads",
    "asyncio": "runs coroutines in an event loop",
    "subprocess": "starts other programs and reads their output",
    "argparse": "parses the command line",
    "logging": "records what a program does",
    "collections": "has containers such as deque, Counter and defaultdict",
    "itertools": "builds iterators from iterators",
    "functools": "has tools for functions, such as partial and lru_cache",
    "hashlib": "computes digests such as SHA-256",
    "socket": "opens network connections",
    "sqlite3": "stores tables in one file",
    "tempfile": "makes files and folders that are removed later",
    "textwrap": "wraps and indents text",
    "typing": "has names for type hints",
    "unittest": "runs tests",
    "uuid": "makes identifiers that are unique",
    "zipfile": "reads and writes ZIP archives",
    "heapq": "keeps a list as a heap",
    "copy": "copies objects",
    "pickle": "turns objects into bytes and back",
    "struct": "packs values into bytes",
    "shutil": "copies and removes whole files and folders",
    "string": "has character classes and templates",
    "decimal": "computes with decimal numbers",
    "fractions": "computes with fractions",
    "statistics": "computes means, medians and deviations",
    "html": "escapes text for web pages",
    "base64": "writes bytes as text",
    "secrets": "draws random numbers that nobody can guess",
}

PYTHON: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("read a file", "read the lines of a file", "read a text file"),
        "with open(path, encoding='utf-8') as file:\n    lines = file.readlines()",
    ),
    (
        ("write a file", "write text to a file", "save text in a file"),
        "with open(path, 'w', encoding='utf-8') as file:\n    file.write(text)",
    ),
    (("sort a list", "sort numbers", "put a list in order"), "numbers = sorted(numbers)"),
    (("reverse a list", "turn a list around"), "items = items[::-1]"),
    (("parse JSON", "read JSON", "load a JSON text"), "import json\n\nvalue = json.loads(text)"),
    (("write JSON", "make JSON", "turn a dict into JSON"), "import json\n\ntext = json.dumps(value)"),
    (("loop over a dict", "read keys and values"), "for key, value in table.items():\n    print(key, value)"),
    (("count to ten", "print the numbers from 1 to 10"), "for i in range(1, 11):\n    print(i)"),
    (("add two numbers", "sum two numbers"), "def add(a, b):\n    return a + b"),
    (("check whether a number is even", "test for even numbers"), "def is_even(n):\n    return n % 2 == 0"),
    (("find the largest number", "get the maximum of a list"), "largest = max(numbers)"),
    (("sum a list", "add up a list", "get the total of a list"), "total = sum(numbers)"),
    (("join strings", "join words with spaces"), "text = ' '.join(words)"),
    (("split a string", "split a text into words"), "words = text.split()"),
    (("reverse a string", "turn a string around"), "text = text[::-1]"),
    (
        ("catch an error", "handle an exception"),
        "try:\n    work()\nexcept ValueError as error:\n    print(error)",
    ),
    (("wait a second", "sleep"), "import time\n\ntime.sleep(1)"),
    (("get today's date", "print the date"), "import datetime\n\nprint(datetime.date.today())"),
    (("draw a random number", "roll a die"), "import random\n\nnumber = random.randint(1, 6)"),
    (("list the files of a folder", "list a directory"), "import os\n\nnames = os.listdir(path)"),
    (("print hello", "write a hello world program", "say hello"), "print('Hello, world!')"),
    (
        ("count words", "count the words of a text"),
        "from collections import Counter\n\ncounts = Counter(words)",
    ),
    (("compute a factorial", "write a factorial function"), "import math\n\nvalue = math.factorial(n)"),
    (("remove duplicates", "make a list unique"), "items = list(dict.fromkeys(items))"),
    (
        ("compute Fibonacci numbers", "write a Fibonacci function"),
        "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a",
    ),
)

TRUTHS: tuple[tuple[str, bool], ...] = (
    ("Is a list mutable?", True),
    ("Is a tuple mutable?", False),
    ("Is water wet?", True),
    ("Is ice hot?", False),
    ("Is the sun a star?", True),
    ("Is the moon a star?", False),
    ("Can birds fly?", True),
    ("Can fish walk?", False),
    ("Is Python a language?", True),
    ("Is zero greater than one?", False),
    ("Is ten greater than two?", True),
    ("Do cats bark?", False),
    ("Do dogs bark?", True),
    ("Is a whale a fish?", False),
    ("Is snow white?", True),
    ("Is a string a number?", False),
    ("Is a dict ordered?", True),
    ("Does a year have twelve months?", True),
    ("Does a week have nine days?", False),
)


def small_talk(rng: random.Random) -> Exchange:
    """Return a greeting, a thank-you or the like, and what to say to it."""
    asked, answered = rng.choice(SMALL_TALK)
    return rng.choice(asked), rng.choice(answered)


def module(rng: random.Random) -> Exchange:
    """Return a question about a module of the standard library."""
    name, use = rng.choice(list(MODULES.items()))
    asked = rng.choice(
        (
            f"What does the {name} module do?",
            f"What is {name}?",
            f"What is the module {name} for?",
            f"Explain the {name} module.",
            f"What is {name} in Python?",
            f"The {name} module",
        )
    )
    return asked, f"The {name} module {use}."


def python(rng: random.Random) -> Exchange:
    """Return a question about how to do something in Python."""
    tasks, code = rng.choice(PYTHON)
    task = rng.choice(tasks)
    asked = rng.choice(
        (
            f"How do I {task} in Python?",
            f"How can I {task}?",
            f"Show me how to {task}.",
            f"Write Python code to {task}.",
            f"{task.capitalize()} in Python.",
        )
    )
    return asked, rng.choice((code, f"Like this:\n\n{code}", f"```python\n{code}\n```"))


def yes_or_no(rng: random.Random) -> Exchange:
    """Return a question that one word answers."""
    asked, is_true = rng.choice(TRUTHS)
    word = "yes" if is_true else "no"
    if rng.random() < 0.3:
        return f"{asked} Answer yes or no.", word
    return asked, rng.choice(
        (word.capitalize() + ".", word, f"{word.capitalize()}, {'it is so' if is_true else 'it is not so'}.")
    )


def arithmetic(rng: random.Random) -> Exchange:
    """Return a small sum."""
    a, b = rng.randint(0, 12), rng.randint(0, 12)
    sign, word, result = rng.choice((("+", "plus", a + b), ("-", "minus", a - b), ("*", "times", a * b)))
    asked = rng.choice(
        (
            f"What is {a} {sign} {b}?",
            f"What is {a} {word} {b}?",
            f"How much is {a} {word} {b}?",
            f"{a} {sign} {b} =",
            f"Compute {a} {sign} {b}.",
        )
    )
    return asked, rng.choice((f"{a} {sign} {b} = {result}", f"{result}", f"{a} {word} {b} is {result}."))


def everyday(rng: random.Random) -> Exchange:
    """Return a question about a capital, a color, an animal, a month or an opposite."""
    country, capital = rng.choice(list(CAPITALS.items()))
    thing, color = rng.choice(list(COLOR_OF.items()))
    animal, sound = rng.choice(list(SOUNDS.items()))
    word, opposite = rng.choice(list(OPPOSITES.items()))
    month, day, number = rng.randrange(12), rng.randrange(7), rng.randint(1, 20)
    return rng.choice(
        (
            (f"What is the capital of {country}?", f"The capital of {country} is {capital}."),
            (f"What's the capital of {country}?", f"{capital}."),
            (f"Which country has the capital {capital}?", f"{capital} is the capital of {country}."),
            (f"Where is {capital}?", f"{capital} is in {country}."),
            (f"What color is {thing}?", f"{thing[0].upper()}{thing[1:]} is {color}."),
            (f"What does a {animal} do?", f"A {animal} {sound}."),
            (f"What is the opposite of {word}?", f"The opposite of {word} is {opposite}."),
            (f"Which month comes after {MONTHS[month]}?", f"{MONTHS[(month + 1) % 12]}."),
            (f"Which day comes after {DAYS[day]}?", f"After {DAYS[day]} comes {DAYS[(day + 1) % 7]}."),
            (f"Write {number} as a word.", NUMBER_WORDS[number]),
            (f"Write {NUMBER_WORDS[number]} as a number.", str(number)),
        )
    )
