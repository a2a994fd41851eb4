# SPDX-License-Identifier: Apache-2.0
"""Gradus for PyTorch. Importing this module registers the backend "gradus" of torch.distributed,
for tensors on the CPU:

    import gradus.torch
    torch.distributed.init_process_group("gradus")

docs/python.md is the guide."""
from ._c10d import ProcessGroup, Work

__all__ = ["ProcessGroup", "Work"]
