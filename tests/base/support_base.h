/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TESTS_BASE_SUPPORT_H
#define GR_TESTS_BASE_SUPPORT_H

/* What the tests of this layer share. Includes cmocka in the order it wants. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <gradus/status.h>

/* A fresh folder that *state names; the teardown removes it with what is in it. */
int support_setup_folder(void **state);
int support_teardown_folder(void **state);

/* "<folder>/<name>" in a buffer of PATH_MAX bytes. */
void support_path(const void *folder, const char *name, char *path_out);

/* status is GR_E_INVALID and diag says exactly `text`. */
void support_assert_invalid(gr_status status, const gr_diag *diag, const char *text);

#endif
