"""Two made-up languages and the rules between them: what the task ``translation`` learns.

A source sentence is ``determiner [adjective] noun verb determiner [adjective] noun [adverb]``. Its translation begins
with the adverb, ends with the verb, puts determiner and adjective behind their noun and a particle behind the object.
Nouns have one of two genders, to be learned noun by noun; determiners and adjectives agree with the gender and number
of their noun, the verb with the number of the subject.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

DETERMINERS, ADJECTIVES, NOUNS, VERBS, ADVERBS = 2, 40, 80, 40, 8
PAD, BEGIN, END = 0, 1, 2
SOURCE_LENGTH, TARGET_LENGTH = 8, 11
"""Words of the longest sentence; in the target with ``BEGIN`` and ``END``."""


def _ranges(*sizes: int) -> list[int]:
    """First numbers of consecutive ranges of words; the first three numbers are taken."""
    return [int(first) for first in 3 + np.cumsum([0, *sizes])]


_SOURCE = _ranges(DETERMINERS, ADJECTIVES, 2 * NOUNS, VERBS, ADVERBS)
_TARGET = _ranges(4 * DETERMINERS, 4 * ADJECTIVES, 2 * NOUNS, 2 * VERBS, ADVERBS, 1)
SOURCE_WORDS, TARGET_WORDS = _SOURCE[-1], _TARGET[-1]


def sentence_pair(rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """A random sentence and its translation, as numbers of words."""
    determiner, adjective, noun, verb, adverb = _SOURCE[:5]
    determiner_, adjective_, noun_, verb_, adverb_, particle_ = _TARGET[:6]
    source, phrases, numbers = list[int](), list[list[int]](), list[int]()
    action, manner = int(rng.integers(VERBS)), int(rng.integers(2 * ADVERBS))
    for place in range(2):
        which, what, number = int(rng.integers(DETERMINERS)), int(rng.integers(NOUNS)), int(rng.integers(2))
        like = int(rng.integers(2 * ADJECTIVES))  # every other noun has none
        form = 2 * (what % 2) + number  # gender and number
        described = like < ADJECTIVES
        source += [determiner + which, *([adjective + like] if described else []), noun + 2 * what + number]
        source += [verb + action] if place == 0 else []
        adjectives = [adjective_ + 4 * like + form] if described else []
        phrases.append([noun_ + 2 * what + number, *adjectives, determiner_ + 4 * which + form])
        numbers.append(number)
    often = manner < ADVERBS
    source += [adverb + manner] if often else []
    target = [adverb_ + manner] if often else []
    return source, [*target, *phrases[0], *phrases[1], particle_, verb_ + 2 * action + numbers[0]]


def corpus(sentences: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Different sentences [N, SOURCE_LENGTH] and their translations [N, TARGET_LENGTH], filled up with ``PAD``."""
    rng, pairs = np.random.default_rng(seed), dict[tuple[int, ...], list[int]]()
    while len(pairs) < sentences:
        source, target = sentence_pair(rng)
        pairs[tuple(source)] = [BEGIN, *target, END]
    sources = np.full((sentences, SOURCE_LENGTH), PAD, dtype=np.int64)
    targets = np.full((sentences, TARGET_LENGTH), PAD, dtype=np.int64)
    for row, (words, translated) in enumerate(pairs.items()):
        sources[row, : len(words)] = words
        targets[row, : len(translated)] = translated
    return sources, targets
