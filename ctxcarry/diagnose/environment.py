"""The surroundings: which frameworks are here, and in which versions."""

from __future__ import annotations

import platform
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final

import ctxcarry
from ctxcarry._catalog import CATALOG

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("Absent", "import_frameworks", "load_offered", "quiet_about_numpy", "versions")

_DISTRIBUTIONS: Final = (
    "torch",
    "triton",
    "spmd-types",
    "wrapt",
    "contextvars-extras",
    "torchtitan",
    "joblib",
    "ray",
)
_EXTRAS: Final = {"torch": "torch", "triton": "triton", "spmd_types": "spmd"}


@dataclass(frozen=True)
class Absent:
    """
    A framework whose contexts cannot be shown.

    Attributes:
        framework: The package.
        reason: Why: it is not installed, or how its import failed.
        fix: The command that installs it; None where that is not what is needed.
    """

    framework: str
    reason: str
    fix: str | None


def import_frameworks() -> tuple[tuple[Absent, ...], dict[str, str]]:
    """
    Import every framework of the catalog that is installed.

    Returns:
        The others, and the contexts whose module an installed framework has not,
        each with the reason.
    """
    absent: dict[str, Absent] = {}
    lacking: dict[str, str] = {}
    for module, _, names in CATALOG:
        framework = module.partition(".")[0]
        if framework in absent:
            continue
        try:
            with quiet_about_numpy():
                import_module(module)
        except ModuleNotFoundError as error:
            missing = error.name or module
            if missing == framework:
                absent[framework] = _not_installed(framework)
            elif missing.startswith(f"{framework}."):
                lacking |= dict.fromkeys(names, f"this {framework} has no module {missing}")
            else:
                absent[framework] = _broken(module, error)
        except Exception as error:  # noqa: BLE001 - a broken framework must not hide the others; told
            absent[framework] = _broken(module, error)
    return tuple(absent.values()), lacking


@contextmanager
def quiet_about_numpy() -> Iterator[None]:
    """Leave out what torch says when it is imported without NumPy, which is no fault here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Failed to initialize NumPy", UserWarning)
        yield


def load_offered() -> dict[str, str]:
    """Load the carriers of entry points; return those that failed, each with what happened."""
    try:
        ctxcarry.load_entry_points()
    except ctxcarry.CarrierError as error:
        return {error.carrier: str(error)}
    return {}


def versions() -> dict[str, str | None]:
    """Return the version of Python and of each package that matters; None if not installed."""
    found: dict[str, str | None] = {
        "python": platform.python_version(),
        "ctxcarry": ctxcarry.__version__,
    }
    for distribution in _DISTRIBUTIONS:
        try:
            found[distribution] = version(distribution)
        except PackageNotFoundError:
            found[distribution] = None
    return found


def _not_installed(framework: str) -> Absent:
    extra = _EXTRAS.get(framework)
    wanted = framework if extra is None else f"'ctxcarry[{extra}]'"
    return Absent(framework, "is not installed", f"pip install {wanted}")


def _broken(module: str, error: Exception) -> Absent:
    text = " ".join(f"import {module}: {type(error).__name__}: {error}".split())
    return Absent(module.partition(".")[0], f"cannot be imported ({text})", None)
