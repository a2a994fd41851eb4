# SPDX-License-Identifier: Apache-2.0
"""Horovod's interface for TensorFlow 2, eagerly and inside of tf.function:

    import gradus.tensorflow as hvd
    hvd.init()
    tape = hvd.DistributedGradientTape(tape)

docs/keras.md is the guide; gradus.keras is for programs that call model.fit."""
from typing import Any

from .._engine import HorovodInternalError, HostsUpdatedInterrupt
from .._submit import Adasum, Average, Max, Min, Product, ReduceOp, Sum, barrier, join
from .._world import *  # noqa: F401,F403
from .._world import __all__ as _names_of_world
from . import elastic
from ._compression import Compression
from ._functions import *  # noqa: F401,F403
from ._functions import __all__ as _names_of_functions
from ._gradients import (DistributedGradientTape, DistributedOptimizer,
                         PartialDistributedGradientTape)
from ._ops import *  # noqa: F401,F403
from ._ops import __all__ as _names_of_ops

__all__ = ["Adasum", "Average", "Compression", "DistributedGradientTape", "DistributedOptimizer",
           "HorovodInternalError", "HostsUpdatedInterrupt", "Max", "Min",
           "PartialDistributedGradientTape", "Product", "ReduceOp", "Sum", "barrier", "elastic",
           "join"]
__all__ += _names_of_functions + _names_of_ops + _names_of_world


def __getattr__(name: str) -> Any:
    """What is of Keras is loaded when it is asked for: until then the program may say which Keras
    it is."""
    if name == "SyncBatchNormalization":
        from ..keras import SyncBatchNormalization
        return SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
