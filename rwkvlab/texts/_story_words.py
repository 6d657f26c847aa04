"""The words of the story world, one list per category, in a fixed order: the first ones are the generator's favourites.

Nouns and colours all start with a consonant sound, so that "a" is always the right article.
"""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PEOPLE = _words(
    """Mia Tom Ben Lena Paul Nora Sam Rosa Felix Ida Hugo Clara Max Ella Finn Greta Karl Julia Leo Marta Nils Olga Peter
    Ruth Simon Tina Victor Wanda Yusuf Zoe Bruno Dora Emil Gita Ivan Kira"""
)
OBJECTS = _words(
    """kite drum lamp book ball map box key clock hat ring basket bell bottle brush candle coin cup doll flag flute
    hammer kettle ladder letter mirror needle pencil pillow rope scarf shovel sword tent trumpet vase wallet violin
    compass lantern"""
)
PLACES = _words(
    """barn attic garden kitchen cellar library market school church tower forest harbour stable workshop bakery castle
    cave chapel garage hall hut museum office park pantry shed station studio theatre village hospital palace prison
    restaurant temple zoo"""
)
COLOURS = _words("red blue green white black yellow brown pink purple grey golden silver violet turquoise")
FOODS = _words(
    """soup bread cheese rice honey cake ham fish corn jam toast pasta salad stew pie pudding porridge bacon butter
    fruit chocolate popcorn mustard yoghurt"""
)
ANIMALS = _words(
    """cat dog horse rabbit parrot goat hen duck donkey mouse turtle fox sheep pony goose frog lizard hamster pigeon
    raven snail squirrel badger kitten"""
)

WEATHER = _words(
    """cold warm sunny rainy foggy windy quiet bright stormy snowy cloudy grim lovely dull misty mild chilly frosty hot
    dry damp gloomy peaceful pleasant"""
)
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = _words("January February March April May June July August September October November December")
LANDMARKS = _words(
    """bridge river fountain mill well gate square statue lake hill meadow canal railway beach field crossroads
    lighthouse monument pier vineyard orchard playground stadium waterfall"""
)
MOODS = _words(
    """happy tired curious cheerful hungry nervous proud calm sleepy busy thirsty patient lazy excited worried
    friendly serious silly noisy polite"""
)
GAMES = _words("chess cards tag football dominoes marbles darts hopscotch tennis charades checkers bowling")
TOPICS = _words(
    """music winter summer history dreams money travel science dancing painting football farming sailing cooking
    poetry magic spring autumn holidays neighbours"""
)
SOUNDS = _words(
    """thunder laughter singing whistling hammering barking ringing music knocking rain applause shouting
    splashing humming snoring drumming"""
)
