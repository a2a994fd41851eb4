/* SPDX-License-Identifier: Apache-2.0 */
/* The readers that a program adds, by a definition of its own in place of this one; in a file
 * apart, as src/nn/extra.c. */
#include "data/reader.h"

__attribute__((weak)) const gr_reader_ops *const gr_extra_readers[] = {NULL};
