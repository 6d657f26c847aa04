"""Sentence skeletons of the story world: what may be said about each relation, and which wordings are held out.

A relation binds a key to a value ("the kite" to "the barn"). Slots: {k} key, {v} value, {w} the value before a move,
{a} a person who has no part in the bindings. `train` skeletons and `test` skeletons are disjoint; a test story uses the
same words and asks for the same skill in sentences that no training story contains.
"""

from __future__ import annotations

from dataclasses import dataclass

from rwkvlab.texts import _story_words as words


@dataclass(frozen=True)
class Wordings:
    """Skeletons for one purpose: those of training stories and those held out for test stories."""

    train: tuple[str, ...]
    test: tuple[str, ...]


@dataclass(frozen=True)
class Relation:
    """One kind of fact: which words are its keys and values, and how to state, change, repeat, ask and answer it."""

    name: str
    keys: tuple[str, ...]
    values: tuple[str, ...]
    bind: Wordings
    move: Wordings
    recap: Wordings
    close: Wordings
    ask: Wordings
    answer: str


OBJECT_PLACE = Relation(
    "object-place",
    words.OBJECTS,
    words.PLACES,
    bind=Wordings(
        (
            "The {k} was in the {v}.",
            "There was a {k} in the {v}.",
            "Someone had left the {k} in the {v}.",
            "They always kept the {k} in the {v}.",
            "{a} put the {k} in the {v}.",
            "{a} had hidden the {k} in the {v}.",
            "{a} had seen the {k} in the {v}.",
        ),
        ("{a} had left the {k} in the {v}.", "Someone put the {k} in the {v}."),
    ),
    move=Wordings(
        (
            "Later {a} took the {k} to the {v}.",
            "Then {a} moved the {k} from the {w} to the {v}.",
            "After lunch {a} brought the {k} to the {v}.",
            "Then someone took the {k} from the {w} to the {v}.",
        ),
        ("Later {a} brought the {k} from the {w} to the {v}.", "After lunch someone moved the {k} to the {v}."),
    ),
    recap=Wordings(
        ("The {k} was still in the {v}.", "Everyone knew that the {k} was in the {v}.", "They saw the {k} in the {v}."),
        ("Someone saw that the {k} was still in the {v}.",),
    ),
    close=Wordings(
        (
            "the {k} was in the {v}",
            "they found the {k} in the {v}",
            "{a} looked for the {k} in the {v}",
            "everyone knew that the {k} was in the {v}",
            "someone saw the {k} in the {v}",
        ),
        (
            "{a} found the {k} in the {v}",
            "they looked for the {k} in the {v}",
            "everyone saw that the {k} was in the {v}",
        ),
    ),
    ask=Wordings(
        ("Where is the {k}?", "Where can we find the {k}?", "Can you tell me where the {k} was?"),
        ("Where was the {k}?", "Can you tell me where the {k} is?"),
    ),
    answer="the {v}",
)

PERSON_PLACE = Relation(
    "person-place",
    words.PEOPLE,
    words.PLACES,
    bind=Wordings(
        (
            "{k} was in the {v}.",
            "{k} walked to the {v}.",
            "Early in the day {k} went to the {v}.",
            "{k} had work to do in the {v}.",
            "They had seen {k} in the {v}.",
            "{k} waited for a friend in the {v}.",
        ),
        ("Early in the day {k} walked to the {v}.", "They waited for {k} in the {v}."),
    ),
    move=Wordings(
        (
            "Later {k} went to the {v}.",
            "Then {k} left the {w} and walked to the {v}.",
            "After lunch {k} ran from the {w} to the {v}.",
        ),
        ("Later {k} left the {w} and ran to the {v}.", "Then {k} walked from the {w} to the {v}."),
    ),
    recap=Wordings(
        ("{k} was still in the {v}.", "Everyone knew that {k} was in the {v}.", "They saw {k} in the {v}."),
        ("Someone saw that {k} was still in the {v}.",),
    ),
    close=Wordings(
        (
            "{k} was in the {v}",
            "they found {k} in the {v}",
            "everyone looked for {k} in the {v}",
            "everyone knew that {k} was in the {v}",
            "someone saw {k} in the {v}",
        ),
        ("someone found {k} in the {v}", "they looked for {k} in the {v}", "everyone saw that {k} was in the {v}"),
    ),
    ask=Wordings(
        ("Where is {k}?", "Where can we find {k}?", "Can you tell me where {k} was?"),
        ("Where was {k}?", "Can you tell me where {k} is?"),
    ),
    answer="the {v}",
)

