# SPDX-License-Identifier: Apache-2.0
"""Process sets."""
from gradus._world import ProcessSet, add_process_set, global_process_set, remove_process_set

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]
