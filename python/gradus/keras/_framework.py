# SPDX-License-Identifier: Apache-2.0
"""The Keras of this program: Keras 3 with its backend, or the Keras 2 of TensorFlow (tf-keras)."""
import importlib
import os
import sys
from typing import Any, List, Optional, Tuple

import numpy

from .._gradients import label_of


def _found() -> Any:
    names = ["keras", "tf_keras"]
    if os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true") or (
            "tf_keras" in sys.modules and "keras" not in sys.modules):
        names.reverse()  # as tf.keras does
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
    raise ModuleNotFoundError("gradus.keras needs Keras: pip install keras, and tensorflow, torch "
                              "or jax; or tf-keras", name="keras")


keras = _found()
IS_3 = int(keras.__version__.partition(".")[0]) >= 3
BACKEND: str = keras.backend.backend() if IS_3 else "tensorflow"
if BACKEND not in ("tensorflow", "torch", "jax"):
    raise ImportError(f"gradus.keras with the backend {BACKEND} of Keras; it is for tensorflow, "
                      "torch and jax (KERAS_BACKEND)")


def value_of(variable: Any) -> Any:
    """A variable's value, as numpy has it."""
    if hasattr(variable, "numpy"):
        return variable.numpy()
    return keras.ops.convert_to_numpy(variable) if IS_3 else numpy.asarray(variable)


def variables_of(optimizer: Any) -> List[Any]:
    """The variables of an optimizer, and the gradients that add up in it."""
    found = optimizer.variables
    passes = optimizer.__dict__.get("_hvd_passes")
    return [*(found() if callable(found) else found), *(passes.variables if passes else ())]


def state_of(model: Any, optimizer: Any = None) -> Optional[List[Tuple[str, Any]]]:
    """The variables that ranks must begin with alike, with what the program calls them: weights,
    and the state of the optimizer, that of the model where none is given, which is made where it is
    not there. None: the model has none before its first batch."""
    if not model.built:
        return None
    optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
    if optimizer is None:
        return [(label_of(one), one) for one in model.weights]
    if hasattr(optimizer, "build"):
        if not (getattr(optimizer, "built", False) or getattr(optimizer, "_built", False)):
            optimizer.build(model.trainable_variables)
    else:  # the older optimizers of Keras 2
        optimizer._create_all_weights(model.trainable_variables)
    passes = optimizer.__dict__.get("_hvd_passes")
    if passes is not None and passes.count > 1:
        passes.build(model.trainable_variables)
    return [(label_of(one), one) for one in [*model.weights, *variables_of(optimizer)]]


def attach(model: Any) -> None:
    """Within fit the JAX backend keeps the state away from the model; brings it back, so that what
    a callback changes counts."""
    sync = getattr(model, "state_sync", None) or getattr(model, "jax_state_sync", None)
    if BACKEND == "jax" and sync is not None:
        sync()


def learning_rate_of(optimizer: Any) -> float:
    """The learning rate; an error, where a schedule of the optimizer makes it."""
    found = optimizer._learning_rate if hasattr(optimizer, "_learning_rate") else \
        optimizer.learning_rate
    if not hasattr(found, "assign"):
        raise TypeError(f"the learning rate of {type(optimizer).__name__} is made by "
                        f"{type(found).__name__}; give the optimizer a number, which the callback "
                        "can change")
    return float(value_of(found))


def momentum_of(optimizer: Any) -> Optional[float]:
    """The momentum, where a change of it has an effect on steps that are compiled already."""
    found = getattr(optimizer, "momentum", None)
    if hasattr(found, "assign"):  # the older optimizers of Keras 2
        return float(value_of(found))
    return found if BACKEND == "torch" and isinstance(found, (int, float)) else None
