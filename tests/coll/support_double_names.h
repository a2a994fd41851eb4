/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TESTS_COLL_SUPPORT_DOUBLE_NAMES_H
#define GR_TESTS_COLL_SUPPORT_DOUBLE_NAMES_H

/* Include before the executor's sources: their links become those of the double, and their memory
 * is counted. */

#include "support_double.h"
#include <stdlib.h>

#define gr_mesh_progress dbl_mesh_progress
#define gr_mesh_link dbl_mesh_link
#define gr_mesh_open_link dbl_mesh_open_link
#define gr_mesh_next_ready dbl_mesh_next_ready
#define gr_mesh_on_demand dbl_mesh_on_demand
#define gr_mesh_capabilities dbl_mesh_capabilities
#define gr_link_capabilities dbl_link_capabilities
#define gr_link_is_up dbl_link_is_up
#define gr_mesh_wait dbl_mesh_wait
#define gr_mesh_alloc dbl_mesh_alloc
#define gr_mesh_free dbl_mesh_free
#define gr_mesh_keep dbl_mesh_keep
#define gr_link_send dbl_link_send
#define gr_link_sent dbl_link_sent
#define gr_link_peek dbl_link_peek
#define gr_link_view dbl_link_view
#define gr_link_read dbl_link_read
#define gr_link_next dbl_link_next
#define gr_link_release dbl_link_release
#define gr_link_discard dbl_link_discard
#define gr_link_diag dbl_link_diag
#define gr_link_expect dbl_link_expect
#define gr_link_has_left dbl_link_has_left

#endif
