"""Which samples a batch has: epochs in ever new orders, one after the other, cut into numbered batches.

Batch k of b samples is positions k b to (k + 1) b - 1 of the stream, so that batches of different numbers share no
sample within an epoch, whoever trains them, and a batch is the same on every worker and after every restart.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


def batch_indices(samples: int, batch_size: int, seed: int, first: int, width: int = 1) -> NDArray[np.int64]:
    """Numbers of the samples in batches ``first`` to ``first + width - 1``, one batch after the other.

    Args:
        samples: of the training data; at least 1.
        batch_size: samples of a batch; may exceed ``samples``.
        seed: of the orders, 0 or more.

    Returns:
        int64 [width * batch_size].
    """
    begin, end = first * batch_size, (first + width) * batch_size
    return np.concatenate(
        [
            _order(samples, seed, epoch)[max(begin - epoch * samples, 0) : end - epoch * samples]
            for epoch in range(begin // samples, -(-end // samples))
        ]
    )


@lru_cache(maxsize=16)
def _order(samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order of the samples in an epoch."""
    order = np.random.default_rng((seed, epoch)).permutation(samples)
    order.setflags(write=False)
    return order
