"""Random numbers for compiled loops: from what they are drawn for alone, or from the state of a stream."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def uniform(seed, sample, item):  # type: ignore[no-untyped-def]
    """A number in (0, 1) that depends on the three integers alone (splitmix64), so on no thread."""
    z = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15)
    for part in (np.uint64(sample), np.uint64(item)):
        z = (z ^ part) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (np.float64(z >> np.uint64(11)) + 0.5) / 9007199254740992.0


@njit(cache=True, nogil=True)
def lognormal(sigma, seed, sample, item):  # type: ignore[no-untyped-def]
    """Lognormal factor of mean 1; ``sigma`` is the deviation of its logarithm (Box-Muller)."""
    if sigma == 0.0:
        return 1.0
    radius = np.sqrt(-2.0 * np.log(uniform(seed, sample, 2 * item)))
    normal = radius * np.cos(2.0 * np.pi * uniform(seed, sample, 2 * item + 1))
    return np.exp(sigma * normal - 0.5 * sigma * sigma)


@njit(cache=True, nogil=True, inline="always")
def draw(random, stream):  # type: ignore[no-untyped-def]
    """Next uniform number in [0, 1) of a stream (xorshift64*)."""
    x = random[stream]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    random[stream] = x
    return np.float64((x * np.uint64(2685821657736338717)) >> np.uint64(11)) / 9007199254740992.0
