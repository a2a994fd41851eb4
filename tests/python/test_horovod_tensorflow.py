# SPDX-License-Identifier: Apache-2.0
"""horovod.tensorflow by gradus-horovod, eagerly and inside of tf.function: what one process
computes."""
import pytest

from conftest import SOURCE, pythons_with

pytestmark = pytest.mark.long

PROGRAM = '''
from concurrent import futures

import numpy as np
import tensorflow as tf
import horovod.tensorflow as hvd

hvd.init()
n, me = hvd.size(), hvd.rank()


def of(rank, dtype=tf.float32, shape=(2, 3)):
    """What a rank gives: small whole numbers, which every type adds exactly."""
    return tf.cast(tf.reshape((tf.range(np.prod(shape)) + rank) % 3 + 1, shape), dtype)


def every(*arguments):
    return np.stack([tf.cast(of(rank, *arguments), tf.float64).numpy() for rank in range(n)])


def same(what, found, expected):
    found = np.asarray(found, "float64")
    assert found.shape == np.shape(expected) and np.allclose(found, expected, rtol=1e-3), \\
        (what, me, found, expected)


def refused(words, call):
    try:
        call()
    except Exception as error:
        assert all(word in str(error) for word in words), str(error)
    else:
        raise AssertionError(("accepted", words))


def reductions(how):
    for dtype in (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64, tf.uint8):
        for op, name in ((hvd.Sum, "sum"), (hvd.Max, "max"), (hvd.Min, "min"),
                         (hvd.Product, "prod")):
            found = how(lambda x: hvd.allreduce(x, op=op))(of(me, dtype))
            assert found.dtype == dtype
            same((name, dtype), found, getattr(np, name)(every(dtype), 0))
    same("average", how(lambda x: hvd.allreduce(x, name="a"))(of(me)), every().mean(0))
    same("scaled", how(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0,
                                               postscale_factor=0.5))(of(me)), every().sum(0))
    same("zero", how(lambda x: hvd.allreduce(x, prescale_factor=0.0))(of(me)), np.zeros((2, 3)))
    same("fp16", how(lambda x: hvd.allreduce(x, compression=hvd.Compression.fp16))(of(me)),
         every().mean(0))
    a, b = how(lambda x: hvd.grouped_allreduce([x, x[0] + 1], op=hvd.Sum))(of(me))
    same("grouped", a, every().sum(0))
    same("grouped", b, every()[:, 0].sum(0) + n)
    dense, slices = how(lambda x: hvd.grouped_allreduce(
        [x, tf.IndexedSlices(x[:1] * 2, [me])], op=hvd.Sum))(of(me))
    same("mixed", dense, every().sum(0))
    same("mixed", slices.values, every()[:, 0] * 2)
    same("mixed", slices.indices, range(n))
    same("adasum", how(lambda x: hvd.allreduce(x, op=hvd.Adasum))(tf.ones(3)), np.ones(3))
    # Of one graph, in no order that the program gives.
    sums = how(lambda x: [hvd.allreduce(x + part, op=hvd.Sum) for part in range(5)])(of(me))
    for part, found in enumerate(sums):
        same("several", found, every().sum(0) + part * n)


def moves(how):
    rows = [of(rank, tf.float32, (rank + 1, 2)).numpy() for rank in range(n)]
    same("allgather", how(hvd.allgather)(rows[me]), np.concatenate(rows))
    a, b = how(lambda x: hvd.grouped_allgather([x, x * 2]))(rows[me])
    same("grouped", b, np.concatenate(rows) * 2)
    same("broadcast", how(lambda x: hvd.broadcast(x, n - 1))(of(me)), every()[n - 1])
    same("alltoall", how(hvd.alltoall)(tf.range(n) + 10 * me),
         [10 * rank + me for rank in range(n)])
    sends = [[rank + to for to in range(n)] for rank in range(n)]
    found, came = how(lambda x: hvd.alltoall(x, sends[me]))(tf.fill([sum(sends[me])], me))
    same("splits", came, [sends[rank][me] for rank in range(n)])
    same("splits", found, np.repeat(np.arange(n), [sends[rank][me] for rank in range(n)]))
    total = sum(of(rank, tf.float32, (n + 1, 2)).numpy() for rank in range(n))
    mine = slice(0, 2) if me == 0 else slice(me + 1, me + 2)  # the first has one more
    same("reducescatter", how(lambda x: hvd.reducescatter(x, op=hvd.Sum))(
        of(me, tf.float32, (n + 1, 2))), total[mine])
    same("size", how(lambda: hvd.size_op() * 10 + hvd.rank_op())(), n * 10 + me)
    slices = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([0, me + 1]), tf.constant([n + 1, 3]))
    found = how(lambda x: tf.convert_to_tensor(hvd.allreduce(x)))(slices)
    same("sparse", found, [[1] * 3] + [[1 / n] * 3] * n)


def gradient(how, function, x, weights):
    """Of the sum of function(x) * weights over x."""
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(function(x) * weights)
        return tape.gradient(total, x)
    return how(run)(x)


def gradients(how):
    same("allreduce", gradient(how, lambda x: hvd.allreduce(x, op=hvd.Sum), of(me), of(me)),
         every().sum(0))
    same("allreduce", gradient(how, hvd.allreduce, of(me), of(me)), every().mean(0))
    same("broadcast", gradient(how, lambda x: hvd.broadcast(x, 0), of(me), of(me)),
         every().mean(0) if me == 0 else np.zeros((2, 3)))
    rows = n * (n + 1) // 2
    weights = np.stack([of(rank, tf.float32, (rows, 2)).numpy() for rank in range(n)])
    first = me * (me + 1) // 2
    same("allgather", gradient(how, hvd.allgather, of(me, tf.float32, (me + 1, 2)), weights[me]),
         weights.mean(0)[first:first + me + 1])
    same("alltoall", gradient(how, hvd.alltoall, tf.ones([n]), tf.range(n, dtype=tf.float32) + me),
         [rank + me for rank in range(n)])
    same("reducescatter", gradient(how, lambda x: hvd.reducescatter(x, op=hvd.Average),
                                   tf.ones([n]), tf.constant([me + 1.0])), np.arange(n) + 1.0)
    refused(["no gradient"],
            lambda: gradient(how, lambda x: hvd.allreduce(x, op=hvd.Max), of(me), of(me)))


def tapes():
    """The loop of a script of TensorFlow 2: the weights are those of one process."""
    data = tf.reshape(tf.sin(tf.range(36.0 * n)), [12 * n, 3])
    wanted = tf.reduce_sum(data, 1, keepdims=True)
    weights = tf.Variable(tf.fill([3, 1], float(me)))
    table = tf.Variable(tf.fill([n + 1, 1], float(me)))
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)

    @tf.function
    def step(x, y, first):
        with tf.GradientTape() as tape:
            rows = tf.gather(table, [0, me + 1])
            loss = tf.reduce_mean((x @ weights - y) ** 2) + tf.reduce_sum(rows * [[1.0], [2.0]])
        if first:
            hvd.broadcast_variables([weights, table], root_rank=0)
            return
        tape = hvd.DistributedGradientTape(tape)
        one, two = tape.gradient(loss, [weights, table])
        assert isinstance(two, tf.IndexedSlices)
        weights.assign_sub(0.1 * one)
        table.scatter_sub(tf.IndexedSlices(0.1 * two.values, two.indices))

    step(data[me::n], wanted[me::n], True)
    same("broadcast_variables", weights, np.zeros((3, 1)))
    alone = np.zeros((3, 1))
    for _ in range(5):
        step(data[me::n], wanted[me::n], False)
        alone -= 0.1 * 2 / (12 * n) * data.numpy().T @ (data.numpy() @ alone - wanted.numpy())
    same("tape", weights, alone)
    same("sparse tape", table, [[-0.5]] + [[-1.0 / n]] * n)
    with tf.GradientTape() as tape:  # eagerly, a gradient that is not there, and a nest
        loss = tf.reduce_sum(weights * float(me + 1))
    found = hvd.DistributedGradientTape(tape, op=hvd.Sum, sparse_as_dense=True).gradient(
        loss, {"a": weights, "b": table})
    assert found["b"] is None
    same("nest", found["a"], np.full((3, 1), n * (n + 1) / 2))
    assert hvd.broadcast_object(me, 0) == 0 and hvd.allgather_object(me) == list(range(n))
    refused(["broadcast_variables"], lambda: hvd.broadcast_global_variables(0))


def graphs():
    """A program of TensorFlow 1."""
    with tf.Graph().as_default():
        x = tf.compat.v1.get_variable("x", initializer=float(me + 1))
        optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.5))
        train = optimizer.minimize(x * float(me))
        send = hvd.broadcast_global_variables(0)
        y = tf.compat.v1.get_variable("y", initializer=float(me))
        sent, = hvd.broadcast_([y], n - 1)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(send)
            session.run(train)
            same("graph", session.run(x), 1.0 - 0.5 * (n - 1) / 2)
            same("in place", session.run(sent), n - 1)
            same("in place", session.run(y), n - 1)


def many():
    """More collectives than a session has threads, whose tensors are ready one behind the other, on
    each rank from another one on: none keeps a thread from which another is to be submitted."""
    with tf.Graph().as_default(), tf.compat.v1.Session(config=tf.compat.v1.ConfigProto(
            inter_op_parallelism_threads=2, use_per_session_threads=True)) as session:
        sums, before = [None] * 12, []
        for index in [(index + 4 * me) % 12 for index in range(12)]:
            with tf.control_dependencies(before):
                given = tf.numpy_function(lambda x: x, [tf.fill([3], float(me + index))],
                                          tf.float32)
            before = [given]
            sums[index] = hvd.allreduce(tf.ensure_shape(given, [3]), op=hvd.Sum,
                                        name=f"many.{index}")
        for _ in range(2):
            for index, found in enumerate(session.run(sums)):
                same("many", found, [n * index + n * (n - 1) / 2] * 3)
        fed = tf.compat.v1.placeholder(tf.float32, [None])
        odd = hvd.allreduce(fed, op=hvd.Sum, name="odd")
        for _ in range(2):  # a run that has failed leaves nothing to the next one
            refused(["allreduce.odd", "rank 0", "rank 1"],
                    lambda: session.run(odd, {fed: np.ones(1 + (me == 1))}))
            same("odd", session.run(odd, {fed: [me]}), [n * (n - 1) / 2])


def two_runs():
    """A collective in two runs of a session at a time: each has its own result, or a sentence."""
    sets = [hvd.add_process_set([rank]) for rank in range(n)]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        fed = tf.compat.v1.placeholder(tf.float32, [])
        own = hvd.allreduce(fed, op=hvd.Sum, process_set=sets[me])

        def run(value):
            for turn in range(100):
                try:
                    assert session.run(own, {fed: value + turn}) == value + turn
                except tf.errors.InvalidArgumentError as error:
                    assert "two runs" in str(error)
        with futures.ThreadPoolExecutor(2) as both:
            for done in [both.submit(run, 1000.0), both.submit(run, 2000.0)]:
                done.result()
        same("after", session.run(own, {fed: 3.0}), 3)
    for one in sets:
        hvd.remove_process_set(one)


class Layer:
    """What a tape reads of a layer."""

    built = True

    def __init__(self, *variables):
        self.trainable_weights = list(variables)


def local_sources(how):
    """Gradients of some variables stay with their rank, of which each may have another number."""
    kernel, table = tf.Variable(tf.ones([2])), tf.Variable(tf.ones([4, 2]))
    mine = [tf.Variable(float(part + 1)) for part in range(me + 1)]
    sources = [*mine, kernel, table]

    def run(scale):
        with tf.GradientTape() as tape:
            loss = sum(one * one for one in mine) + tf.reduce_sum(kernel * float(me)) + \\
                tf.reduce_sum(tf.gather(table, [1, 3])) * 2.0
        tape = hvd.PartialDistributedGradientTape(
            tape, local_layers=[Layer(*mine), Layer(table)], scale_local_gradients=scale)
        local, others = tape.get_local_and_global_gradients(loss, sources)
        assert [one for one, _ in local] == [*mine, table] and others[0][0] is kernel
        return [gradient for _, gradient in local] + [others[0][1]]
    for scale in (True, False):
        *own, sparse, total = how(lambda: run(scale))()
        by = n if scale else 1
        same("local", own, [2.0 * (part + 1) / by for part in range(me + 1)])
        same("global", total, [(n - 1) / 2] * 2)
        assert isinstance(sparse, tf.IndexedSlices)
        same("local sparse", sparse.values, np.full((2, 2), 2 / by))
        same("local sparse", sparse.indices, [1, 3])


def optimizers():
    """Of TensorFlow 1, eagerly: Adasum of steps, a local variable."""
    sgd = tf.compat.v1.train.GradientDescentOptimizer
    x, y = tf.Variable(tf.zeros([n])), tf.Variable(1.0)
    optimizer = hvd.DistributedOptimizer(sgd(0.5), op=hvd.Adasum)
    optimizer.register_local_var(y)
    for _ in range(2):  # what the ranks do has nothing in common: it adds up
        optimizer.minimize(lambda: (me + 1.0) * x[me] + y * me, var_list=[x, y])
    same("adasum", x, -np.arange(1.0, n + 1))
    same("adasum local", y, 1.0 - me)
    optimizer = hvd.DistributedOptimizer(sgd(0.5), op=hvd.Adasum)
    optimizer.minimize(lambda: tf.reduce_sum(x), var_list=[x])  # all the same: it counts once
    same("adasum", x, -np.arange(1.0, n + 1) - 0.5)
    optimizer = hvd.DistributedOptimizer(sgd(1.0), op=hvd.Sum, scale_local_gradients=False)
    optimizer.register_local_var(y)
    optimizer.minimize(lambda: tf.reduce_sum(x) * me + y, var_list=[x, y])
    same("sum", x, -np.arange(1.0, n + 1) - 0.5 - n * (n - 1) / 2)
    same("local", y, -me)


def passes():
    """Gradients that add up over three passes, in a session whose ranks begin as rank 0."""
    for average in (False, True):
        with tf.Graph().as_default():
            x = tf.compat.v1.get_variable("x", initializer=[float(me + 1)] * 2)
            optimizer = hvd.DistributedOptimizer(
                tf.compat.v1.train.MomentumOptimizer(0.5, 0.0), backward_passes_per_step=3,
                average_aggregated_gradients=average, sparse_as_dense=True)
            train = optimizer.minimize(tf.reduce_sum(tf.gather(x, [0, 1, 1])) * float(me))
            with tf.compat.v1.train.MonitoredTrainingSession(
                    hooks=[hvd.BroadcastGlobalVariablesHook(0)]) as session:
                expected = np.ones(2)
                for turn in range(7):
                    same(("passes", turn), session.run(x), expected)
                    session.run(train)
                    if turn % 3 == 2:
                        expected = expected - 0.5 * np.array([1, 2]) * (n - 1) / 2 * (
                            1 if average else 3)


def states():
    """What hvd.elastic keeps, and objects as Horovod's interface for TensorFlow sends them."""
    x, y = tf.Variable([float(me)]), tf.Variable(me)
    state = hvd.elastic.TensorFlowState([x, y], step=me)
    state.sync()
    assert (x.numpy()[0], int(y), state.step) == (0, 0, 0)
    x.assign([5.0])
    state.step = 3
    state.save()
    x.assign([7.0])
    state.step = 4
    state.restore()
    assert (x.numpy()[0], state.step) == (5, 3)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.get_variable("x", initializer=float(me))
        session.run(tf.compat.v1.global_variables_initializer())
        state = hvd.elastic.TensorFlowState(session=session)
        state.sync()
        assert session.run(x) == 0
        x.load(9.0, session)
        state.restore()
        assert session.run(x) == 0
        assert hvd.broadcast_object(me, 0, session, "graph") == 0
    assert hvd.broadcast_object_fn(n - 1, name="f")([me]) == [n - 1]
    assert hvd.allgather_object(me, name="g") == list(range(n))
    few = hvd.add_process_set([0])
    same("size_op", tf.function(lambda: hvd.size_op(few.process_set_id))(), 1)
    same("included", hvd.process_set_included_op(few.process_set_id), me == 0)
    slices = tf.IndexedSlices(tf.ones([1]), tf.constant([me]), tf.constant([n]))
    if few.included():
        same("set", hvd.allreduce(tf.ones(2), process_set=few, op=hvd.Sum), [1, 1])
        same("set", hvd.allreduce(slices, process_set=few).values, [1])
        same("set", hvd.allgather_object(me, process_set=few), [0])
    hvd.remove_process_set(few)
    same("scaled", tf.convert_to_tensor(hvd.allreduce(slices, prescale_factor=3.0)), [3 / n] * n)


def refusals():
    sgd = tf.compat.v1.train.GradientDescentOptimizer(1.0)
    refused(["groups"], lambda: hvd.DistributedOptimizer(sgd, groups="two"))
    refused(["Average alone"], lambda: hvd.DistributedOptimizer(sgd, op=hvd.Sum,
                                                                gradient_predivide_factor=2.0))
    refused(["backward_passes_per_step", "0"],
            lambda: hvd.DistributedOptimizer(sgd, backward_passes_per_step=0))
    refused(["no layer"], lambda: hvd.PartialDistributedGradientTape(
        tf.GradientTape(), local_layers=[3]))
    refused(["no process set 99"], lambda: hvd.size_op(99))
    x = tf.Variable(tf.ones([3]))
    refused(["sparse_as_dense"], lambda: hvd.DistributedOptimizer(
        sgd, backward_passes_per_step=2).minimize(lambda: tf.reduce_sum(tf.gather(x, [0])), [x]))
    refused(["no variables"], lambda: hvd.elastic.TensorFlowState())
    refused(["IndexedSlices", "Max"], lambda: hvd.grouped_allreduce(
        [tf.IndexedSlices(tf.ones([1]), [0])], op=hvd.Max))
    for kind, call in ((tf.errors.FailedPreconditionError,
                        lambda: hvd.allreduce(tf.ones([1 + (me == 1)]), name="kind")),
                       (tf.errors.InvalidArgumentError, lambda: hvd.alltoall(tf.ones(2), [3]))):
        try:
            call()
        except kind:
            continue
        raise AssertionError(("accepted", kind))


def errors(how):
    x = tf.ones([2 + (me == 1)])
    refused(["allreduce.w", "rank 0", "[2]", "rank 1", "[3]"],
            lambda: how(lambda x: hvd.allreduce(x, name="w"))(x))
    kernel = tf.Variable(x, name="kernel")

    def run():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(kernel * 2.0)
        return hvd.DistributedGradientTape(tape).gradient(loss, [kernel])
    refused(["rank 0", "[2]", "rank 1", "[3]", "kernel"], lambda: how(run)())
    same("after", how(lambda x: hvd.allreduce(x, name="w", op=hvd.Sum))(tf.ones(2)), [n, n])
    refused(["splits"], lambda: how(lambda x: hvd.alltoall(x, [1] * n + [1]))(tf.ones(2)))
    refused(["without a dimension"], lambda: how(hvd.allgather)(tf.constant(1.0)))
    refused(["none of the ranks"], lambda: how(lambda x: hvd.broadcast(x, n))(x))


for how in (lambda function: function, tf.function):
    for part in (reductions, moves, gradients, local_sources, errors):
        part(how)
for part in (tapes, graphs, many, two_runs, optimizers, passes, states, refusals):
    part()
print("done", flush=True)
'''


@pytest.mark.parametrize("python", [one for one in pythons_with(
    "tensorflow", "tensorflow-cpu of pip") if one.id != "here"])
@pytest.mark.parametrize("count", [2, 3])
def test_horovod_tensorflow_is_what_one_process_computes(ranks, python, count):
    ranks.python = python
    ranks.environment["TF_CPP_MIN_LOG_LEVEL"] = "2"
    ranks.environment["PYTHONPATH"] += f":{SOURCE / 'python' / 'horovod'}"
    assert ranks(count, PROGRAM, timeout=600) == [["done"]] * count
