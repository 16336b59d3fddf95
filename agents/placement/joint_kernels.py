"""Episodes of the joint policy in compiled loops: every candidate is looked at on every device, at every step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ...envs.placement import episode_kernels as kernels
from ...envs.placement.features import write_device_features
from ...envs.placement.random_draws import draw
from .rollout_kernels import ALLOWED_COLUMN, RAW_COLUMNS, place_logits, relative_features


class Played(NamedTuple):
    """What a roll-out leaves behind, by step; the rest is in the episodes' state."""

    devices: NDArray[np.int32]
    """[B, N]"""
    log_probability: NDArray[np.float32]
    """[B, N] at temperature 1, of the operation and its device together"""


class Options(NamedTuple):
    """What could be chosen at each step, M operations over all S = B * N steps."""

    pointer: NDArray[np.int64]
    """[S + 1] step s had the candidates ``operations[pointer[s]:pointer[s + 1]]``"""
    operations: NDArray[np.int64]
    """[M]"""
    features: NDArray[np.float32]
    """[M, D, F] the devices as they saw them"""
    chosen: NDArray[np.int64]
    """[S] which of the M was chosen"""


@njit(cache=True, nogil=True)
def play(problem, scales, state, policy, temperature, epsilon, unit, random, out):  # type: ignore[no-untyped-def]
    """Play all episodes, which were reset; ``random`` [B] are the states of their draws.

    ``policy`` is a ``PolicyArrays`` whose score is not looked at; ``out`` is a ``Played``.
    """
    n, d = scales.allowed.shape
    raw, seen = np.zeros((d, RAW_COLUMNS), np.float32), np.zeros((d, policy.feature.shape[0]), np.float32)
    total, logits = np.zeros((d, policy.operation.shape[1]), np.float32), np.empty((n, d))
    first_layer, second_layer = np.zeros(total.shape[1], np.float32), np.zeros(len(policy.last), np.float32)
    for b in range(random.shape[0]):
        total[:, :] = 0.0
        for step in range(n):
            for i in range(state.candidates[b]):
                v = state.candidate[b, i]
                write_device_features(problem, scales, state, b, v, raw)
                relative_features(raw, unit, seen)
                place_logits(policy, v, total, seen, first_layer, second_layer, logits[i])
                for device in range(d):
                    if seen[device, ALLOWED_COLUMN] == 0:
                        logits[i, device] = -np.inf
            i, device = _choose(logits, state.candidates[b], temperature, epsilon, random, b)
            v = state.candidate[b, i]
            out.devices[b, step] = device
            out.log_probability[b, step] = _log_probability(logits, state.candidates[b], i, device)
            for w in range(total.shape[1]):
                total[device, w] += policy.placed[v, w]
            kernels.place(problem, scales, state, b, v, device)


@njit(cache=True, nogil=True)
def options(problem, scales, state, unit, orders, devices, out):  # type: ignore[no-untyped-def]
    """Play given episodes, which were reset, again and write what could be chosen into ``out``, an ``Options``."""
    n, d = scales.allowed.shape
    raw = np.zeros((d, RAW_COLUMNS), np.float32)
    for b in range(orders.shape[0]):
        for step in range(n):
            start, v = out.pointer[b * n + step], orders[b, step]
            for i in range(state.candidates[b]):
                out.operations[start + i] = state.candidate[b, i]
                write_device_features(problem, scales, state, b, state.candidate[b, i], raw)
                relative_features(raw, unit, out.features[start + i])
            out.chosen[b * n + step] = start + state.slot[b, v]
            kernels.place(problem, scales, state, b, v, devices[b, step])


@njit(cache=True, nogil=True)
def _choose(logits, count, temperature, epsilon, random, b):  # type: ignore[no-untyped-def]
    """A pair of the first ``count`` rows: the best, or one drawn from the softmax, or evenly from the legal ones."""
    evenly = epsilon > 0 and draw(random, b) < epsilon
    best, row, column = -np.inf, -1, -1
    for i in range(count):
        for device in range(logits.shape[1]):
            value = logits[i, device]
            if value == -np.inf:
                continue
            if evenly:
                value = 0.0
            elif temperature > 0:
                value /= temperature
            if evenly or temperature > 0:  # Gumbel's trick
                value -= np.log(-np.log(1.0 - draw(random, b)) + 1e-300)
            if value > best:
                best, row, column = value, i, device
    return row, column


@njit(cache=True, nogil=True)
def _log_probability(logits, count, row, column):  # type: ignore[no-untyped-def]
    peak, total = logits[:count].max(), 0.0
    for i in range(count):
        for device in range(logits.shape[1]):
            total += np.exp(logits[i, device] - peak)
    return logits[row, column] - peak - np.log(total)
