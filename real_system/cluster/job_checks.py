"""What the functions of a training job may return; anything else is told in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .training_job import Data, TrainingJobError

if TYPE_CHECKING:
    import torch


def checked_data(data: Data) -> Data:
    """Training and held-out samples, if they can be used.

    Raises:
        TrainingJobError: they cannot.
    """
    import torch

    if not isinstance(data, tuple) or len(data) != 2:
        raise TrainingJobError(f"data returned a {type(data).__name__}; expected Data(train, held_out).")
    for name, part in zip(Data._fields, data, strict=True):
        if not isinstance(part, tuple | list) or not part or not all(isinstance(t, torch.Tensor) for t in part):
            raise TrainingJobError(f"data's {name} is no tuple of tensors.")
        sizes = [len(tensor) if tensor.dim() else 0 for tensor in part]
        if min(sizes) < 1 or len(set(sizes)) > 1:
            raise TrainingJobError(
                f"data's {name} has tensors of {', '.join(map(str, sizes))} samples; expected the same number, at "
                "least 1, in the first dimension of each."
            )
    return Data(tuple(data[0]), tuple(data[1]))


def refuse_infinite(model: torch.nn.Module) -> None:
    """States with infinite numbers count as damaged, so a model must not begin with one.

    Raises:
        TrainingJobError: it does.
    """
    import torch

    for name, value in model.state_dict().items():
        if isinstance(value, torch.Tensor) and value.is_floating_point() and not value.isfinite().all():
            raise TrainingJobError(
                f"the new model's {name!r} is not finite; register a constant such as a mask with persistent=False."
            )


def checked_loss(loss: torch.Tensor) -> torch.Tensor:
    """The loss, if a step can be made of it, without dimensions.

    Raises:
        TrainingJobError: it is not one number, or has no gradient.
    """
    import torch

    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        what = f"{list(loss.shape)} numbers" if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"
        raise TrainingJobError(f"step returned {what}; expected a tensor with one number, the loss.")
    if not loss.requires_grad:
        raise TrainingJobError(
            "the loss of step does not depend on the model's parameters; leave no_grad and item out."
        )
    return loss.reshape(())
