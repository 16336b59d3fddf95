"""Episodes of DOPPLER's policy in one compiled loop: no call of Python, no gradient, per decision.

The network's weights come as arrays. What depends on an operation alone (its score, its part of the first layer)
is computed beforehand; a decision costs the operation's edges and one small product per device.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ...envs.placement import episode_kernels as kernels
from ...envs.placement.features import (
    AFFINITY,
    ALLOWED,
    BANDWIDTH,
    COMPUTED,
    EARLIEST_END,
    EARLIEST_START,
    INPUT_COMPUTED,
    INPUT_END,
    INPUT_START,
    INPUTS_HERE,
    MEMORY,
    RECEIVED,
    SENT,
    SIBLINGS,
    SPEED,
    write_device_features,
)
from ...envs.placement.fifo_kernel import sift_down, sift_up
from ...envs.placement.random_draws import draw

COLUMNS = (
    "later_start",
    "later_end",
    "earliest_start",
    "earliest_end",
    "more_computed",
    "input_computed",
    "after_input_start",
    "after_input_end",
    "memory",
    "speed",
    "bandwidth",
    "inputs_here",
    "affinity",
    "siblings",
    "sent",
    "received",
    "empty",
    "progress",
    "allowed",
)
"""The device features of the environment as the policy reads them: times relative to the best device, in mean
computations, as log(1 + x); flags of the earliest start and end; the share of the bound that has passed."""

ALLOWED_COLUMN = len(COLUMNS) - 1
F32 = np.float32
LARGEST_EXPONENT = 17.0
"""Scores are cut off here, so that the clocks of all candidates can be compared in double precision."""


class PolicyArrays(NamedTuple):
    """A policy's decisions as arrays: N operations, W hidden and V second hidden units."""

    score: NDArray[np.float64]
    """[N] of the choice of the operation"""
    jitter: float
    """A random number up to this is added to each score, once an episode: ties at random"""
    operation: NDArray[np.float32]
    """[N, W] each operation's part of the first layer, bias included"""
    placed: NDArray[np.float32]
    """[N, W] what an operation adds to the first layer of the device that it was placed on"""
    feature: NDArray[np.float32]
    """[F, W]"""
    hidden: NDArray[np.float32]
    """[W, V]"""
    hidden_bias: NDArray[np.float32]
    last: NDArray[np.float32]
    """[V]"""
    earliest_start: bool
    """The device is chosen by earliest start, ties at random, instead"""


class Choice(NamedTuple):
    """How to choose; see ``Exploration``."""

    select_temperature: float
    place_temperature: float
    epsilon: float


class Record(NamedTuple):
    """What episodes leave behind, by step."""

    devices: NDArray[np.int32]
    """[B, N]"""
    features: NDArray[np.float32]
    """[B, N, D, F], or [B, 0, D, F] if nobody will score them"""


@njit(cache=True, nogil=True)
def relative_features(raw, unit, out):  # type: ignore[no-untyped-def]
    """``COLUMNS`` [D, F] from the environment's device features [D, K]; ``unit`` is a mean computation / bound."""
    start, end, computed = np.inf, np.inf, np.inf
    sent, received, inputs = np.inf, np.inf, 0.0
    for device in range(raw.shape[0]):
        inputs += raw[device, INPUT_COMPUTED]
        if raw[device, ALLOWED] > 0:
            start = min(start, raw[device, EARLIEST_START])
            end = min(end, raw[device, EARLIEST_END])
        computed = min(computed, raw[device, COMPUTED])
        sent, received = min(sent, raw[device, SENT]), min(received, raw[device, RECEIVED])
    for device in range(raw.shape[0]):
        row, seen = out[device], raw[device]
        row[0] = np.log1p(F32(max(seen[EARLIEST_START] - start, 0.0) / unit))
        row[1] = np.log1p(F32(max(seen[EARLIEST_END] - end, 0.0) / unit))
        row[2] = 1.0 if seen[EARLIEST_START] <= start * (1.0 + 1e-6) else 0.0
        row[3] = 1.0 if seen[EARLIEST_END] <= end * (1.0 + 1e-6) else 0.0
        row[4] = np.log1p(F32((seen[COMPUTED] - computed) / unit))
        row[5] = seen[INPUT_COMPUTED] / inputs if inputs > 0 else 0.0
        row[6] = np.log1p(F32(max(seen[EARLIEST_START] - seen[INPUT_START], 0.0) / unit))
        row[7] = np.log1p(F32(max(seen[EARLIEST_START] - seen[INPUT_END], 0.0) / unit))
        row[8] = min(seen[MEMORY], F32(4.0))
        row[9] = seen[SPEED]
        row[10] = seen[BANDWIDTH]
        row[11] = seen[INPUTS_HERE]
        row[12] = seen[AFFINITY]
        row[13] = seen[SIBLINGS]
        row[14] = np.log1p(F32((seen[SENT] - sent) / unit))
        row[15] = np.log1p(F32((seen[RECEIVED] - received) / unit))
        row[16] = 1.0 if seen[COMPUTED] == 0 else 0.0
        row[17] = min(start, 4.0)
        row[18] = seen[ALLOWED]


