"""What a job trains: a model, its data, one step, and how good the result is. A user's own job is such a class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ...envs.errors import HadopplerError, UnknownNameError, unknown_name
from ...envs.placement.readers.factory import current_folder, find_factory

if TYPE_CHECKING:
    import torch

    Tensors = tuple[torch.Tensor, ...]


class TrainingJobError(HadopplerError):
    """A training job cannot be made, or its own code failed."""


class Data(NamedTuple):
    """Samples to train on and held-out ones: tensors whose first dimension counts samples."""

    train: Tensors
    held_out: Tensors


class TrainingJob(ABC):
    """One kind of training; derive from it and give ``task=package.module:Class``.

    Everything random (the first weights, drop-out) comes from torch's generator, which is seeded before every call, so
    that a step depends on nothing but its number.

    Attributes:
        batch_size: samples of one worker's step, where the job's line in the workload names none.
        quality: name of the figure of ``evaluate`` that counts.
        higher_is_better: whether more of it is.
    """

    batch_size: int = 32
    quality: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True

    @abstractmethod
    def model(self) -> torch.nn.Module:
        """A new model with random weights."""

    @abstractmethod
    def data(self) -> Data:
        """The samples; the same in every process."""

    @abstractmethod
    def step(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        """The loss of a batch, a mean over its samples; gradients and the optimiser are the caller's."""

    @abstractmethod
    def evaluate(self, model: torch.nn.Module, samples: Tensors) -> dict[str, float]:
        """Figures of merit on held-out samples; the model is in evaluation mode, without gradients."""

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """What moves the weights; Adam by default."""
        import torch

        return torch.optim.Adam(model.parameters(), lr=1e-3)

    def learning_rate(self, step: float) -> float:
        """Factor on the optimiser's rates at a global step of the job; 1 by default."""
        return 1.0


TASKS = {
    "digits": "digits:Digits",
    "language": "language:Language",
    "translation": "translation:Translation",
    "recommendation": "recommendation:Recommendation",
    "diabetes": "diabetes:Diabetes",
    "cifar10": "folders:Cifar10",
    "text": "folders:Text",
}
"""Name -> module of ``tasks`` and class."""


@dataclass(frozen=True)
class JobSpec:
    """What a worker must know of a job.

    Attributes:
        id: of the job.
        task: a name of ``TASKS``, or ``package.module:Class``.
        steps: to be done in all; every worker of a gang counts its own.
        workers: of a gang.
        batch_size: samples of a worker's step.
        seed: of weights, of the order of samples, of drop-out.
        options: arguments of the task's class.
    """

    id: str
    task: str
    steps: int
    workers: int = 1
    batch_size: int = 32
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)


def make_training_job(task: str, options: Mapping[str, Any] | None = None) -> TrainingJob:
    """A training job by its name.

    Raises:
        UnknownNameError: there is no task of this name.
        TrainingJobError: the class cannot be made with these options, or is no ``TrainingJob``.
        GraphError: there is no class of a user's name.
    """
    if ":" not in task and task not in TASKS:
        error = unknown_name("training task", task, TASKS)
        raise UnknownNameError(f"{error} One's own class is named as package.module:Class.")
    with current_folder():
        name = task if ":" in task else f"hadoppler.real_system.cluster.tasks.{TASKS[task]}"
        found = find_factory(name)
        try:
            made = found(**dict(options or {}))
        except HadopplerError:
            raise
        except Exception as error:
            raise TrainingJobError(
                f"task {task}: it cannot be made with the options {dict(options or {})} "
                f"({type(error).__name__}: {error})."
            ) from error
    if not isinstance(made, TrainingJob):
        raise TrainingJobError(
            f"task {task}: it makes a {type(made).__name__}, expected a TrainingJob; derive from it."
        )
    return made
