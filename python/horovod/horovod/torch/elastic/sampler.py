# SPDX-License-Identifier: Apache-2.0
"""The same names as in horovod.torch.elastic."""
from gradus.torch.elastic import *  # noqa: F401,F403
