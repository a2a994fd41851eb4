/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_LAUNCH_CORES_H
#define GR_LAUNCH_CORES_H

/* Which cores a job may use, and which of them each worker gets. */

#include <gradus/status.h>
#include <stdbool.h>

enum { GR_CORES_MAX = 1024, GR_CORES_TEXT_BYTES = 256 };

typedef struct gr_cores {
    int count;
    int id[GR_CORES_MAX]; /* as the kernel numbers them */
} gr_cores;

/* The cores that this process may run on, ascending. */
gr_status gr_cores_allowed(gr_cores *cores_out, gr_diag *diag) GR_MUST_CHECK;

/* "0,2-3": the cores of `text`, ascending, without repeats; each must be one of `allowed`. `where`
 * ("--cores") begins the sentence of an error. */
gr_status gr_cores_parse(const char *text, const char *where, const gr_cores *allowed,
                         gr_cores *cores_out, gr_diag *diag) GR_MUST_CHECK;

/* Hardware threads of one physical core, and cores of one package, are made neighbours, so that a
 * contiguous part shares as little as possible with the others. Left as it is where the kernel does
 * not give the topology. */
void gr_cores_sort_by_topology(gr_cores *cores);

/* The cores of worker `index` of `workers`: all get the same number, as many as there are for
 * each, or one that as many others share. False: fewer cores than workers, which do not divide
 * evenly: nobody is bound to a part. */
bool gr_cores_deal(const gr_cores *cores, int workers, int index, gr_cores *part_out);

/* "0,2-3"; ends in "..." if `text_out` is too small. */
void gr_cores_print(const gr_cores *cores, char *text_out, size_t text_bytes);

/* Binds the calling thread. Returns 0 or errno; safe between fork and exec. */
int gr_cores_bind(const gr_cores *cores);

#endif
