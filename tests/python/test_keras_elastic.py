# SPDX-License-Identifier: Apache-2.0
"""hvd.elastic of Keras with each backend: a worker is killed within model.fit, the others go on in
their processes, another one comes, and no step is lost or done twice."""
import ast

import pytest

from conftest import SOURCE, Ranks
from test_keras import KINDS, cases

pytestmark = pytest.mark.long

PROGRAM = '''
import os
import signal
import sys
import threading
import numpy as np
import HOROVOD as hvd
from gradus.keras._framework import keras, value_of

victim = os.environ["GRADUS_RANK"] == "1" and "GRADUS_JOINING" not in os.environ
hvd.init()
sizes, errors = [], []


def linear():
    """A step of SGD with the rate 1 takes the mean of the samples from the weights."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(
        1, use_bias=False, kernel_initializer="zeros")])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)), lambda _, y: y)
    return model


class Step(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if victim and state.step == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        if state.step > 7 and hvd.size() < 3:
            threading.Event().wait(0.2)  # the worker that comes needs the cores as well

    def on_train_batch_end(self, batch, logs=None):
        state.step += 1


@hvd.elastic.run
def train(state):
    """Until the job is whole again."""
    while state.step < 20 or hvd.size() < 3:
        try:
            state.model.fit(np.tile([[1.0, 2.0]], (8, 1)), np.zeros((8, 1)), batch_size=2,
                            steps_per_epoch=4 - state.batch, verbose=0, callbacks=[
                Step(), hvd.elastic.UpdateBatchStateCallback(state),
                hvd.elastic.UpdateEpochStateCallback(state),
                hvd.elastic.CommitStateCallback(state)])
        except hvd.HostsUpdatedInterrupt:
            raise
        except Exception as error:
            errors.append((state.step, str(error)))
            raise


model = linear()
state = hvd.elastic.KerasState(model, step=0, epoch=0, batch=0)
state.register_reset_callbacks([lambda: sizes.append(hvd.size())])
train(state)
step = state.step
assert np.array_equal(model.get_weights()[0], [[-step], [-2 * step]]), (model.get_weights(), step)
assert int(value_of(model.optimizer.iterations)) == step
# A batch is made once more for each change, of which the last one may end the loop in an epoch.
assert 0 <= step - 4 * state.epoch - state.batch <= 3, (step, state.epoch, state.batch)
assert all(at == 7 and "rank 1" in text
           for at, text in errors), errors
assert len(set(hvd.allgather_object(step))) == 1

# A state goes back to its last commit.
state.save()
state.step = -1
model.set_weights([np.ones((2, 1), "float32")])
state.restore()
assert state.step == step and model.get_weights()[0][0, 0] == -step
try:
    hvd.elastic.KerasState(keras.Sequential([keras.layers.Dense(1)]))
except ValueError as error:
    assert "keras.Input" in str(error)
print((sizes, len(errors)), flush=True)
hvd.shutdown()
os._exit(0)  # the end of JAX waits for what has failed
'''


@pytest.mark.parametrize("kind, python", cases())
def test_keras_elastic_goes_on_without_a_killed_worker_and_with_another(gradus, tmp_path, kind,
                                                                         python):
    ranks = Ranks(gradus, tmp_path, python)
    module, backend = KINDS[kind]
    ranks.environment.update({
        "KERAS_BACKEND": backend, "KERAS_HOME": str(tmp_path), "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_USE_LEGACY_KERAS": str(int(kind == "tf-keras")), "JAX_PLATFORMS": "cpu",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "CUDA_VISIBLE_DEVICES": ""})
    ranks.environment["PYTHONPATH"] += f":{SOURCE / 'python' / 'horovod'}"
    program = PROGRAM.replace("HOROVOD", "horovod.tensorflow.keras" if kind == "tf-keras" else
                              "horovod.keras", 1)
    lines = ranks(3, program, timeout=600,
                  flags=["--min-workers", 1, "--max-workers", 3, "--restarts", 1])
    found = sorted((ast.literal_eval(line[-1]) for line in lines), key=lambda one: len(one[0]))
    assert found[0] == ([], 0)  # the worker that has come
    for sizes, errors in found[1:]:
        assert (sizes[0], sizes[-1], errors) == (2, 3, 1), found
