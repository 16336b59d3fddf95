"""A user's model as a training step that can be timed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ...envs.errors import HadopplerError, MissingExtraError
from ...envs.placement.readers.factory import current_folder, find_factory, is_keywords

if TYPE_CHECKING:
    import torch

OPTIMIZERS = {"sgd": ("SGD", {"lr": 1e-4, "momentum": 0.9}), "adam": ("Adam", {"lr": 1e-4})}
"""Name -> class in ``torch.optim`` and its options; a small rate keeps numbers finite, and costs the same."""


class ProfileError(HadopplerError):
    """A model, a device or a file of throughputs cannot be used for measurements."""


class TrainingStep:
    """Inputs to the device, forward, loss, backward, optimiser: once per call.

    Args:
        name: ``package.module:function``, a function of the batch size (of one worker) that returns
            ``(module, args)``, or after these a dictionary of keyword arguments, or a function ``loss``, or
            both. ``loss`` maps the module's output to one number; without it the output's own ``loss``, or the
            mean of an output tensor, is taken.
        batch_size: samples a step.
        device: where the module is.
        optimizer: ``sgd`` (with momentum) or ``adam``.
        parallel: wraps the module, for several workers.

    Raises:
        ProfileError: the function, or what it returns, is no training step.
        GraphError: there is no function of this name.
    """

    def __init__(
        self,
        name: str,
        batch_size: int,
        device: torch.device,
        optimizer: str = "sgd",
        parallel: Callable[[torch.nn.Module], torch.nn.Module] | None = None,
    ) -> None:
        import torch

        self.name, self._device = name, device
        module, self._args, self._kwargs, self._loss = _make(name, batch_size)
        module = module.to(device).train()
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if not trained:
            raise ProfileError(f"{name}: the module has no parameters to train; return one that has.")
        self._module = module if parallel is None else parallel(module)
        kind, options = OPTIMIZERS[optimizer]
        self._optimizer = getattr(torch.optim, kind)(trained, **options)

    def __call__(self) -> None:
        """Do one step."""
        self._optimizer.zero_grad(set_to_none=True)
        output = self._module(*_moved(self._args, self._device), **_moved(self._kwargs, self._device))
        self._loss_of(output).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def try_once(self) -> None:
        """Do one of the first steps, with a user's mistake told in one sentence.

        Raises:
            ProfileError: it failed. Lack of GPU memory is passed on as ``torch.OutOfMemoryError``.
        """
        import torch

        try:
            self()
        except (HadopplerError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            reason = (str(error).strip().splitlines() or [""])[0]
            raise ProfileError(
                f"{self.name}: a first training step on {self._device} failed ({type(error).__name__}: {reason}); "
                "forward, loss and backward must run with what the function returns."
            ) from error

    def _loss_of(self, output: Any) -> torch.Tensor:
        import torch

        loss = output
        if self._loss is not None:
            loss = self._loss(output)
        elif isinstance(output, Mapping) and "loss" in output:
            loss = output["loss"]
        elif not isinstance(output, torch.Tensor) and hasattr(output, "loss"):
            loss = output.loss
        elif isinstance(output, torch.Tensor):
            loss = output.float().mean()
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            what = f"{list(loss.shape)} numbers" if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"
            raise ProfileError(
                f"{self.name}: the loss is {what}, expected one number; return (module, args, loss) with a function "
                "loss(output)."
            )
        if not loss.requires_grad:
            raise ProfileError(
                f"{self.name}: this is no training step, for the loss does not depend on the module's parameters; "
                "leave torch.no_grad and detach out."
            )
        return loss


def import_torch() -> Any:
    """The package, or a sentence that tells how to get it.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("Measuring a model needs torch; install hadoppler[torch].") from error
    return torch


def _make(
    name: str, batch_size: int
) -> tuple[torch.nn.Module, tuple[Any, ...], Mapping[str, Any], Callable[[Any], Any] | None]:
    """Call the user's function: module, arguments by position and by keyword, loss."""
    import torch

    with current_folder():
        function = find_factory(name)
        try:
            made = function(batch_size)
        except Exception as error:
            reason = (str(error).strip().splitlines() or [""])[0]
            raise ProfileError(
                f"{name}: calling it with the batch size {batch_size} failed ({type(error).__name__}: {reason}); it "
                "must take one argument, the batch size."
            ) from error
    parts = made if isinstance(made, tuple) else (made,)
    module, args, *others = parts if len(parts) > 1 else (None, None)
    kwargs = others.pop(0) if others and is_keywords(others[0]) else {}
    loss = others.pop(0) if others and callable(others[0]) else None
    if not isinstance(module, torch.nn.Module) or not isinstance(args, tuple | list) or others:
        shown = ", ".join(type(part).__name__ for part in parts) or "nothing"
        raise ProfileError(
            f"{name}: it returned {shown}; expected (module, args), (module, args, loss) or (module, args, kwargs, "
            "loss) with a torch.nn.Module, a tuple of its arguments and a function of its output."
        )
    return module, tuple(args), kwargs, loss


def _moved(value: Any, device: torch.device) -> Any:
    """The same with every tensor on the device; the copy is part of a step."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {key: _moved(item, device) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_moved(item, device) for item in value)
    return value
