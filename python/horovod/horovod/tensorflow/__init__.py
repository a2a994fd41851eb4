# SPDX-License-Identifier: Apache-2.0
"""horovod.tensorflow, which gradus.tensorflow has."""
from gradus.tensorflow import *  # noqa: F401,F403
from gradus.tensorflow import __getattr__  # noqa: F401

from . import elastic  # noqa: F401
