"""Stage I's teacher: what CRITICAL PATH would do in every state that the student visits; all of its ties count."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from . import rollout_kernels as kernels
from .doppler import DopplerPolicy, Embeddings, Prepared, select_scores
from .policy import Trajectories

EARLIEST_START_COLUMN = kernels.COLUMNS.index("earliest_start")


def critical_path_loss(policy: DopplerPolicy, prepared: Prepared, trajectories: Trajectories) -> Tensor:
    """Cross-entropy of both policies to the teacher's choices in the states of the student's episodes (paper).

    The teacher takes a candidate of the largest b-level and a device where it can start earliest; the loss of a
    decision is minus the logarithm of the probability of all choices that tie.
    """
    found = policy.embeddings(prepared.inputs)
    seen = trajectories.tensors(policy.device)
    order, features = seen["order"].long(), seen["features"]
    loss = found.score.new_zeros(())
    if policy.halves != "place":
        loss = loss + _select_loss(found, prepared, trajectories, seen)
    if policy.halves != "select":
        logs = torch.log_softmax(policy.place_logits(found, order, seen["devices"].long(), features), dim=2)
        tied = (features[..., EARLIEST_START_COLUMN] > 0) & (features[..., kernels.ALLOWED_COLUMN] > 0)
        loss = loss - torch.logsumexp(logs.masked_fill(~tied, -1e9), dim=2).mean()
    return loss


def _select_loss(found: Embeddings, prepared: Prepared, trajectories: Trajectories, seen: dict[str, Tensor]) -> Tensor:
    records, order, score = trajectories.records, seen["order"].long(), found.score
    step, tied = tied_candidates(trajectories.order, records["ready"], records["ready_ptr"], prepared.ranks)
    logs, _ = select_scores(score, order, seen["ready"].long(), seen["ready_ptr"].long())
    normaliser = score[order] - logs
    weight = score.double().exp()[torch.from_numpy(tied).to(score.device)]
    total = score.new_zeros(order.numel(), dtype=torch.float64)
    total = total.index_add(0, torch.from_numpy(step).to(score.device), weight)
    return (normaliser - total.log().view(order.shape)).mean().float()


def tied_candidates(
    order: np.ndarray, ready: np.ndarray, pointer: np.ndarray, ranks: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The candidates of the largest rank at every step of every episode, as (b * N + step, operation) int64 pairs."""
    count = _list_ties(order, ready, pointer, ranks, np.empty(0, np.int64), np.empty(0, np.int64))
    step, tied = np.empty(count, np.int64), np.empty(count, np.int64)
    _list_ties(order, ready, pointer, ranks, step, tied)
    return step, tied


@njit(cache=True, nogil=True)
def _list_ties(order, ready, pointer, ranks, step, tied):  # type: ignore[no-untyped-def]
    """Count the pairs, and write them where there is room; a linked list per rank holds the candidates."""
    episodes, n = order.shape
    levels = int(ranks.max()) + 1
    head = np.empty(levels, np.int64)
    after, before = np.empty(n, np.int64), np.empty(n, np.int64)
    count = 0
    for b in range(episodes):
        head[:] = -1
        top, known = -1, 0
        for t in range(n):
            for i in range(known, pointer[b, t + 1]):
                v = ready[b, i]
                level = int(ranks[v])
                after[v], before[v] = head[level], -1
                if head[level] >= 0:
                    before[head[level]] = v
                head[level] = v
                top = max(top, level)
            known = pointer[b, t + 1]
            while head[top] < 0:
                top -= 1
            v = head[top]
            while v >= 0:
                if count < step.shape[0]:
                    step[count], tied[count] = b * n + t, v
                count += 1
                v = after[v]
            v = order[b, t]
            if before[v] >= 0:
                after[before[v]] = after[v]
            else:
                head[int(ranks[v])] = after[v]
            if after[v] >= 0:
                before[after[v]] = before[v]
    return count
