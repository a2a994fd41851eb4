# SPDX-License-Identifier: Apache-2.0
"""What `import torch` calls (its entry points "torch.backends", from 2.5 on), so that the backend
"gradus" is there without an import. It stands outside of the package, which is only imported here:
a program that does not use Gradus must not fail for want of its library."""
import warnings


def register() -> None:
    try:
        import gradus.torch  # noqa: F401
    except Exception as error:
        warnings.warn(f"the backend gradus of torch.distributed is not there: {error}")
