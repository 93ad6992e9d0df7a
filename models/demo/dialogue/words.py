"""Lists the words that generated conversations are made of; most stand in `words.txt`, by kind."""

import re
from pathlib import Path


def _read() -> dict[str, tuple[str, ...]]:
    text = Path(__file__).with_name("words.txt").read_text(encoding="utf-8")
    return {kind: tuple(listed.split()) for kind, listed in re.findall(r"(\w+):\n([^:]+)(?:\n|$)", text)}


_WORDS = _read()
NAMES = _WORDS["names"]
SURNAMES = _WORDS["surnames"]
ANIMALS = _WORDS["animals"]
FOODS = _WORDS["foods"]
COLORS = _WORDS["colors"]
PRODUCTS = _WORDS["products"]
PLACES = _WORDS["places"]
JOBS = _WORDS["jobs"]
DEPARTMENTS = _WORDS["departments"]
ADJECTIVES = _WORDS["adjectives"]
GOOD = _WORDS["good"]
BAD = _WORDS["bad"]
VERBS = _WORDS["verbs"]
NOUNS = _WORDS["nouns"]
MONTHS = _WORDS["months"]
DAYS = _WORDS["days"]
LANGUAGES = _WORDS["languages"]
COMPANIES = _WORDS["companies"]
GENRES = _WORDS["genres"]
SPORTS = _WORDS["sports"]
WEATHER = _WORDS["weather"]
UNITS = _WORDS["units"]
CURRENCIES = _WORDS["currencies"]
STATUSES = _WORDS["statuses"]
PRIORITIES = _WORDS["priorities"]
TOPICS = _WORDS["topics"]
NUMBER_WORDS = _WORDS["number_words"]
# Countries with their capitals.
CAPITALS = {
    "Austria": "Vienna",
    "Belgium": "Brussels",
    "Brazil": "Brasilia",
    "Canada": "Ottawa",
    "Chile": "Santiago",
    "China": "Beijing",
    "Cuba": "Havana",
    "Denmark": "Copenhagen",
    "Egypt": "Cairo",
    "Finland": "Helsinki",
    "France": "Paris",
    "Germany": "Berlin",
    "Greece": "Athens",
    "Hungary": "Budapest",
    "India": "New Delhi",
    "Ireland": "Dublin",
    "Italy": "Rome",
    "Japan": "Tokyo",
    "Kenya": "Nairobi",
    "Mexico": "Mexico City",
    "Morocco": "Rabat",
    "Norway": "Oslo",
    "Peru": "Lima",
    "Poland": "Warsaw",
    "Portugal": "Lisbon",
    "Russia": "Moscow",
    "Spain": "Madrid",
    "Sweden": "Stockholm",
    "Switzerland": "Bern",
    "Turkey": "Ankara",
}
COUNTRIES = tuple(CAPITALS)
CITIES = (*CAPITALS.values(), *_WORDS["more_cities"])
OPPOSITES = {
    "big": "small",
    "hot": "cold",
    "fast": "slow",
    "old": "new",
    "light": "dark",
    "full": "empty",
    "open": "closed",
    "high": "low",
    "long": "short",
    "hard": "soft",
    "early": "late",
    "rich": "poor",
    "strong": "weak",
    "wet": "dry",
    "happy": "sad",
    "loud": "quiet",
    "clean": "dirty",
    "thick": "thin",
    "wide": "narrow",
    "true": "false",
}
SOUNDS = {
    "cat": "meows",
    "dog": "barks",
    "cow": "moos",
    "duck": "quacks",
    "lion": "roars",
    "sheep": "bleats",
    "pig": "grunts",
    "horse": "neighs",
    "bee": "buzzes",
    "snake": "hisses",
    "owl": "hoots",
    "wolf": "howls",
}
COLOR_OF = {
    "the sky": "blue",
    "grass": "green",
    "snow": "white",
    "coal": "black",
    "a banana": "yellow",
    "a tomato": "red",
    "the sun": "yellow",
    "a carrot": "orange",
    "milk": "white",
    "blood": "red",
    "chocolate": "brown",
    "a lime": "green",
}
