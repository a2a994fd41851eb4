# SPDX-License-Identifier: Apache-2.0
"""The same names as in horovod.torch."""
from gradus.torch import *  # noqa: F401,F403
