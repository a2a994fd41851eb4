# SPDX-License-Identifier: Apache-2.0
"""Horovod's interface for Keras 3 with the backend tensorflow, torch or jax, and for tf-keras:

    import gradus.keras as hvd
    hvd.init()
    model.compile(optimizer=hvd.DistributedOptimizer(optimizer), ...)
    model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])

docs/keras.md is the guide."""
from .._engine import HorovodInternalError, HostsUpdatedInterrupt
from .._objects import allgather_object, broadcast_object
from .._submit import Adasum, Average, Max, Min, Product, ReduceOp, Sum, barrier, join
from .._world import *  # noqa: F401,F403
from .._world import __all__ as _names_of_world
from . import callbacks, elastic
from ._backends import Compression
from ._functions import *  # noqa: F401,F403
from ._functions import __all__ as _names_of_functions
from ._optimizer import DistributedOptimizer, PartialDistributedOptimizer, load_model
from ._sync_batch_norm import SyncBatchNormalization

__all__ = ["Adasum", "Average", "Compression", "DistributedOptimizer", "HorovodInternalError",
           "HostsUpdatedInterrupt", "Max", "Min", "PartialDistributedOptimizer", "Product",
           "ReduceOp", "Sum", "SyncBatchNormalization", "allgather_object", "barrier",
           "broadcast_object", "callbacks", "elastic", "join", "load_model"]
__all__ += _names_of_functions + _names_of_world
