# SPDX-License-Identifier: Apache-2.0
"""Gradus for PyTorch. Importing this module registers the backend "gradus" of torch.distributed,
for tensors on the CPU:

    import gradus.torch
    torch.distributed.init_process_group("gradus")

It also has Horovod's interface, for programs that are written for that (docs/horovod.md):

    import gradus.torch as hvd
    hvd.init()

ExactOptimizer trains to the same bits with any number of workers. docs/python.md is the guide."""
from .._engine import HostsUpdatedInterrupt
from .._objects import allgather_object, broadcast_object
from .._world import *  # noqa: F401,F403
from .._world import __all__ as _names_of_world
from . import elastic
from ._c10d import ProcessGroup, Work, monitored_barrier
from ._compression import Compression
from ._exact import ExactOptimizer
from ._functions import broadcast_optimizer_state, broadcast_parameters
from ._ops import *  # noqa: F401,F403
from ._ops import __all__ as _names_of_ops
from ._optimizer import DistributedOptimizer
from ._sync_batch_norm import SyncBatchNorm

__all__ = ["Compression", "DistributedOptimizer", "ExactOptimizer", "HostsUpdatedInterrupt",
           "ProcessGroup", "SyncBatchNorm", "Work", "allgather_object", "broadcast_object",
           "broadcast_optimizer_state", "broadcast_parameters", "elastic", "monitored_barrier"]
__all__ += _names_of_ops + _names_of_world