@njit(cache=True, nogil=True)
def play(problem, scales, state, policy, choice, unit, random, first, last, record):  # type: ignore[no-untyped-def]
    """Play the episodes from ``first`` to ``last``, which were reset; ``random`` [B] are the states of their draws."""
    n, d = scales.allowed.shape
    width = policy.operation.shape[1]
    raw = np.zeros((d, RAW_COLUMNS), np.float32)
    seen = np.zeros((d, record.features.shape[3]), np.float32)
    total, logit = np.zeros((d, width), np.float32), np.zeros(d)
    first_layer, second_layer = np.zeros(width, np.float32), np.zeros(policy.hidden.shape[1], np.float32)
    heap, key = np.empty(n, np.int32), np.empty(n)
    keep = record.features.shape[1] > 0
    for b in range(first, last):
        total[:, :] = 0.0
        size, known, now = 0, 0, 0.0
        for step in range(n):
            for i in range(known, state.ready_ptr[b, step + 1]):
                w = state.ready[b, i]
                key[w] = _clock(policy, choice, random, b, w, now)
                sift_up(heap, 0, size, w, key)
                size += 1
            known = state.ready_ptr[b, step + 1]
            while state.slot[b, heap[0]] < 0:  # chosen evenly before
                size -= 1
                sift_down(heap, 0, size, heap[size], key)
            v = heap[0]
            if choice.epsilon > 0 and draw(random, b) < choice.epsilon:
                v = state.candidate[b, int(draw(random, b) * state.candidates[b])]
            elif choice.select_temperature > 0:
                now = key[v]
            write_device_features(problem, scales, state, b, v, raw)
            relative_features(raw, unit, seen)
            if choice.epsilon > 0 and draw(random, b) < choice.epsilon:
                logit[:] = 0.0
                device = _choose(logit, seen, 1.0, random, b)
            elif policy.earliest_start:
                for there in range(d):
                    logit[there] = 1.0 if seen[there, 2] > 0 else -1e9
                device = _choose(logit, seen, 1.0, random, b)
            else:
                place_logits(policy, v, total, seen, first_layer, second_layer, logit)
                device = _choose(logit, seen, choice.place_temperature, random, b)
            if keep:
                record.features[b, step] = seen
            record.devices[b, step] = device
            for unit_number in range(width):
                total[device, unit_number] += policy.placed[v, unit_number]
            kernels.place(problem, scales, state, b, v, device)


RAW_COLUMNS = 15
"""Number of the environment's device features."""


@njit(cache=True, nogil=True)
def follow(problem, scales, state, unit, orders, assignments, first, last, record):  # type: ignore[no-untyped-def]
    """Place as ``orders`` [B, N] and ``assignments`` [B, N] say and record what the policy would have seen.

    Returns the first episode where that is illegal, or -1.
    """
    n, d = scales.allowed.shape
    raw = np.zeros((d, RAW_COLUMNS), np.float32)
    for b in range(first, last):
        for step in range(n):
            v = orders[b, step]
            if not kernels.is_legal(scales, state, b, v, assignments[b, v]):
                return b
            write_device_features(problem, scales, state, b, v, raw)
            relative_features(raw, unit, record.features[b, step])
            record.devices[b, step] = assignments[b, v]
            kernels.place(problem, scales, state, b, v, assignments[b, v])
    return -1


@njit(cache=True, nogil=True, inline="always")
def _clock(policy, choice, random, b, v, now):  # type: ignore[no-untyped-def]
    """Key of a new candidate; the least one is chosen next.

    Sampling from a softmax over candidates is a race of exponential clocks with rates exp(score): clocks have no
    memory, so those that did not ring yet need not be drawn again when others join.
    """
    score = policy.score[v]
    if policy.jitter > 0:
        score += policy.jitter * draw(random, b)
    if choice.select_temperature == 0:
        return -score
    exponent = min(max(score / choice.select_temperature, -LARGEST_EXPONENT), LARGEST_EXPONENT)
    return now - np.log(1.0 - draw(random, b)) * np.exp(-exponent)


@njit(cache=True, nogil=True, fastmath=True)
def place_logits(policy, v, total, seen, first_layer, second_layer, logit):  # type: ignore[no-untyped-def]
    """Logit [D] of each device for operation v; ``total`` [D, W] holds the sums over what each device has."""
    width, second = policy.hidden.shape
    for device in range(seen.shape[0]):
        for w in range(width):
            first_layer[w] = policy.operation[v, w] + total[device, w]
        for f in range(seen.shape[1]):
            value = seen[device, f]
            if value != 0:
                for w in range(width):
                    first_layer[w] += value * policy.feature[f, w]
        for s in range(second):
            second_layer[s] = policy.hidden_bias[s]
        for w in range(width):
            value = first_layer[w]
            if value > 0:
                for s in range(second):
                    second_layer[s] += value * policy.hidden[w, s]
        answer = F32(0.0)
        for s in range(second):
            answer += max(second_layer[s], F32(0.0)) * policy.last[s]
        logit[device] = answer


@njit(cache=True, nogil=True, inline="always")
def _choose(logit, seen, temperature, random, b):  # type: ignore[no-untyped-def]
    """An allowed device: the one of the largest logit, or one drawn from the softmax."""
    best, device = -np.inf, -1
    for there in range(logit.shape[0]):
        if seen[there, ALLOWED_COLUMN] > 0:
            value = logit[there]
            if temperature > 0:  # Gumbel's trick
                value = value / temperature - np.log(-np.log(1.0 - draw(random, b)) + 1e-300)
            if value > best:
                best, device = value, there
    return device
