/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_NN_THREADS_H
#define GR_NN_THREADS_H

/* So many threads for the kernels that the calling thread runs from now on, as OMP_NUM_THREADS says
 * it to a process that starts. Nothing where the kernels have no threads of their own. */
void gr_kernels_use_threads(int threads);

#endif
