# SPDX-License-Identifier: Apache-2.0
"""Fixtures of tests that have an API server: import those that are wanted by name."""
import contextlib
import pathlib
import tempfile

import pytest

import kube_api
from kube_cluster import Cluster, why_not


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return kube_api.make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def api(certificates):
    """The tests' own."""
    api = kube_api.Api(certificates)
    yield api
    api.close()


@contextlib.contextmanager
def control_plane(folder):
    """A real one, with the namespace "team"; skips where there is none."""
    if why_not():
        pytest.skip(why_not())
    # In memory: etcd waits for the disk at each write, for minutes where others write much.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as run:
        cluster = Cluster(folder, pathlib.Path(run))
        cluster.script("up")
        cluster.kubectl("create", "namespace", "team")
        yield cluster
        cluster.script("down")
