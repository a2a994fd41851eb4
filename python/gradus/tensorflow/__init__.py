# SPDX-License-Identifier: Apache-2.0
"""Horovod's interface for TensorFlow 2, eagerly and inside of tf.function:

    import gradus.tensorflow as hvd
    hvd.init()
    tape = hvd.DistributedGradientTape(tape)

docs/keras.md is the guide; gradus.keras is for programs that call model.fit."""
from .._engine import HorovodInternalError, HostsUpdatedInterrupt
from .._objects import allgather_object, broadcast_object
from .._submit import (Adasum, Average, Max, Min, Product, ReduceOp, Sum, barrier, join)
from .._world import *  # noqa: F401,F403
from .._world import __all__ as _names_of_world
from ._compression import Compression
from ._gradients import (DistributedGradientTape, DistributedOptimizer, broadcast_global_variables,
                         broadcast_variables)
from ._ops import *  # noqa: F401,F403
from ._ops import __all__ as _names_of_ops

__all__ = ["Adasum", "Average", "Compression", "DistributedGradientTape", "DistributedOptimizer",
           "HorovodInternalError", "HostsUpdatedInterrupt", "Max", "Min", "Product", "ReduceOp",
           "Sum", "allgather_object", "barrier", "broadcast_global_variables", "broadcast_object",
           "broadcast_variables", "join"]
__all__ += _names_of_ops + _names_of_world
