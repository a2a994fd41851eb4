/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_SIM_PS_SIMULATE_RUN_H
#define GR_SIM_PS_SIMULATE_RUN_H

/* What ps_simulate.c (the face) takes from ps_simulate_run.c (the events). */

#include "sim/ps_simulate.h"

/* Deviation of the logarithm of computing times. */
double gr_ps_sim_sigma(const gr_ps_sim *sim);
/* How many times as long a worker computes in a round as without spread and slow workers: a
 * lognormal factor of mean 1, which is never negative, and now and then is very large, times the
 * worker's own. */
double gr_ps_sim_factor(const gr_ps_sim *sim, double sigma, int rank, uint32_t round);

/* `sim` makes sense. */
gr_status gr_ps_sim_run(const gr_ps_sim *sim, gr_ps_simulated *simulated_out,
                        gr_diag *diag) GR_MUST_CHECK;

#endif
