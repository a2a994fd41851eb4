# SPDX-License-Identifier: Apache-2.0
"""horovod.keras.elastic, which gradus.keras.elastic has."""
from gradus.keras.elastic import *  # noqa: F401,F403