OBJECT_PERSON = Relation(
    "object-person",
    words.OBJECTS,
    words.PEOPLE,
    bind=Wordings(
        (
            "The {k} was given to {v}.",
            "The {k} belonged to {v}.",
            "Everyone knew that the {k} belonged to {v}.",
            "The owner of the {k} was {v}.",
            "Someone had sold the {k} to {v}.",
        ),
        ("Everyone knew that the owner of the {k} was {v}.", "The {k} was sold to {v}."),
    ),
    move=Wordings(
        (
            "Later {w} gave the {k} to {v}.",
            "Then {w} sold the {k} to {v}.",
            "After lunch the {k} was given to {v}.",
        ),
        ("After lunch {w} gave the {k} to {v}.", "Later the {k} was sold to {v}."),
    ),
    recap=Wordings(
        ("The {k} still belonged to {v}.", "They all said that the {k} belonged to {v}."),
        ("Someone said that the {k} still belonged to {v}.",),
    ),
    close=Wordings(
        (
            "the {k} belonged to {v}",
            "the owner of the {k} was {v}",
            "everyone knew that the {k} belonged to {v}",
            "someone said that the owner of the {k} was {v}",
        ),
        ("they knew that the owner of the {k} was {v}", "someone said that the {k} belonged to {v}"),
    ),
    ask=Wordings(
        ("Who has the {k}?", "Who is the owner of the {k}?", "Can you tell me who has the {k}?"),
        ("Can you tell me who is the owner of the {k}?", "Who was the owner of the {k}?"),
    ),
    answer="{v}",
)

PERSON_OBJECT = Relation(
    "person-object",
    words.PEOPLE,
    words.OBJECTS,
    bind=Wordings(
        (
            "{k} carried a {v}.",
            "{k} wanted to buy a {v}.",
            "In the end {k} bought a {v}.",
            "{k} came with a {v}.",
            "They all saw that {k} carried a {v}.",
        ),
        ("They all saw that {k} came with a {v}.", "In the end {k} wanted to buy a {v}."),
    ),
    move=Wordings(
        (
            "Later {k} took a {v} instead of the {w}.",
            "Then {k} chose a {v} instead of the {w}.",
            "After lunch {k} bought a {v}.",
        ),
        ("After lunch {k} chose a {v} instead of the {w}.", "Later {k} bought a {v} instead of the {w}."),
    ),
    recap=Wordings(
        ("{k} still had the {v}.", "Everyone knew that {k} had the {v}."),
        ("Someone saw that {k} still had the {v}.",),
    ),
    close=Wordings(
        (
            "{k} had the {v}",
            "the thing that {k} had was the {v}",
            "everyone knew that {k} had the {v}",
            "{k} went home with the {v}",
        ),
        ("someone saw that {k} had the {v}", "they knew that {k} went home with the {v}"),
    ),
    ask=Wordings(
        ("What does {k} have?", "What did {k} have?", "Can you tell me what {k} has?"),
        ("Can you tell me what {k} had?", "What was the thing that {k} had?"),
    ),
    answer="the {v}",
)

