# SPDX-License-Identifier: Apache-2.0
"""horovod.torch, which gradus.torch has."""
from gradus.torch import *  # noqa: F401,F403
from gradus.torch import HorovodInternalError, HostsUpdatedInterrupt  # noqa: F401

from . import elastic  # noqa: F401
