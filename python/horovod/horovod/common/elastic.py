# SPDX-License-Identifier: Apache-2.0
"""States of elastic jobs."""
from gradus._elastic import ObjectState, State

__all__ = ["ObjectState", "State"]
