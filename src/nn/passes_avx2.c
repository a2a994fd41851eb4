/* SPDX-License-Identifier: Apache-2.0 */
#define GR_PASSES_TABLE gr_passes_avx2
#include "nn/passes_body.h"
