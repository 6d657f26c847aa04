"""The story world: deterministic, right size, held-out templates, and answers that only the whole story gives."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from rwkvlab.errors import RwkvlabError
from rwkvlab.texts import _story_templates as templates
from rwkvlab.texts.stories import MAX_WORDS, MIN_WORDS, generate, lessons

SPLITS = ("train", "test")
PINNED = (
    "One gloomy day in January some friends met near the waterfall. In the end Ben bought a bell. Victor "
    "carried a flute. Between the trees one could hear rain. Leo carried a ladder. Kira carried a pencil. "
    "Leo still had the ladder. When the others came home, Leo had the ladder"
)


@pytest.fixture(scope="module", params=SPLITS)
def stories(request):
    return generate(1500, seed=11, split=request.param)


def test_same_arguments_same_stories():
    assert generate(20, 3, "train") == generate(20, 3, "train")
    assert generate(20, 3, "train") != generate(20, 4, "train")
    assert generate(20, 3, "train")[:5] == generate(5, 3, "train")


def test_first_story_is_pinned_across_machines_and_versions():
    assert generate(1, 0, "train")[0].text == PINNED


def test_words_per_story(stories):
    counts = [len(story.text.split()) for story in stories]
    assert min(counts) >= MIN_WORDS == 40
    assert max(counts) <= MAX_WORDS == 100


def test_size_of_the_vocabulary():
    words = {w.lower() for s in SPLITS for story in generate(3000, 5, s) for w in re.findall("[A-Za-z]+", story.text)}
    assert 500 <= len(words) <= 2000


def test_test_templates_do_not_occur_in_training():
    train, test = ({story.template for story in generate(3000, 6, split)} for split in SPLITS)
    assert not train & test
    plans = [{template.split(" | ")[1] for template in split} for split in (train, test)]
    closings = [{template.split(" | ")[2] for template in split} for split in (train, test)]
    assert not plans[0] & plans[1]
    assert not closings[0] & closings[1]


@pytest.mark.parametrize("relation", templates.RELATIONS, ids=lambda relation: relation.name)
def test_held_out_wordings_are_disjoint(relation):
    for wordings in (relation.bind, relation.move, relation.recap, relation.close, relation.ask):
        assert wordings.test
        assert not set(wordings.train) & set(wordings.test)
    assert len(relation.values) >= 10


def test_held_out_wordings_use_known_words():
    train, test = (
        Counter(w for story in generate(4000, 7, split) for w in re.findall("[A-Za-z]+", story.text + story.dialogue))
        for split in SPLITS
    )
    assert not [word for word in test if train[word] < 5]


def test_last_sentence_ends_the_story_with_the_bare_target(stories):
    for story in stories:
        assert story.text.endswith(story.last_sentence)
        assert story.context + story.target == story.text
        assert re.fullmatch(" [A-Za-z]+", story.target)


def test_target_occurs_before_the_last_sentence_but_not_inside_it(stories):
    for story in stories:
        before = re.findall("[A-Za-z]+", story.text.removesuffix(story.last_sentence))
        closing = re.findall("[A-Za-z]+", story.last_sentence)
        assert story.target.strip() in before
        assert story.target.strip() not in closing[:-1]


def test_story_holds_other_candidates_for_the_answer(stories):
    values = {relation.name: set(relation.values) for relation in templates.RELATIONS}
    for story in stories:
        words = set(re.findall("[A-Za-z]+", story.text)) - {story.target.strip()}
        assert len(words & values[story.template.split(" | ")[0]]) >= 2


def test_last_sentence_does_not_tell_the_answer(stories):
    """The best guesser that sees only which key and which kind of answer are asked for."""
    keys = {word for relation in templates.RELATIONS for word in relation.keys}
    guesses: dict[tuple, Counter] = {}
    for story in generate(30_000, 8, "train"):
        guesses.setdefault(_question(story, keys), Counter())[story.target] += 1
    hits = sum(
        story.target == guesses.get(_question(story, keys), Counter({"": 1})).most_common(1)[0][0] for story in stories
    )
    assert hits / len(stories) < 0.25


def _question(story, keys) -> tuple:
    last = [word for word in re.findall("[A-Za-z]+", story.last_sentence)[:-1] if word in keys]
    return story.template.split(" | ")[0], last[-1]


def test_the_latest_or_first_fact_is_not_the_answer(stories):
    """Neither position in the story gives the answer away."""
    values = {relation.name: set(relation.values) for relation in templates.RELATIONS}
    first = last = 0
    for story in stories:
        words = re.findall("[A-Za-z]+", story.context)
        candidates = [word for word in words if word in values[story.template.split(" | ")[0]]]
        first += candidates[0] == story.target.strip()
        last += candidates[-1] == story.target.strip()
    assert first / len(stories) < 0.5
    assert last / len(stories) < 0.5


def test_dialogue_asks_for_facts_of_the_story(stories):
    for story in stories:
        assert len(story.turns) >= 2
        assert story.dialogue.startswith("User: ") and story.dialogue.endswith("\n\n")
        for turn in story.turns:
            assert turn.question.endswith("?")
            assert 1 <= len(turn.answer.split()) <= 2
            assert turn.answer.split()[-1] in re.findall("[A-Za-z]+", story.text)


def test_recalled_words_were_said_before(stories):
    for story in stories:
        assert story.text[story.recalls[-1] :] == story.target
        for start in story.recalls:
            word = re.match(r" ([A-Za-z]+)", story.text[start:])
            assert word and re.search(rf"\b{word[1]}\b", story.text[:start])


def test_lessons_are_short_and_end_with_a_recalled_word():
    for lesson in lessons(200, 1):
        assert len(lesson.text.split()) < 70
        assert lesson.target.strip() in re.findall("[A-Za-z]+", lesson.context)
        assert lesson.turns


def test_prompt_stops_where_the_assistant_speaks():
    story = generate(1, 9, "test")[0]
    assert story.prompt(0) == f"{story.text}.\n\nUser: {story.turns[0].question}\n\nAssistant:"
    assert f"Assistant: {story.turns[0].answer}\n\n" in story.prompt(1)


def test_an_update_replaces_the_value():
    """Stories that move the fact asked for end with the new value, and the old one is in the story too."""
    moved = [s for s in generate(3000, 10, "test") if " instead of the " in s.text]
    updated = [s for s in moved if re.search(rf"{s.target} instead of the \w+", s.text)]
    assert updated
    for story in updated:
        old = re.search(rf"{story.target} instead of the (\w+)", story.text)
        assert old is not None and old[1] != story.target.strip()


@pytest.mark.parametrize(("n", "split"), [(-1, "train"), (1, "dev")])
def test_bad_arguments_are_refused(n, split):
    with pytest.raises(RwkvlabError):
        generate(n, 0, split)
