/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GRADUS_GRADUS_H
#define GRADUS_GRADUS_H

/* Everything that is installed. */

#include <gradus/coll.h>
#include <gradus/comm.h>
#include <gradus/elastic.h>
#include <gradus/ps.h>
#include <gradus/shards.h>
#include <gradus/stats.h>
#include <gradus/status.h>
#include <gradus/version.h>

#endif
