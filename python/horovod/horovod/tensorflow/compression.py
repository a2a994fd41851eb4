# SPDX-License-Identifier: Apache-2.0
"""The same names as in horovod.tensorflow."""
from gradus.tensorflow import *  # noqa: F401,F403
