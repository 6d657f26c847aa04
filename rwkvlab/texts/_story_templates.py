"""Plans of stories, and the sentences that belong to no relation: openings, leads to the closing, and fillers."""

from __future__ import annotations

from rwkvlab.texts import _story_words as words
from rwkvlab.texts._story_relations import RELATIONS, Wordings

PLANS = Wordings(
    (
        "open bind bind filler bind bind recap close",
        "open bind filler bind bind recap bind recap close",
        "open bind bind move bind recap bind close",
        "open filler bind bind bind move bind recap close",
        "open bind bind side bind recap bind filler close",
        "open side bind bind move bind filler bind recap close",
        "open bind bind recap bind bind bind recap close",
    ),
    (
        "open bind side bind filler bind bind recap close",
        "open filler bind bind bind bind move filler close",
        "open bind filler bind bind bind bind recap close",
        "open bind side bind bind move bind recap close",
    ),
)
"""The order in which a story states (bind), changes (move), repeats (recap) and finally asks for (close) its facts."""

EASY_PLANS = (
    "open bind bind filler bind recap filler close",
    "open bind filler bind bind recap recap close",
    "open bind bind move recap bind filler close",
    "open filler bind bind bind move recap close",
    "open bind bind side bind recap filler close",
    "open side bind bind move filler bind recap close",
    "open bind bind recap bind bind recap filler close",
)
"""Plans with fewer facts, for the first part of training."""

LESSONS = (
    "bind bind recap recap close",
    "bind bind recap close",
    "bind bind bind recap recap close",
    "bind move bind recap close",
)
"""Plans of the short pieces that training starts with."""

LEADS = Wordings(
    (
        "In the end",
        "At last",
        "When the day was over,",
        "After a long time",
        "That evening",
        "When the others came home,",
        "Before they went home,",
        "It was late, and",
    ),
    ("Before they came home,", "It was over, and at last", "After the day was over,"),
)

OPENINGS = (
    "One {weather} day in {month} some friends met near the {landmark}.",
    "It was a {weather} {day}, and everyone was {mood}.",
    "On {day} some {mood} neighbours met near the {landmark}.",
    "In {month} the days near the {landmark} were {weather}.",
    "Once, on a {weather} {day}, there was a feast near the {landmark}.",
)

FILLERS = (
    "The afternoon was {weather}, and they played {game}.",
    "Everyone was {mood} and talked about {topic}.",
    "From far away came the sound of {sound}.",
    "Near the {landmark} some children played {game}.",
    "Nobody minded the {sound} for very long.",
    "An old man told a long story about {topic}.",
    "The road to the {landmark} was empty that day.",
    "Two {mood} travellers asked the way to the {landmark}.",
    "Soon it would be {month}, and the nights would be {weather}.",
    "A {mood} woman sang a song about {topic}.",
    "The wind grew stronger, and the sky became dark.",
    "For a while there was only {sound} and silence.",
    "The sun went down slowly behind the {landmark}.",
    "Some {mood} boys threw stones into the water.",
    "Last {day} had been much more {weather} than this one.",
    "Their teacher promised a prize for the best story.",
    "Every window on the street stood open.",
    "A policeman wrote something in his little notebook.",
    "The postman was late again because of the {weather} weather.",
    "Several people were {mood}, but others laughed loudly.",
    "Between the trees one could hear {sound}.",
    "Grandmother slept in her chair until the clocks struck seven.",
    "Nothing else happened, so they played {game} again.",
    "The newspaper wrote about {topic} and about the {weather} season.",
    "A stranger with curly hair smiled and waved both hands.",
    "They made a fire, drank hot tea and felt {mood}.",
    "Somewhere a baby cried, but its parents did not worry.",
    "Their uncle repaired an engine without any help.",
    "Three nurses shared sweets and whispered secrets.",
    "Dust covered the floor, so the twins swept it carefully.",
    "The mayor gave a speech that lasted almost an hour.",
    "Birds flew over the roofs, and leaves fell from every branch.",
    "My cousin counted stars while we sat under blankets.",
    "The doctor said that fresh air was good for everyone.",
)

FILLER_SLOTS = {
    "weather": words.WEATHER,
    "month": words.MONTHS,
    "day": words.DAYS,
    "landmark": words.LANDMARKS,
    "mood": words.MOODS,
    "game": words.GAMES,
    "topic": words.TOPICS,
    "sound": words.SOUNDS,
}


def texts() -> list[str]:
    """Every skeleton and every word of the world, slots left open."""
    result = [*OPENINGS, *FILLERS, *LEADS.train, *LEADS.test]
    for relation in RELATIONS:
        for wordings in (relation.bind, relation.move, relation.recap, relation.close, relation.ask):
            result.extend(wordings.train + wordings.test)
        result.extend([*relation.keys, *relation.values, relation.answer])
    return result + [word for choices in FILLER_SLOTS.values() for word in choices]
