"""A seeded world of short stories whose last word follows from the whole story and not from its last sentence.

Every story states a few facts of one kind (which thing is where, whose it is, what colour it has ...), sometimes
changes one, adds sentences that lead nowhere, and closes with a sentence that names one key and ends with its value:
the LAMBADA task, with the answer known by construction. Test stories use held-out plans and held-out wordings of the
closing sentence, with the vocabulary of the training stories.

Free choices have a clear favourite each (`FAVOURITE`), so that a trained model's most likely word is well separated
from its second, while guessing the answer without the story stays hard.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, TypeVar

from rwkvlab.errors import RwkvlabError
from rwkvlab.texts import _story_templates as templates
from rwkvlab.texts._story_relations import Relation, Wordings

Split = Literal["train", "test"]
T = TypeVar("T")

STORIES = "stories"
"""What stands for generated stories where a text file could be named."""
EVALUATION_SEED = 20240
"""Of the test stories that published figures are measured on."""
MIN_WORDS, MAX_WORDS = 40, 100
FAVOURITE = 0.35
"""Extra probability of the first among interchangeable words and wordings; all share the rest evenly."""
FAVOURITE_VALUE = 0.15
"""The same for the value bound to a key: what a guess from the closing sentence alone can hope for."""
FAVOURITE_FACT = 0.25
"""The same for which of its facts a story repeats (the latest) or asks for (the first)."""


@dataclass(frozen=True)
class Turn:
    """One question about a story and its answer of one or two words."""

    question: str
    answer: str


@dataclass(frozen=True)
class Story:
    """A story in LAMBADA's format.

    Attributes:
        text: the whole story; its last word is the target, with nothing after it.
        last_sentence: the closing sentence, target included.
        template: relation, plan and closing wording, which identify what is held out.
        turns: questions, in random order, about all facts of the story but the one its closing sentence asks for.
        recalls: where in `text` a word begins (with its space) that earlier sentences determine; the last: the target.
    """

    text: str
    last_sentence: str
    template: str
    turns: tuple[Turn, ...]
    recalls: tuple[int, ...]

    @property
    def target(self) -> str:
        """The last word, with its leading space."""
        return " " + self.text.rsplit(" ", 1)[1]

    @property
    def context(self) -> str:
        """Everything before the target."""
        return self.text.rsplit(" ", 1)[0]

    @property
    def dialogue(self) -> str:
        """The turns as `User: ...\\n\\nAssistant: ...\\n\\n`."""
        return "".join(f"User: {turn.question}\n\nAssistant: {turn.answer}\n\n" for turn in self.turns)

    def prompt(self, turn: int) -> str:
        """The finished story and the dialogue up to the point where the assistant answers question `turn`."""
        before = "".join(f"User: {t.question}\n\nAssistant: {t.answer}\n\n" for t in self.turns[:turn])
        return f"{self.text}.\n\n{before}User: {self.turns[turn].question}\n\nAssistant:"


@dataclass
class Fact:
    """What a story binds: a key to a value, within one relation."""

    relation: Relation
    key: str
    value: str


def generate(n: int, seed: int, split: Split, easy: bool = False) -> list[Story]:
    """`n` stories, the same for the same arguments on every machine.

    Args:
        n: how many.
        seed: of the random choices.
        split: which plans and wordings, and which stream of random choices.
        easy: stories for the first part of training: see `_story_early`.

    Raises:
        RwkvlabError: `n` is negative or `split` is unknown.
    """
    if split not in ("train", "test"):
        raise RwkvlabError(f"story split {split!r}", "train or test", 'generate(n, seed, split="test")')
    if n < 0:
        raise RwkvlabError(f"{n} stories", "a count of at least 0")
    rng = random.Random(f"{split}-{seed}")
    return [_write(rng, split, easy) for _ in range(n)]


def lessons(n: int, seed: int) -> list[Story]:
    """`n` short training pieces for a model that cannot recall yet: two or three facts, repeated at once.

    Their text is shorter than a story's and starts without an opening.
    """
    from rwkvlab.texts._story_early import LessonWriter

    rng = random.Random(f"lesson-{seed}")
    return [LessonWriter(rng, "train").write() for _ in range(n)]


def _write(rng: random.Random, split: Split, easy: bool) -> Story:
    from rwkvlab.texts._story_early import EasyWriter

    while True:
        story = (EasyWriter if easy else Writer)(rng, split).write()
        if MIN_WORDS <= len(story.text.split()) <= MAX_WORDS:
            return story


class Writer:
    """One story in the making: the facts so far and the words already spoken for."""

    def __init__(self, rng: random.Random, split: Split) -> None:
        self.rng = rng
        self.split: Split = split
        self.relation = rng.choice(templates.RELATIONS)
        self.facts: list[Fact] = []
        self.side_facts: list[Fact] = []
        self.taken: set[str] = set()
        self.fillers: set[str] = set()

    def write(self) -> Story:
        """Follow one plan of the split."""
        plan = self._plan()
        roles = plan.split()
        sentences = [getattr(self, f"_{role}")() for role in roles[:-1]]
        asked = self._asked()
        core = self._pick(self._wordings(self.relation.close))
        lead = self._pick(self._wordings(templates.LEADS))
        closing = f"{lead} {self._fill(core, asked)}"
        text = " ".join([*sentences, closing])
        return Story(
            text=text,
            last_sentence=closing,
            template=f"{self.relation.name} | {plan} | {lead} {core}",
            turns=self._turns(asked),
            recalls=(*_last_words(sentences, roles), text.rindex(" ")),
        )

    def _plan(self) -> str:
        return self._pick(self._wordings(templates.PLANS))

    def _asked(self) -> Fact:
        return self._pick(self.facts, FAVOURITE_FACT)

    def _open(self) -> str:
        return self._scenery(templates.OPENINGS)

    def _filler(self) -> str:
        left = [filler for filler in templates.FILLERS if filler not in self.fillers]
        chosen = self._pick(left)
        self.fillers.add(chosen)
        return self._scenery([chosen])

    def _bind(self) -> str:
        fact = self._new_fact(self.relation)
        self.facts.append(fact)
        return self._fill(self._pick(self._mixed(self.relation.bind)), fact)

    def _side(self) -> str:
        relation = self.rng.choice([r for r in templates.RELATIONS if r is not self.relation])
        fact = self._new_fact(relation)
        self.side_facts.append(fact)
        return self._fill(self._pick(self._mixed(relation.bind)), fact)

    def _move(self) -> str:
        fact = self.rng.choice(self.facts)
        before = fact.value
        fact.value = self._choose(self.relation.values, FAVOURITE_VALUE)
        return self._fill(self._pick(self._mixed(self.relation.move)), fact, before)

    def _recap(self) -> str:
        fact = self._pick(self.facts[::-1], FAVOURITE_FACT)
        return self._fill(self._pick(self._mixed(self.relation.recap)), fact)

    def _new_fact(self, relation: Relation) -> Fact:
        key = self._choose(relation.keys, FAVOURITE)
        return Fact(relation, key, self._choose(relation.values, FAVOURITE_VALUE))

    def _choose(self, words: Sequence[str], favourite: float) -> str:
        """A word that the story has not bound yet."""
        word = self._pick([word for word in words if word not in self.taken], favourite)
        self.taken.add(word)
        return word

    def _pick(self, options: Sequence[T], favourite: float = FAVOURITE) -> T:
        return options[0] if self.rng.random() < favourite else self.rng.choice(options)

    def _wordings(self, wordings: Wordings) -> tuple[str, ...]:
        return wordings.train if self.split == "train" else wordings.test

    def _mixed(self, wordings: Wordings) -> tuple[str, ...]:
        """For sentences before the closing one, test stories add held-out wordings to the known ones."""
        return wordings.train if self.split == "train" else wordings.test + wordings.train

    def _fill(self, skeleton: str, fact: Fact, before: str = "") -> str:
        actor = self._actor() if "{a}" in skeleton else ""
        return skeleton.format(k=fact.key, v=fact.value, w=before, a=actor)

    def _actor(self) -> str:
        bound = {word for fact in self.facts + self.side_facts for word in (fact.key, fact.value)}
        return self._pick([person for person in templates.words.PEOPLE if person not in bound])

    def _scenery(self, skeletons: Sequence[str]) -> str:
        slots = {name: self._pick(options) for name, options in templates.FILLER_SLOTS.items()}
        return self._pick(skeletons).format(**slots)

    def _turns(self, asked: Fact) -> tuple[Turn, ...]:
        others = [fact for fact in self.facts + self.side_facts if fact is not asked]
        return tuple(self._turn(fact) for fact in self.rng.sample(others, len(others)))

    def _turn(self, fact: Fact) -> Turn:
        question = self._pick(self._wordings(fact.relation.ask)).format(k=fact.key)
        return Turn(question, fact.relation.answer.format(v=fact.value))


def _last_words(sentences: Sequence[str], roles: Sequence[str]) -> list[int]:
    """Where the last words of the repeating sentences begin in the joined text."""
    starts = accumulate((len(sentence) + 1 for sentence in sentences), initial=0)
    placed = zip(sentences, roles, starts, strict=False)
    return [start + sentence.rindex(" ") for sentence, role, start in placed if role == "recap"]
