# SPDX-License-Identifier: Apache-2.0
"""The same names as in horovod.torch, and _basics, which has what is not about tensors:
init, rank, and what has no public name."""
from gradus import _world as _basics  # noqa: F401
from gradus.torch import *  # noqa: F401,F403
