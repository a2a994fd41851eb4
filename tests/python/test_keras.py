# SPDX-License-Identifier: Apache-2.0
"""horovod.keras by gradus-horovod with each backend of Keras 3, and horovod.tensorflow.keras with
tf-keras: what one process computes."""
import pytest

from conftest import SOURCE, Ranks, has, named_pythons

pytestmark = pytest.mark.long

PROGRAM = '''
import hashlib
import os
import sys
import numpy as np
import HOROVOD as hvd
from gradus.keras._framework import BACKEND, IS_3, keras, value_of

hvd.init()
n, me = hvd.size(), hvd.rank()
assert (keras.__name__, BACKEND) == (sys.argv[1], sys.argv[2]), (keras.__name__, BACKEND)
os.environ["CUDA_VISIBLE_DEVICES"] = ""
random = np.random.default_rng(7)


def close(what, found, expected, tolerance=1e-5):
    for a, b in zip(found, expected):
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape and np.allclose(a, b, rtol=tolerance, atol=tolerance), \\
            (what, me, np.abs(a - b).max(), a, b)


def alike(what, weights):
    """Ranks have the same bits."""
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(one).tobytes() for one in weights))
    assert len(set(hvd.allgather_object(digest.hexdigest()))) == 1, what


def refused(words, call):
    try:
        call()
    except Exception as error:
        assert all(word in str(error) for word in words), str(error)
    else:
        raise AssertionError(("accepted", words))


def linear(inputs=3):
    return keras.Sequential([keras.Input((inputs,)), keras.layers.Dense(1, use_bias=False)])


def gradient_of(weights, x, y):
    """Of the mean square error of a linear model."""
    return 2 / len(x) * x.T @ (x @ weights - y)


# A step of gradient descent, against the formula: each rank with samples of its own.
X = random.normal(size=(n, 2, 4, 3)).astype("float32")  # rank, batch, sample, feature
Y = random.normal(size=(n, 2, 4, 1)).astype("float32")
START = np.array([[0.5], [-1.0], [2.0]], "float32")


def step(expected, rate=0.1, **words):
    model = linear()
    model.set_weights([START])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(rate), **words), "mse")
    model.train_on_batch(X[me, 0], Y[me, 0])
    close(words, model.get_weights(), [expected])
    return model


parts = [gradient_of(START, X[rank, 0], Y[rank, 0]) for rank in range(n)]
total = np.sum(parts, 0)
step(START - 0.1 * total / n)
step(START - 0.1 * total, op=hvd.Sum)
step(START - 0.1 * np.max(parts, 0), op=hvd.Max)
step(START - 0.1 * total / n, gradient_predivide_factor=float(n))
half = START - 0.1 * np.sum([part.astype("float16") for part in parts], 0, "float32") / n
model = step(START - 0.1 * total / n, name="other")
try:
    step(half, compression=hvd.Compression.fp16)
except AssertionError as error:  # as exact as 16 bits
    assert error.args[0][2] < 1e-2, error

# Gradients that add up over two batches.
for average in (False, True):
    model = linear()
    model.set_weights([START])
    model.compile(hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.1), backward_passes_per_step=2,
        average_aggregated_gradients=average), "mse")
    expected = START
    for turn in range(2):
        every = [gradient_of(expected, X[rank, batch], Y[rank, batch])
                 for rank in range(n) for batch in range(2)]
        for batch in range(2):
            close("passes", model.get_weights(), [expected])
            model.train_on_batch(X[me, batch], Y[me, batch])
        expected = expected - 0.1 * np.sum(every, 0) / n / (2 if average else 1)
    close("passes", model.get_weights(), [expected])

# Adasum of steps: those of all ranks are alike, or have nothing in common.
for passes in (1, 2):
    model = linear(n)
    model.set_weights([np.ones((n, 1), "float32")])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.5), op=hvd.Adasum,
                                           backward_passes_per_step=passes,
                                           average_aggregated_gradients=True), lambda _, y: y)
    for rows, expected in ((np.eye(n)[[me]], np.full((n, 1), 0.5)),
                           (np.ones((1, n)), np.zeros((n, 1)))):
        for _ in range(passes):
            model.train_on_batch(rows, np.zeros((1, 1)))
        close(("adasum", passes), model.get_weights(), [expected])

# Layers that stay with their rank.
for scale in (True, False):
    layers = [keras.layers.Dense(1, use_bias=False, kernel_initializer="ones") for _ in range(2)]
    model = keras.Sequential([keras.Input((1,)), *layers])
    model.compile(hvd.PartialDistributedOptimizer(
        keras.optimizers.SGD(0.5), local_layers=layers[0], scale_local_gradients=scale),
        lambda _, y: y)
    model.train_on_batch(np.full((1, 1), me + 1.0), np.zeros((1, 1)))
    close(("local", scale), model.get_weights(),
          [[[1 - 0.5 * (me + 1) / (n if scale else 1)]], [[1 - 0.5 * (n + 1) / 2]]])
    model.fit(np.zeros((1, 1)), np.zeros((1, 1)), verbose=0, callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(
            n - 1, local_variables=layers[0].trainable_weights)])
    close("not sent", model.get_weights()[:1],
          [[[1 - 0.5 * (me + 1) / (n if scale else 1)]]])
refused(["no layer"], lambda: hvd.PartialDistributedOptimizer(
    keras.optimizers.SGD(0.5), local_layers=[3]))
refused(["no weights yet"], lambda: hvd.PartialDistributedOptimizer(
    keras.optimizers.SGD(0.5), local_layers=keras.layers.Dense(1)))
refused(["no variable"], lambda: hvd.callbacks.BroadcastGlobalVariablesCallback(
    0, local_variables=[3]))
refused(["groups"], lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(0.5), groups=[3]))

# A batch norm over the batches of all ranks, of which one is larger, is that of one process.
def normalized(layer, momentum=0.9):
    model = keras.Sequential([keras.Input((4, 3)), layer(momentum=momentum),
                              keras.layers.Flatten(), keras.layers.Dense(
                                  1, use_bias=False, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.1), lambda y, found: (y - found) ** 2)
    return model


BATCHES = [random.normal(size=(2 + (rank == 0), 4, 3)).astype("float32") * (rank + 1) + rank
           for rank in range(n)]
WANTED = [random.normal(size=(len(batch), 1)).astype("float32") for batch in BATCHES]
alone, model = (normalized(layer) for layer in (
    keras.layers.BatchNormalization, hvd.SyncBatchNormalization))
rows = sum(map(len, BATCHES))
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), op=hvd.Sum),
              lambda y, found: (y - found) ** 2 * len(BATCHES[me]) / rows)
for _ in range(2):
    alone.train_on_batch(np.concatenate(BATCHES), np.concatenate(WANTED))
    model.train_on_batch(BATCHES[me], WANTED[me])
close("batch norm", model.get_weights(), alone.get_weights(), 1e-4)
alike("batch norm", model.get_weights())
close("evaluation", [model.predict(BATCHES[0], verbose=0)],
      [alone.predict(BATCHES[0], verbose=0)], 1e-4)
refused(["fused"], lambda: hvd.SyncBatchNormalization(fused=True))

# The best model of three epochs is kept.
best = hvd.callbacks.BestModelCheckpoint(monitor="loss")
refused(["callback.filepath"], lambda: alone.fit(BATCHES[0], WANTED[0], verbose=0,
                                                 callbacks=[best]))
best.filepath = f"{sys.argv[3]}/best.{me}.keras"
model = linear()
model.compile(keras.optimizers.SGD(0.01), "mse")
losses = model.fit(X[me, 0], Y[me, 0], epochs=3, verbose=0, callbacks=[best]).history["loss"]
assert losses == sorted(losses, reverse=True) and len(
    keras.models.load_model(best.filepath).get_weights()) == 1

# A process set alone, whose other ranks keep their own gradients.
first = hvd.add_process_set([0])
step(START - 0.1 * parts[me], process_set=first)
hvd.remove_process_set(first)

# The learning rate warms up, and is scheduled: the weights are those of these rates.
for momentum in (0.0, 0.9):
    model = linear()
    model.set_weights([START])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.2, momentum=momentum)), "mse")
    history = model.fit(
        X[me].reshape(8, 3), Y[me].reshape(8, 1), batch_size=4, epochs=4, shuffle=False, verbose=0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0),
                   hvd.callbacks.LearningRateWarmupCallback(0.2, warmup_epochs=2, verbose=1),
                   hvd.callbacks.LearningRateScheduleCallback(0.2, 0.5, start_epoch=2)])
    weights, velocity, old = START.astype("float64"), 0, 0.2
    for epoch in range(4):
        for batch in range(2):
            grown = 1 / n * ((epoch + batch / 2 + 0.5) * (n - 1) / 2 + 1)
            rate = 0.2 * (grown if epoch < 2 else 0.5 ** (epoch - 2))
            gradient = np.mean([gradient_of(weights, X[rank, batch], Y[rank, batch])
                                for rank in range(n)], 0)
            factor = rate / old if BACKEND == "torch" and (epoch < 2 or batch == 0) else 1
            velocity = momentum * factor * velocity - rate * gradient
            weights, old = weights + velocity, rate
        assert abs(history.history["lr"][epoch] - rate) < 1e-6, history.history
    close("learning rate", model.get_weights(), [weights], 1e-4)
    alike("learning rate", model.get_weights())

# Ranks that begin differently end with the weights of one process that has all samples.
CENTRES = random.normal(size=(4, 12)) * 2
LABELS = random.integers(0, 4, 32 * 6 * n)
SAMPLES = (CENTRES[LABELS] + random.normal(size=(len(LABELS), 12))).astype("float32")


def network(seed):
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input((12,)), keras.layers.Dense(32, activation="relu"),
                             keras.layers.Dense(4)])


def compiled(model, optimizer):
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                  metrics=["accuracy"])
    return model


def train(model, part, batch, callbacks=(), epochs=3):
    return model.fit(SAMPLES[part], LABELS[part], batch_size=batch, epochs=epochs, shuffle=False,
                     verbose=0, callbacks=list(callbacks)).history


model, alone = network(seed=me), network(seed=0)
alone.set_weights(hvd.broadcast_object(model.get_weights(), root_rank=n - 1))
compiled(model, hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)))
compiled(alone, keras.optimizers.Adam(0.01))
found = train(model, slice(me, None, n), 32, [
    hvd.callbacks.BroadcastGlobalVariablesCallback(n - 1), hvd.callbacks.MetricAverageCallback()])
expected = train(alone, slice(None), 32 * n)
close("weights", model.get_weights(), alone.get_weights(), 2e-4)
alike("weights", model.get_weights())
for name in ("loss", "accuracy"):
    close(name, found[name], expected[name], 2e-3)
accuracy = [one.evaluate(SAMPLES, LABELS, verbose=0)[1] for one in (model, alone)]
assert accuracy[0] == accuracy[1] > 0.9, accuracy

# A file is that of the optimizer without Gradus; loaded, it trains on over all ranks.
path = f"{sys.argv[3]}/model.{me}.keras"
model.save(path)
plain = keras.models.load_model(path)
assert not hasattr(plain.optimizer, "_hvd_reduction") and "Adam" in str(type(plain.optimizer))
loaded = hvd.load_model(path)
assert int(value_of(loaded.optimizer.iterations)) == 18
refused(["distributed already"], lambda: hvd.DistributedOptimizer(loaded.optimizer))
plain = type(loaded.optimizer).from_config(loaded.optimizer.get_config())
assert type(plain) is type(keras.optimizers.Adam()), type(plain)
train(loaded, slice(me, None, n), 32, epochs=1)
train(alone, slice(None), 32 * n, epochs=1)
close("loaded", loaded.get_weights(), alone.get_weights(), 2e-4)
alike("loaded", loaded.get_weights())

# A model that has no weights before its first batch.
late = keras.Sequential([keras.layers.Dense(4, kernel_initializer="ones" if me else "zeros")])
compiled(late, hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)))
train(late, slice(me, None, n), 32, [hvd.callbacks.BroadcastGlobalVariablesCallback(0)], epochs=1)
alike("late", late.get_weights())
assert not np.any(late.get_weights()[0])

# Values.
close("allreduce", [hvd.allreduce(np.float32(me), op=hvd.Sum)], [n * (n - 1) / 2])
close("compressed", [hvd.allreduce(np.full(3, me + 0.1, "float32"), op=hvd.Sum,
                                   compression=hvd.Compression.fp16)],
      [[n * (n - 1) / 2 + 0.1 * n] * 3], 1e-2)
close("allgather", [hvd.allgather(np.full((me + 1, 2), me))],
      [np.concatenate([np.full((rank + 1, 2), rank) for rank in range(n)])])
close("broadcast", [hvd.broadcast(keras.ops.ones(2) * me if IS_3 else np.ones(2) * me, n - 1)],
      [[n - 1, n - 1]])
close("reducescatter", [hvd.reducescatter(np.ones((n, 2)), op=hvd.Sum)], [[[n, n]]])

# What is refused.
refused(["mixed_bfloat16"], lambda: (
    (keras.config.set_dtype_policy if IS_3 else keras.mixed_precision.set_global_policy)(
        "mixed_float16"), hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))))
(keras.config.set_dtype_policy if IS_3 else keras.mixed_precision.set_global_policy)("float32")
refused(["Average alone"], lambda: hvd.DistributedOptimizer(
    keras.optimizers.SGD(0.1), op=hvd.Sum, gradient_predivide_factor=2.0))
refused(["model.compile"], lambda: hvd.DistributedOptimizer("sgd"))
refused(["broadcast_variables"], lambda: hvd.broadcast_global_variables(0))
if n > 1:
    wrong = linear(3 + (me == 1))
    wrong.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    samples = np.ones((4, 3 + (me == 1)), "float32")
    refused(["rank 0", "[3, 1]", "rank 1", "[4, 1]", "kernel"],
            lambda: wrong.train_on_batch(samples, samples[:, :1]))
print("done", flush=True)
if BACKEND == "jax":  # whose end waits for what has failed
    hvd.shutdown()
    os._exit(0)
'''

