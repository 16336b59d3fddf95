"""The suites that come with the package, as the files of the command line's settings tell them."""

from __future__ import annotations

from importlib import resources
from typing import Any, cast

from .descriptions import read_yaml
from .errors import SuiteError, unknown_name

FOLDER = ("conf", "suite")


def frozen_suite(name: str, kind: type) -> dict[str, Any]:
    """What a suite's file says of it: the arguments of its class.

    Args:
        kind: the class; other suites are not found.

    Raises:
        UnknownNameError: there is none of this name; those of this kind are listed.
    """
    files = resources.files("hadoppler").joinpath(*FOLDER).iterdir()
    told = {file.name.removesuffix(".yaml"): read_yaml(str(file), SuiteError) for file in files}
    mine = {key: values for key, values in sorted(told.items()) if values.pop("_target_").endswith(f".{kind.__name__}")}
    if name not in mine:
        raise unknown_name("suite", name, mine)
    return cast("dict[str, Any]", mine[name])
