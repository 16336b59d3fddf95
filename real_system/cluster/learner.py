"""A training job at work: its model, its optimiser, one step at a time, and its state as bytes.

A step depends on the state and on its number, on nothing else: torch's generator is seeded with the number before it,
and so are the samples chosen. A run that goes on from a saved state is therefore the unbroken run, bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ...envs.errors import CheckpointError, HadopplerError, MissingExtraError
from .batches import batch_indices
from .gang_sums import copy_back, flatten, largest
from .job_checks import checked_data, checked_loss, refuse_infinite
from .state import State, pack, plain, unpack
from .training_job import Data, JobSpec, TrainingJobError, make_training_job

if TYPE_CHECKING:
    import torch

    from .gang_sums import Reduce
    from .training_job import Tensors


__all__ = ["Learner", "State", "pack", "unpack"]


class Learner:
    """A job's model, made from its seed, and how it is trained.

    Args:
        spec: the job.
        device: of torch.

    Attributes:
        job, data, model, optimizer: what the job's class has made.
        steps: batches trained, those of other ranks included.

    Raises:
        TrainingJobError: the job's own code failed, or what it returned cannot be used.
        UnknownNameError, GraphError: there is no such task.
        MissingExtraError: it needs a package that is not installed.
    """

    def __init__(self, spec: JobSpec, device: str = "cpu") -> None:
        torch = _import_torch()
        self.spec, self.device, self.steps = spec, device, 0
        self.job = make_training_job(spec.task, spec.options)
        with self._user_code("its data"):
            torch.manual_seed(spec.seed)
            self.data = _on_device(checked_data(self.job.data()), device)
        with self._user_code("its model"):
            torch.manual_seed(spec.seed)
            self.model = self.job.model().to(device)
            refuse_infinite(self.model)
        with self._user_code("its optimizer"):
            self.optimizer = self.job.optimizer(self.model)
        self._parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def step(
        self, at: int, width: int, share: slice, reduce: Reduce | None = None, rate_at: float | None = None
    ) -> float:
        """One step of a gang, as seen by one rank.

        Batches ``at`` to ``at + width - 1`` together are one large batch, and this rank has the samples ``share`` of
        it. Losses are weighted by samples, so that what ``reduce`` adds up is the gradient of the large batch.

        Args:
            at: number of the first batch.
            width: batches of the step.
            share: this rank's samples, from 0 to width * batch size; may be empty.
            reduce: adds up a buffer over the ranks; None where there is one.
            rate_at: position of the learning rate; None: ``at``.

        Returns:
            Loss of the large batch, before the step.

        Raises:
            TrainingJobError: the job's code failed, or the loss is not finite; the weights are as they were.
        """
        loss = self._backward(at, width, share)
        if reduce is not None:
            loss = self._add_up(loss, reduce)
        if not math.isfinite(loss):
            raise TrainingJobError(
                f"{self._name}: the loss is {loss} at batch {at}; lower the learning rate, or look at the samples."
            )
        with self._user_code(f"the optimizer at batch {at}"), self._rate(at if rate_at is None else rate_at):
            self.optimizer.step()
        self.steps += width
        return loss

    def batch(self, at: int, width: int = 1, share: slice = slice(None)) -> Tensors:
        """Training samples of batches ``at`` to ``at + width - 1``, or the part of a rank."""
        import torch

        train = self.data.train
        chosen = batch_indices(len(train[0]), self.spec.batch_size, self.spec.seed, at, width)[share]
        index = torch.from_numpy(chosen).to(self.device)
        return tuple(part[index] for part in train)

    def loss(self, batch: Tensors, doing: str = "its step") -> torch.Tensor:
        """The job's loss of a batch, one number with a gradient.

        Raises:
            TrainingJobError: the job's code failed, or returned something else.
        """
        with self._user_code(doing):
            return checked_loss(self.job.step(self.model, batch))

    def evaluate(self) -> dict[str, float]:
        """Figures of merit on the held-out samples.

        Raises:
            TrainingJobError: the job's code failed, or the figure that counts is missing.
        """
        import torch

        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        try:
            with self._user_code("evaluate"), torch.no_grad():
                torch.manual_seed(self.spec.seed)
                found = {
                    name: float(value) for name, value in self.job.evaluate(self.model, self.data.held_out).items()
                }
        finally:
            for module, mode in modes:
                module.training = mode
        if self.job.quality not in found:
            raise TrainingJobError(
                f"{self._name}: evaluate returned {', '.join(found) or 'nothing'}; expected {self.job.quality!r}, the "
                "class's quality, too."
            )
        return found

    def state(self) -> State:
        """A copy of what is needed to go on.

        Raises:
            CheckpointError: the optimiser keeps something that cannot be saved.
        """
        return {
            "model": plain(self.model.state_dict()),
            "optimizer": plain(self.optimizer.state_dict()),
            "steps": self.steps,
        }

    def load(self, state: State) -> None:
        """Go on from a state, which is not altered.

        Raises:
            CheckpointError: it is not of this job's model and optimiser.
        """
        copied = plain(state)
        try:
            self.model.load_state_dict(copied["model"])
            self.optimizer.load_state_dict(copied["optimizer"])
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{self._name}: the state does not fit its model ({_reason(error)}); was the task changed?"
            ) from error
        self.steps = int(copied["steps"])

    def merge_buffers(self, reduce: Reduce, part: float) -> None:
        """Make the buffers of all ranks one, before a state is taken: ranks have seen different samples.

        Buffers of floating and complex numbers (running means and variances of BatchNorm) become their mean, weighted
        by the ranks' samples; integers and truth values their largest (our choice).

        Args:
            reduce: adds up over the ranks.
            part: this rank's part of the samples; all parts together are 1.
        """
        averaged: list[torch.Tensor] = []
        counters: list[torch.Tensor] = []
        for buffer in self.model.buffers():
            if buffer.numel():
                (averaged if buffer.is_floating_point() or buffer.is_complex() else counters).append(buffer)
        if averaged:
            flat = flatten(averaged).double() * part
            reduce(flat)
            copy_back(flat, averaged)
        if counters:
            copy_back(largest(flatten(counters).long(), reduce), counters)

    @property
    def _name(self) -> str:
        return f"job {self.spec.id!r} (task {self.spec.task})"

    def _backward(self, at: int, width: int, share: slice) -> float:
        """Gradients of this rank's part of the loss, and that part."""
        import torch

        self.optimizer.zero_grad(set_to_none=True)
        batch, total = self.batch(at, width, share), width * self.spec.batch_size
        if not len(batch[0]):
            return 0.0
        torch.manual_seed(_mixed(self.spec.seed, at, share.start or 0))
        loss = self.loss(batch, f"its step at batch {at}")
        if len(batch[0]) < total:
            loss = loss * (len(batch[0]) / total)
        with self._user_code(f"the gradient at batch {at}"):
            loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def _add_up(self, loss: float, reduce: Reduce) -> float:
        """Sum gradients and loss over the ranks; a parameter without gradient on every rank stays so."""
        import torch

        parameters = self._parameters
        parts = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in parameters]
        seen = [float(p.grad is not None) for p in parameters]
        told = torch.tensor([*seen, loss], dtype=torch.float32, device=self.device)
        flat = flatten([*parts, told])
        reduce(flat)
        *counts, loss = flat[-len(told) :].tolist()
        copy_back(flat, parts)
        for parameter, gradient, count in zip(parameters, parts, counts, strict=True):
            parameter.grad = gradient if count else None
        return float(loss)

    @contextmanager
    def _rate(self, position: float) -> Iterator[None]:
        """The learning rates at a step; afterwards those of the job's optimiser again, which states carry."""
        groups = self.optimizer.param_groups
        rates, factor = [group["lr"] for group in groups], float(self.job.learning_rate(position))
        if not 0 <= factor < math.inf:
            raise TrainingJobError(
                f"learning_rate returned {factor} at step {position:g}; expected a factor from 0 up."
            )
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * factor
        try:
            yield
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate

    @contextmanager
    def _user_code(self, doing: str) -> Iterator[None]:
        """Whatever goes wrong in it becomes one sentence."""
        try:
            yield
        except HadopplerError as error:
            if isinstance(error, MissingExtraError):
                raise
            raise TrainingJobError(f"{self._name}: {error}") from error
        except Exception as error:
            raise TrainingJobError(f"{self._name}: {doing} failed ({_reason(error)}).") from error


def _import_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("Training jobs need torch; install hadoppler[cluster].") from error
    return torch


def _reason(error: Exception) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[0]}"


def _mixed(*numbers: int) -> int:
    """One seed of several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def _on_device(data: Data, device: str) -> Data:
    return Data(*(tuple(tensor.to(device) for tensor in part) for part in data))
