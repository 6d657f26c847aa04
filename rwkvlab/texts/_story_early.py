"""Stories for a model that cannot recall yet.

A small model learns to recall suddenly or not at all, and what it reads until then decides. With few facts in a
story, and favourites that are weak and depend on the word before, no word is worth guessing. Other curricula, among
them the same stories without favourites, were still guessing after twice the steps this one needs to recall.
"""

from __future__ import annotations

from collections.abc import Sequence

from rwkvlab.texts import _story_templates as templates
from rwkvlab.texts._story_relations import OBJECT_COLOUR, Relation
from rwkvlab.texts.stories import FAVOURITE_VALUE, Fact, T, Writer

FAVOURITE = 0.25
"""Extra probability of the favourite, in place of the stories' own."""


class EasyWriter(Writer):
    """Fewer facts; the favourite key follows from the key before, the favourite value from the key."""

    def _plan(self) -> str:
        return self._pick(templates.EASY_PLANS)

    def _asked(self) -> Fact:
        return self.rng.choice(self.facts)

    def _recap(self) -> str:
        return self._fill(self._pick(self._mixed(self.relation.recap)), self.rng.choice(self.facts))

    def _move(self) -> str:
        fact = self.rng.choice(self.facts)
        before = fact.value
        fact.value = self._choose_after(before, self.relation.values, FAVOURITE_VALUE)
        return self._fill(self._pick(self._mixed(self.relation.move)), fact, before)

    def _new_fact(self, relation: Relation) -> Fact:
        key = self._choose_after(self.facts[-1].key if self.facts else "", relation.keys, FAVOURITE)
        cue = "" if relation is OBJECT_COLOUR else key
        return Fact(relation, key, self._choose_after(cue, relation.values, FAVOURITE_VALUE))

    def _choose_after(self, cue: str, words: Sequence[str], favourite: float) -> str:
        """A word that the story has not bound yet; `cue` decides which one is the favourite."""
        start = (11 * _RANK[cue] + 3) % len(words) if cue else 0
        return self._choose([*words[start:], *words[:start]], favourite)

    def _pick(self, options: Sequence[T], favourite: float = FAVOURITE) -> T:
        return super()._pick(options, favourite)


class LessonWriter(EasyWriter):
    """Two or three facts, repeated at once."""

    def _plan(self) -> str:
        return self.rng.choice(templates.LESSONS)


_LISTS = [words for relation in templates.RELATIONS for words in (relation.keys, relation.values)]
_RANK = {word: rank for words in _LISTS for rank, word in enumerate(words)}
