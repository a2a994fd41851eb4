# SPDX-License-Identifier: Apache-2.0
"""horovod.torch, which gradus.torch has."""
from gradus.torch import *  # noqa: F401,F403
from gradus.torch import HorovodInternalError, HostsUpdatedInterrupt  # noqa: F401

from . import compression, elastic, functions, mpi_ops, optimizer, sync_batch_norm  # noqa: F401
