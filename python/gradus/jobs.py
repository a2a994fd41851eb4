# SPDX-License-Identifier: Apache-2.0
"""A function or a program becomes a job in one call: on this host and others by `gradus run`, on a
Kubernetes cluster by `gradus submit`.

    from gradus import jobs
    jobs.train(train, {"epochs": 3}, {"distribution_type": "PyTorch", "number_of_workers": 4})
    jobs.train(train, {"epochs": 3}, {"number_of_workers": 4}, namespace="team")

A cluster is meant where one of these is given; `gradus ls`, logs, wait and stop know the job there.

    namespace   the namespace of the cluster; otherwise that of the context
    context     the context of the kubeconfig; otherwise its current one
    kubeconfig  a file; otherwise KUBECONFIG, else ~/.kube/config

docs/notebooks.md is the guide. Importing it imports nothing else."""
from ._jobs import Job, JobError, train
from ._workers import await_workers, launch_workers, list_workers, run_cluster, stop_workers

__all__ = ["Job", "JobError", "await_workers", "launch_workers", "list_workers", "run_cluster",
           "stop_workers", "train"]
