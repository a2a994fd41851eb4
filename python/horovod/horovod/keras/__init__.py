# SPDX-License-Identifier: Apache-2.0
"""horovod.keras, which gradus.keras has."""
from gradus.keras import *  # noqa: F401,F403

from . import callbacks, elastic  # noqa: F401