KINDS = {"tensorflow": ("keras", "tensorflow"), "torch": ("keras", "torch"),
         "jax": ("keras", "jax"), "tf-keras": ("tf_keras", "tensorflow")}


def cases():
    for kind, modules in KINDS.items():
        found = [path for path in named_pythons() if all(has(path, one) for one in modules)]
        for path in found:
            yield pytest.param(kind, path, id=kind)
        if not found:
            yield pytest.param(kind, "", id=kind, marks=pytest.mark.skip(
                f"GRADUS_PYTHONS names no interpreter with {' and '.join(modules)} "
                "(CONTRIBUTING.md)"))


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("kind, python", cases())
def test_keras_trains_as_one_process(gradus, tmp_path, kind, python, count):
    ranks = Ranks(gradus, tmp_path, python)
    module, backend = KINDS[kind]
    ranks.environment.update({
        "KERAS_BACKEND": backend, "KERAS_HOME": str(tmp_path), "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_USE_LEGACY_KERAS": str(int(kind == "tf-keras")), "JAX_PLATFORMS": "cpu",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    ranks.environment["PYTHONPATH"] += f":{SOURCE / 'python' / 'horovod'}"
    program = PROGRAM.replace("HOROVOD", "horovod.tensorflow.keras" if kind == "tf-keras" else
                              "horovod.keras")
    lines = ranks(count, program, module, backend, tmp_path, timeout=600)
    assert [line[-1] for line in lines] == ["done"] * count
