/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of peer.h on MPI: built once with Open MPI's compiler and once with MPICH's. */
#include "peer.h"

#include <mpi.h>

static bool prepare(void *arg, peer_case *c)
{
    static const char *const known[] = {"allreduce", "reduce",   "reduce-scatter",  "allgather",
                                        "gather",    "scatter",  "broadcast",       "alltoall",
                                        "barrier",   "sendrecv", "reduce-broadcast"};
    (void)arg;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (peer_is(c, known[i])) {
            return true;
        }
    }
    return false;
}

static void run_rooted(const peer_case *c, int count)
{
    bool root = c->rank == 0;
    if (peer_is(c, "reduce")) {
        MPI_Reduce(root ? MPI_IN_PLACE : c->out, root ? c->out : NULL, count, MPI_FLOAT, MPI_SUM, 0,
                   MPI_COMM_WORLD);
    } else if (peer_is(c, "gather")) {
        MPI_Gather(root ? MPI_IN_PLACE : c->out + (size_t)c->rank * c->count, count, MPI_FLOAT,
                   root ? c->out : NULL, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
    } else if (peer_is(c, "scatter")) {
        MPI_Scatter(root ? c->out : NULL, count, MPI_FLOAT, root ? MPI_IN_PLACE : c->out, count,
                    MPI_FLOAT, 0, MPI_COMM_WORLD);
    } else {
        MPI_Bcast(c->out, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
    }
}

static void run(void *arg, peer_case *c)
{
    (void)arg;
    int count = (int)c->count;
    if (peer_is(c, "allreduce")) {
        MPI_Allreduce(MPI_IN_PLACE, c->out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    } else if (peer_is(c, "reduce-broadcast")) { /* what a parameter server does */
        MPI_Reduce(c->rank == 0 ? MPI_IN_PLACE : c->out, c->rank == 0 ? c->out : NULL, count,
                   MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
        MPI_Bcast(c->out, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
    } else if (peer_is(c, "allgather")) {
        MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, c->out, count, MPI_FLOAT, MPI_COMM_WORLD);
    } else if (peer_is(c, "alltoall")) {
        MPI_Alltoall(c->in, count, MPI_FLOAT, c->out, count, MPI_FLOAT, MPI_COMM_WORLD);
    } else if (peer_is(c, "reduce-scatter")) {
        MPI_Reduce_scatter_block(c->in, c->out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    } else if (peer_is(c, "barrier")) {
        MPI_Barrier(MPI_COMM_WORLD);
    } else if (peer_is(c, "sendrecv")) {
        MPI_Sendrecv(c->in, count, MPI_FLOAT, (c->rank + 1) % c->size, 0, c->out, count, MPI_FLOAT,
                     (c->rank + c->size - 1) % c->size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        run_rooted(c, count);
    }
}

static void sum(void *arg, double *values, int count)
{
    (void)arg;
    MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv); /* errors end the program: MPI's default */
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const peer_calls calls = {NULL, prepare, run, sum, NULL};
    const char *operation = argc > 1 ? argv[1] : "";
    /* What has no fast form in place is measured out of place. */
    bool separate = strcmp(operation, "alltoall") == 0 || strcmp(operation, "sendrecv") == 0 ||
                    strcmp(operation, "reduce-scatter") == 0;
    int code = peer_main(argc, argv, &calls, rank, size, separate);
    MPI_Finalize();
    return code;
}
