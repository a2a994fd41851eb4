# SPDX-License-Identifier: Apache-2.0
"""Gradus from Python: collectives and messages between the processes of a job, and clients of its
parameter servers.

    import gradus
    comm = gradus.Communicator()
    comm.allreduce(gradients)

docs/python.md is the guide. Nothing but Python and libgradus.so is needed."""
from . import errors
from ._buffers import DType
from ._communicator import ANY_SOURCE, ANY_TAG, Communicator, Message, alloc
from ._distribute import distribute, progress
from ._future import Future
from ._library import lib as _lib
from ._run import RankError, run
from .errors import *  # noqa: F401,F403
from .errors import Error, Status

__version__: str = _lib.gr_version().decode()
__all__ = ["ANY_SOURCE", "ANY_TAG", "Communicator", "DType", "Error", "Future", "Message",
           "RankError", "Status", "alloc", "distribute", "errors", "progress", "run"]
__all__ += [name for name in dir(errors) if name.endswith("Error")]


def __getattr__(name: str):
    """gradus.jobs and gradus.ps are loaded when they are first used."""
    if name in ("jobs", "ps"):
        import importlib
        return importlib.import_module("." + name, __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
