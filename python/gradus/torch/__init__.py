# SPDX-License-Identifier: Apache-2.0
"""Gradus for PyTorch. Importing this module registers the backend "gradus" of torch.distributed,
for tensors on the CPU:

    import gradus.torch
    torch.distributed.init_process_group("gradus")

It also has Horovod's interface, for programs that are written for that (docs/horovod.md):

    import gradus.torch as hvd
    hvd.init()

ExactOptimizer trains to the same bits with any number of workers, and gradus.torch.ps has models
whose parameters are on parameter servers. docs/python.md is the guide."""
from typing import TYPE_CHECKING, Any, List

from ._c10d import ProcessGroup, Work, monitored_barrier

if TYPE_CHECKING:
    from ._interface import *  # noqa: F401,F403


def __getattr__(name: str) -> Any:
    """What is not the backend is loaded with the first of its names: every program that names the
    backend pays for this import."""
    if name.startswith("_") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import _interface
    found = {one: getattr(_interface, one) for one in _interface.__all__}
    globals().update(found, __all__=["ProcessGroup", "Work", "monitored_barrier", *found])
    if name not in globals():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals()[name]


def __dir__() -> List[str]:
    return sorted({*globals(), *__getattr__("__all__")})
