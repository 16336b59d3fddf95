"""``instantiate``: errors of what it makes come through, however deep they are."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from hadoppler.envs.errors import HadopplerError
from hadoppler.scripts.application import CommandError, instantiate


class Refusal(HadopplerError):
    """What a target says of its arguments."""


def target(kind: str, depth: int) -> Any:
    """Raise an error so many calls of ``instantiate`` down."""
    if depth:
        return instantiate(OmegaConf.create({"_target_": "failing.target", "kind": kind, "depth": depth - 1}))
    raise {"refused": Refusal("no"), "broken": RuntimeError("broken"), "typed": ValueError("odd")}[kind]


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize(
    ("kind", "expected"), [("refused", Refusal), ("broken", RuntimeError), ("typed", CommandError)]
)
def test_errors_come_through(monkeypatch: pytest.MonkeyPatch, kind: str, expected: type[Exception], depth: int) -> None:
    monkeypatch.setitem(sys.modules, "failing", SimpleNamespace(target=target))
    with pytest.raises(expected):
        target(kind, depth)
