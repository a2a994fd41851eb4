# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of `gradus submit` against an API server of the tests' own."""
import os

import pytest

from kube_pods import PodApi


@pytest.fixture
def api(certificates, tmp_path):
    api = PodApi(certificates)
    api.pod_folder = tmp_path / "pods"
    yield api
    api.close()


@pytest.fixture
def cluster(gradus, api, tmp_path):
    """The command, whose kubeconfig is that of the server."""
    gradus.settings["KUBECONFIG"] = str(api.kubeconfig(tmp_path / "config"))
    return gradus


@pytest.fixture
def code(tmp_path):
    """A folder that is too large for ConfigMaps."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)")
    (folder / "data").write_bytes(os.urandom(9_000_000))
    return folder
