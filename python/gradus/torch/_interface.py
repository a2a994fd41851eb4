# SPDX-License-Identifier: Apache-2.0
"""All that gradus.torch has beside the backend: its module's names come from here when the first of
them is asked for."""
from .._engine import HostsUpdatedInterrupt
from .._objects import allgather_object, broadcast_object
from .._world import *  # noqa: F401,F403
from .._world import __all__ as _names_of_world
from . import elastic, ps  # gradus.torch has no such names yet: the modules are loaded
from ._buckets import SharedBuckets, shared_buckets_hook
from ._compression import Compression
from ._exact import ExactOptimizer
from ._functions import broadcast_optimizer_state, broadcast_parameters
from ._ops import *  # noqa: F401,F403
from ._ops import __all__ as _names_of_ops
from ._optimizer import DistributedOptimizer
from ._sync_batch_norm import SyncBatchNorm

__all__ = ["Compression", "DistributedOptimizer", "ExactOptimizer", "HostsUpdatedInterrupt",
           "SharedBuckets", "SyncBatchNorm", "allgather_object", "broadcast_object",
           "broadcast_optimizer_state", "broadcast_parameters", "elastic", "ps",
           "shared_buckets_hook"]
__all__ += _names_of_ops + _names_of_world
