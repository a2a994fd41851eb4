/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GRADUS_VERSION_H
#define GRADUS_VERSION_H

#include <gradus/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GR_VERSION_MAJOR 0
#define GR_VERSION_MINOR 1
#define GR_VERSION_PATCH 0

/* "0.1.0": the version of the library at run time. Any thread. */
GR_API const char *gr_version(void);

#ifdef __cplusplus
}
#endif
#endif
