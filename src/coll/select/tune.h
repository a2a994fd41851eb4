/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_COLL_SELECT_TUNE_H
#define GR_COLL_SELECT_TUNE_H

/* What was measured on a machine, and the file that `gradus tune` writes it to. */

#include "base/config.h"
#include "coll/select/select.h"
#include "link/link.h"

/* What was measured, and where. */
typedef struct gr_tuning {
    char processor[96]; /* as the operating system calls it */
    int cores;
    int ranks;
    gr_link_kind link;
    int rails; /* connections of a pair of ranks, over tcp */
    gr_cost_model model;
    gr_select_rules rules[2]; /* [exact]: the fastest, range by range */
} gr_tuning;

/* The processor and the number of cores of this machine, defaults for everything else. */
void gr_tuning_init(gr_tuning *tuning, int ranks, gr_link_kind link, int rails);

/* ---- The file -------------------------------------------------------------------------------- */
#define GR_TUNING_FORMAT "gradus-tune"
enum { GR_TUNING_VERSION = 4 };

extern const gr_config_table gr_tuning_costs; /* keys of the costs, of a gr_model */

/* Reads what `gradus tune` wrote (tune_file.c describes the format). GR_E_INVALID with "file:line"
 * in diag: damaged, of another version, or with rules that do not exist here; then *tuning_out is
 * undefined. GR_E_NOT_FOUND, GR_E_IO, GR_E_NO_MEMORY. */
gr_status gr_tuning_read(const char *path, gr_tuning *tuning_out, gr_diag *diag) GR_MUST_CHECK;
/* GR_OK if `tuning` was measured on such a machine, with `ranks` ranks over this kind of link with
 * `rails` connections; otherwise GR_E_INVALID. */
gr_status gr_tuning_check(const gr_tuning *tuning, const char *path, int ranks, gr_link_kind link,
                          int rails, gr_diag *diag) GR_MUST_CHECK;

#endif
