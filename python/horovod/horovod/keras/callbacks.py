# SPDX-License-Identifier: Apache-2.0
"""horovod.keras.callbacks, which gradus.keras.callbacks has."""
from gradus.keras.callbacks import *  # noqa: F401,F403
