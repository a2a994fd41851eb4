# SPDX-License-Identifier: Apache-2.0
"""Horovod's interface, on Gradus: docs/horovod.md."""
import gradus

from .runner import run

__version__ = gradus.__version__
__all__ = ["run"]
