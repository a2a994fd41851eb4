# SPDX-License-Identifier: Apache-2.0
"""gradus.spark with Spark itself, where an interpreter of GRADUS_PYTHONS has pyspark."""
import shutil

import pytest

from conftest import pythons_with
from test_ray import FAILED, TOTALS, WENT_ON, answers

pytestmark = pytest.mark.long

SPARK = '''
import gradus.spark
from pyspark.sql import SparkSession

session = SparkSession.builder.master("local[4,4]").config("spark.ui.enabled", "false").config(
    "spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1").getOrCreate()
env = {"WORD": "here"}
told(gradus.spark.run, total, (10,), num_proc=4, env=env)
told(gradus.spark.run, fail, (2,), num_proc=4)
told(gradus.spark.run, fail_early, (2,), num_proc=4)
told(gradus.spark.run, die, (1,))
told(gradus.spark.run, total, (10,), num_proc=5, env=env)
told(gradus.spark.run, total, (10,), env=env)
import horovod.spark
told(horovod.spark.run, total, (10,), num_proc=4, env=env, verbose=2, nics=["lo"])
told(lambda: sorted(horovod.spark.run_elastic(go_on, num_proc=3, min_np=1, env=env)))
told(horovod.spark.run_elastic, fail, (1,), num_proc=2)
session.stop()
'''


@pytest.fixture(params=[one for one in pythons_with("pyspark", "pyspark of pip")
                        if one.id != "here"])
def spark_ranks(request, ranks):
    ranks.python = request.param
    return ranks


def test_spark_runs_functions_and_names_a_task_that_is_lost(spark_ranks):
    if shutil.which("java") is None:
        pytest.skip("there is no java (Debian: openjdk-17-jre-headless)")
    python = spark_ranks.python
    lines = answers(spark_ranks, SPARK, {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python})
    assert lines[:3] == [TOTALS, FAILED, FAILED]
    lines.pop(2)
    assert lines[2].startswith("1 Py4JJavaError("), lines
    assert " False run: rank 1 failed: Spark lost its task: " in lines[2], lines
    assert lines[3].startswith("InvalidError run: num_proc is 5, and Spark runs 4 tasks at a time")
    assert lines[4:6] == [TOTALS, TOTALS]
    assert lines[6:] == [WENT_ON, "1 KeyError('no such sample') True run: rank 1 failed: KeyError: "
                         "'no such sample'"]
