"""The learned policy as a scheduler: it decides greedily, whenever jobs or nodes came or went."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ...envs.cluster import Allocation, Cluster, ClusterView
from ...envs.cluster.features import observe_round
from ...envs.cluster.round_choices import RoundChoices
from .checkpoint import load_policy
from .network import ClusterNetwork


class LearnedScheduler:
    """The decision with the highest score, again and again, until no job can be given anything more.

    In a round with the same jobs and free GPUs as at the last decision all goes on, as in the training environment
    ``SequentialAllocation(every_round=False)``. All jobs are seen, however many there are.

    Args:
        checkpoint: file of a trained policy; None: the one that comes with the package.
        mixing: whether a gang may stand on several types.

    Raises:
        CheckpointError: the file is not there, or is no policy.
    """

    name = "learned"
    forks = False

    def __init__(self, checkpoint: str | Path | None = None, mixing: bool = True) -> None:
        self.network, _ = load_policy(checkpoint)
        self.mixes = mixing

    @classmethod
    def of(cls, network: ClusterNetwork, mixing: bool = True) -> LearnedScheduler:
        """With a network at hand, such as one in training."""
        scheduler = cls.__new__(cls)
        scheduler.network, scheduler.mixes = network, mixing
        return scheduler

    def reset(self, cluster: Cluster, round_s: float, rng: np.random.Generator) -> None:
        """Forget everything; nothing is drawn."""
        self._origin: float | None = None
        self._decided: tuple[ClusterView, Allocation] | None = None

    def schedule(self, view: ClusterView) -> Allocation:
        """Decide, or go on as before."""
        if self._origin is None:
            self._origin = float(view.arrival[0])
        if self._decided is not None:
            before, allocation = self._decided
            if len(allocation) and view.goes_on_from(before):
                return allocation
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # products this small are many times slower on several
        try:
            allocation = decide_round(self.network, view, self._origin, self.mixes)
        finally:
            torch.set_num_threads(threads)
        self._decided = view, allocation
        return allocation


@torch.no_grad()
def decide_round(network: ClusterNetwork, view: ClusterView, origin: float, mixing: bool) -> Allocation:
    """Greedy decisions of a network in one round."""
    choices = RoundChoices(view, len(view), mixing, False)
    rows, whole = observe_round(view, choices.held, origin, 0)
    known = network.encode(torch.from_numpy(rows)[None], torch.from_numpy(whole)[None])
    while choices.open:
        state, left = (torch.from_numpy(values)[None] for values in changes(choices))
        scores = network.decide(known, state, left, mixing)[0][0].numpy()
        action = best_decision(scores, choices.mask > 0, choices.options)
        choices.choose(*divmod(action, choices.options))
    return choices.allocation()[0]


def changes(choices: RoundChoices) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """What changes from decision to decision: [N, 2] decided on, rate of a mixed gang; [R] GPUs left / all."""
    state = np.stack((choices.status > 0, choices.mixed_rate), axis=1).astype(np.float32)
    return state, (choices.left / choices.view.cluster.gpus).astype(np.float32)


def best_decision(scores: NDArray[np.float32], legal: NDArray[np.bool_], options: int) -> int:
    """The decision with the highest score among those that give GPUs to a job, ties to the first.

    While there is one, nothing is skipped or closed: work done slowly, on GPUs that nobody else takes, is still done.
    """
    scores = np.where(legal, scores, -np.inf)
    scores[options - 1 :: options] = -np.inf
    return int(scores[:-1].argmax())
