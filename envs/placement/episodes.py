"""B placement episodes of one problem at once: the interface for learners."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..arguments import check_whole
from ..errors import PlacementError
from . import episode_kernels as kernels
from .features import DEVICE_FEATURES, device_scales, time_scale
from .graph import Floats, Integers
from .placement import Placement
from .problem import MemoryMode, PlacementProblem
from .simulator import Order, makespans
from .topology import Contention


class OperationLists(NamedTuple):
    """One list of operations per episode: ``operations[pointer[b]:pointer[b + 1]]``."""

    pointer: NDArray[np.int64]
    operations: Integers


class EpisodeBatch:
    """B partial placements of one problem that advance together, one operation a step.

    A step costs time in proportion to the edges of the B operations that it places, whatever the size of
    the graph. No Python loop runs over operations or episodes::

        batch = EpisodeBatch(problem, 64)
        while not batch.done.all():
            pointer, operations = batch.candidates()
            chosen = operations[pointer[:-1]]                        # int [B]; here: the first candidate
            features = batch.device_features(chosen)                 # float32 [B, D, F]
            devices = features[:, :, EARLIEST_END].argmin(axis=1)    # int [B]
            batch.step(chosen, devices)
        times = batch.makespans()                                    # float64 [B], from the simulator

    Args:
        problem: what to place.
        episodes: B.
        scale: times among the features are divided by it; the best lower bound by default.

    Attributes:
        problem, episodes, scale: as given.
        arrays, scales: what compiled code needs beside the state: ``kernels.place(arrays, scales, state, ...)``.
        state: the arrays, described at ``EpisodeArrays``; read them, change them only through methods.
            ``state.order`` [B, N] and ``state.ready``, ``state.ready_ptr`` hold the whole history of
            choices and of candidate sets in 2 N numbers per episode: what left and what joined the set
            at each step.
    """

    def __init__(self, problem: PlacementProblem, episodes: int, scale: float | None = None) -> None:
        check_whole("episodes", episodes, PlacementError)
        self.problem = problem
        self.episodes = episodes
        self.scale = time_scale(problem) if scale is None else scale
        self._load()
        self.state = kernels.new_episodes(
            episodes,
            problem.n,
            problem.d,
            len(problem.input_bytes) if self.scales.track_memory else 0,
            len(problem.tensor_ptr) - 1,
            len(self.scales.group_size),
        )
        self.reset()

    def _load(self) -> None:
        self.arrays = self.problem.arrays
        for array in self.arrays:  # copies of a problem hold writable arrays: another type to Numba
            array.setflags(write=False)
        self.scales = device_scales(self.problem, self.scale)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("arrays", "scales")}

    def __setstate__(self, values: dict[str, Any]) -> None:
        vars(self).update(values)
        self._load()

    def reset(self, which: ArrayLike | None = None) -> None:
        """Start all episodes anew, or those marked in ``which`` (bool [B])."""
        marked = np.ones(self.episodes, np.bool_) if which is None else np.array(which, np.bool_)
        if marked.shape != (self.episodes,):
            raise PlacementError(f"which has shape {marked.shape}; expected one flag for {self.episodes} episodes.")
        kernels.reset_episodes(self.arrays, self.state, marked)

    @property
    def done(self) -> NDArray[np.bool_]:
        """[B] episodes in which every operation is placed."""
        return self.state.steps == self.problem.n

    @property
    def planned(self) -> Floats:
        """[B] end of the last booked operation: the makespan if transfers never wait and devices keep the order."""
        return self.state.planned.copy()

    @property
    def tracks_memory(self) -> bool:
        """Whether a device can overflow at all; if not, nothing is booked."""
        return bool(self.scales.track_memory)

    def memory_share(self) -> Floats:
        """[B, D] bytes booked / capacity, as if nothing were ever freed; 0 where there is no limit."""
        capacity = self.problem.topology.memory_bytes
        if not self.scales.track_memory:
            return np.zeros_like(self.state.used)
        return np.where(np.isfinite(capacity), self.state.used / np.maximum(capacity, 1.0), 0.0)

    def candidates(self) -> OperationLists:
        """The operations of each episode whose producers are all placed, in no particular order."""
        pointer = np.zeros(self.episodes + 1, np.int64)
        np.cumsum(self.state.candidates, out=pointer[1:])
        operations = np.empty(pointer[-1], np.int32)
        kernels.candidate_lists(self.state, pointer, operations)
        return OperationLists(pointer, operations)

    def new_candidates(self) -> OperationLists:
        """The operations that the last step of each episode made candidates; after a reset, the entries."""
        pointer = np.empty(self.episodes + 1, np.int64)
        started = self.state.ready_ptr[np.arange(self.episodes), self.state.steps + 1]
        room = int((started - self.state.ready_ptr[np.arange(self.episodes), self.state.steps]).sum())
        operations = np.empty(room, np.int32)
        kernels.new_candidates(self.state, pointer, operations)
        return OperationLists(pointer, operations)

    def device_features(self, operations: ArrayLike, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """float32 [B, D, F]: the devices as one candidate of each episode sees them (``DEVICE_FEATURES``).

        Args:
            operations: int [B]; -1 gives zeros, for finished episodes.
            out: array to fill instead of a new one.

        Raises:
            PlacementError: an operation is no candidate.
        """
        chosen = self._per_episode(operations, "operations")
        if out is None:
            out = np.empty((self.episodes, self.problem.d, len(DEVICE_FEATURES)), np.float32)
        wrong = kernels.chosen_features(self.arrays, self.scales, self.state, chosen, out)
        if wrong >= 0:
            raise PlacementError(
                f"{self.problem.graph.title}: operation number {chosen[wrong]} is no candidate of episode {wrong}."
            )
        return out

    def candidate_features(self, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """float32 [B, N, D, F] device features of all candidates, zeros elsewhere; for small graphs."""
        if out is None:
            out = np.zeros((self.episodes, self.problem.n, self.problem.d, len(DEVICE_FEATURES)), np.float32)
        kernels.candidate_features(self.arrays, self.scales, self.state, out)
        return out

    def legal_actions(self, out: NDArray[np.int8] | None = None) -> NDArray[np.int8]:
        """int8 [B, N, D]: 1 for candidates on allowed devices; (0, 0) alone in finished episodes."""
        if out is None:
            out = np.zeros((self.episodes, self.problem.n, self.problem.d), np.int8)
        kernels.legal_masks(self.scales, self.state, out)
        return out

    def step(self, operations: ArrayLike, devices: ArrayLike) -> None:
        """Place operation ``operations[b]`` on ``devices[b]`` (int [B] each); operation -1 leaves an episode alone.

        Raises:
            PlacementError: an operation is no candidate, or may not use the device; nothing is placed.
        """
        chosen, targets = self._per_episode(operations, "operations"), self._per_episode(devices, "devices")
        self.check(chosen, targets)
        self.advance(chosen, targets, chosen >= 0, replace=False)

    def is_legal(self, episode: int, operation: int, device: int) -> bool:
        """Whether the operation is a candidate of the episode and may use the device."""
        return bool(kernels.is_legal(self.scales, self.state, episode, operation, device))

    def legal_action(self, episode: int, operation: int, device: int) -> tuple[int, int]:
        """The next candidate from ``operation`` upward and its next allowed device, both cyclic."""
        v, there = kernels.legal_action(self.scales, self.state, episode, operation, device)
        return int(v), int(there)

    def check(self, operations: NDArray[np.int64], devices: NDArray[np.int64]) -> None:
        """Raise ``PlacementError`` for the first illegal action; operation -1 is left out."""
        legal = (operations >= -1) & (operations < self.problem.n) & (devices >= 0) & (devices < self.problem.d)
        rows, v = np.arange(self.episodes), np.where(legal, operations, 0)
        legal &= (self.state.slot[rows, v] >= 0) & self.scales.allowed[v, np.where(legal, devices, 0)]
        wrong = np.flatnonzero(~legal & (operations != -1))
        if wrong.size:
            b = int(wrong[0])
            raise PlacementError(
                f"{self.problem.graph.title}: operation number {operations[b]} cannot be placed on device "
                f"{devices[b]} now; take a candidate and a device that it may use."
            )

    def advance(
        self,
        operations: NDArray[np.int64],
        devices: NDArray[np.int64],
        active: NDArray[np.bool_],
        *,
        replace: bool,
    ) -> NDArray[np.bool_]:
        """Place what is legal in the active episodes and return which actions [B] were not.

        Illegal actions are replaced by the next legal one (``legal_action``) if ``replace``, else left out.
        """
        illegal = np.empty(self.episodes, np.bool_)
        kernels.advance(self.arrays, self.scales, self.state, operations, devices, active, replace, illegal)
        return illegal

    def makespans(
        self,
        *,
        rows: ArrayLike | None = None,
        order: Order = "fifo",
        contention: Contention | None = None,
        noise: float = 0.0,
        seed: int = 0,
        memory: MemoryMode | None = None,
    ) -> Floats:
        """Simulated makespans of the finished placements, [B] or one per number in ``rows``.

        Options as of ``simulate``; under ``priority`` the order of choice is the priority. A device that
        overflows costs the simulator's penalty unless ``memory`` says otherwise.

        Raises:
            PlacementError: a placement is not finished.
        """
        chosen = np.arange(self.episodes) if rows is None else np.asarray(rows)
        if not self.done[chosen].all():
            raise PlacementError(f"{self.problem.graph.title}: an episode is not finished; it has no makespan yet.")
        return makespans(
            self.problem,
            self.state.assignment[chosen],
            order=order,
            priority=self.state.order[chosen] if order == "priority" else None,
            contention=contention,
            noise=noise,
            seed=seed,
            memory=memory or ("penalty" if self.problem.memory == "error" else self.problem.memory),
        )

    def placement(self, episode: int = 0, **more: Any) -> Placement:
        """The finished placement of one episode; ``more`` are fields of ``Placement``."""
        if not self.done[episode]:
            raise PlacementError(f"{self.problem.graph.title}: episode {episode} is not finished.")
        return Placement(self.state.assignment[episode].copy(), self.state.order[episode].copy(), **more)

    def _per_episode(self, values: ArrayLike, what: str) -> NDArray[np.int64]:
        array = np.asarray(values)
        if array.shape != (self.episodes,) or array.dtype.kind not in "iu":
            raise PlacementError(
                f"{what} has shape {array.shape} and type {array.dtype}; expected one whole number for each of "
                f"{self.episodes} episodes."
            )
        return np.ascontiguousarray(array, dtype=np.int64)