OBJECT_COLOUR = Relation(
    "object-colour",
    words.OBJECTS,
    words.COLOURS,
    bind=Wordings(
        (
            "There was a {v} {k}.",
            "The {k} was {v}.",
            "{a} came with a {v} {k}.",
            "They all saw the {v} {k}.",
            "{a} wanted to buy a {v} {k}.",
        ),
        ("They all saw that the {k} was {v}.", "{a} carried a {v} {k}."),
    ),
    move=Wordings(
        (
            "Later {a} painted the {k} {v}.",
            "Then {a} wanted to have the {k} {v}.",
            "After lunch the {k} was painted {v}.",
        ),
        ("After lunch {a} painted the {k} {v}.", "Then the {k} was painted {v}."),
    ),
    recap=Wordings(
        ("The {k} was still {v}.", "Everyone knew that the {k} was {v}."),
        ("Someone saw that the {k} was still {v}.",),
    ),
    close=Wordings(
        (
            "the {k} was {v}",
            "the colour of the {k} was {v}",
            "everyone knew that the {k} was {v}",
            "someone said that the colour of the {k} was {v}",
        ),
        ("someone saw that the {k} was {v}", "they knew that the colour of the {k} was {v}"),
    ),
    ask=Wordings(
        ("What is the colour of the {k}?", "What colour is the {k}?", "Can you tell me what colour the {k} was?"),
        ("What was the colour of the {k}?", "What colour was the {k}?"),
    ),
    answer="{v}",
)

PERSON_FOOD = Relation(
    "person-food",
    words.PEOPLE,
    words.FOODS,
    bind=Wordings(
        (
            "{k} ate some {v}.",
            "{k} ordered some {v}.",
            "The cook brought {k} some {v}.",
            "For {k} there was some {v}.",
            "Early in the day {k} had ordered some {v}.",
        ),
        ("Early in the day {k} ate some {v}.", "The cook had some {v} for {k}."),
    ),
    move=Wordings(
        (
            "Later {k} ordered {v} instead of the {w}.",
            "Then {k} chose {v} instead of the {w}.",
            "After lunch the cook brought {k} some {v}.",
        ),
        ("Then the cook brought {k} some {v} instead of the {w}.", "After lunch {k} ordered some {v}."),
    ),
    recap=Wordings(
        ("{k} still had some {v}.", "Everyone knew that {k} had the {v}."),
        ("Someone saw that {k} still had some {v}.",),
    ),
    close=Wordings(
        (
            "{k} ate the {v}",
            "the food that {k} had was the {v}",
            "everyone knew that {k} ate the {v}",
            "the cook brought {k} the {v}",
        ),
        ("someone saw that {k} ate the {v}", "they knew that the food that {k} had was the {v}"),
    ),
    ask=Wordings(
        ("What food does {k} have?", "What food did {k} have?", "Can you tell me what food {k} has?"),
        ("Can you tell me what food {k} had?", "What was the food that {k} had?"),
    ),
    answer="the {v}",
)

PERSON_PET = Relation(
    "person-pet",
    words.PEOPLE,
    words.ANIMALS,
    bind=Wordings(
        (
            "{k} came with a {v}.",
            "{k} had a {v} at home.",
            "{k} looked after a {v}.",
            "They all saw {k} with a {v}.",
            "Someone had given {k} a {v}.",
        ),
        ("They all saw that {k} had a {v}.", "Someone had sold {k} a {v}."),
    ),
    move=Wordings(
        (
            "Later {k} chose a {v} instead of the {w}.",
            "Then {k} bought a {v} instead of the {w}.",
            "After lunch someone gave {k} a {v}.",
        ),
        ("After lunch {k} bought a {v} instead of the {w}.", "Later someone gave {k} a {v}."),
    ),
    recap=Wordings(
        ("{k} still looked after the {v}.", "Everyone knew that {k} had the {v}."),
        ("Someone saw that {k} still looked after the {v}.",),
    ),
    close=Wordings(
        (
            "{k} looked after the {v}",
            "the animal that {k} had was the {v}",
            "everyone knew that {k} had the {v}",
            "{k} went home with the {v}",
        ),
        ("someone saw that {k} had the {v}", "they knew that {k} looked after the {v}"),
    ),
    ask=Wordings(
        ("What animal does {k} have?", "What animal did {k} have?", "Can you tell me what animal {k} has?"),
        ("Can you tell me what animal {k} had?", "What was the animal that {k} had?"),
    ),
    answer="the {v}",
)

RELATIONS = (
    OBJECT_PLACE,
    PERSON_PLACE,
    OBJECT_PERSON,
    PERSON_OBJECT,
    OBJECT_COLOUR,
    PERSON_FOOD,
    PERSON_PET,
)
