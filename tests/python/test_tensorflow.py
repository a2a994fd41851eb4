# SPDX-License-Identifier: Apache-2.0
"""`gradus run --roles` with TensorFlow itself, where an interpreter of GRADUS_PYTHONS has it."""
import pytest

from conftest import pythons_with

pytestmark = pytest.mark.long

MIRRORED = '''
import json
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import tensorflow as tf

me = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    weights = tf.Variable(tf.zeros([3, 1]), aggregation=tf.VariableAggregation.MEAN)
data = tf.reshape(tf.range(36, dtype=tf.float32), [12, 3]) / 36
wanted = tf.reduce_sum(data, 1, keepdims=True)


@tf.function
def step(x, y):
    def replica(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((x @ weights - y) ** 2) / 12
        gradient = tape.gradient(loss, weights)
        gradient = tf.distribute.get_replica_context().all_reduce("sum", gradient)
        weights.assign_sub(0.5 * gradient)
        return loss
    return strategy.reduce("SUM", strategy.run(replica, args=(x, y)), axis=None)


losses = [float(step(data[4 * me:4 * me + 4], wanted[4 * me:4 * me + 4])) for _ in range(20)]
alone = tf.zeros([3, 1])
for _ in range(20):
    alone -= 0.5 * 2 / 12 * tf.transpose(data) @ (data @ alone - wanted)
error = float(tf.reduce_max(tf.abs(weights.read_value() - alone)))
print(strategy.num_replicas_in_sync, losses[-1] < losses[0] / 10, error < 1e-4, flush=True)
'''

SERVERS = '''
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    tf.distribute.Server(resolver.cluster_spec(), job_name=resolver.task_type,
                         task_index=resolver.task_id, protocol="grpc").join()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    one, two = tf.Variable(tf.zeros([4])), tf.Variable(0)


@tf.function
def work():
    one.assign_add(tf.ones([4]))
    two.assign_add(2)
    return two.read_value()


results = [coordinator.schedule(work) for _ in range(40)]
coordinator.join()
places = sorted({variable.device.split("/")[3] for variable in (one, two)})
print(one.numpy().tolist(), int(two.numpy()), places, flush=True)
'''


@pytest.fixture(params=[one for one in pythons_with("tensorflow", "tensorflow-cpu of pip")
                        if one.id != "here"])
def tensorflow_ranks(request, ranks):
    ranks.python = request.param
    return ranks


def test_tensorflow_mirrored_strategy_trains_with_three_workers(tensorflow_ranks):
    lines = tensorflow_ranks(3, MIRRORED, flags=["--roles", "worker=3"], timeout=600)
    assert lines == [["3 True True"]] * 3


def test_tensorflow_parameter_servers_end_with_the_chief(tensorflow_ranks):
    lines = tensorflow_ranks(5, SERVERS, flags=["--roles", "chief=1,worker=2,ps=2"],
                             timeout=600)
    assert lines == [["[40.0, 40.0, 40.0, 40.0] 80 ['task:0', 'task:1']"], [], [], [], []]
