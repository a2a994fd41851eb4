/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_OPERATOR_LOCAL_PORTS_H
#define GR_OPERATOR_LOCAL_PORTS_H

/* Pods share the host's network. Where a program of a pod listens on all addresses, at a port that
 * the manifest names as the pod's, it listens at the pod's own address in its place: else those of
 * two pods would be in each other's way, or, with SO_REUSEPORT, take each other's connections. The
 * kernel asks about each bind(2) (seccomp), which needs no rights. */

#include <stddef.h>
#include <stdint.h>

typedef struct gr_pod_ports {
    const char *address;
    const uint16_t *ports;
    size_t count;
} gr_pod_ports;

/* From now on the processes that the caller starts ask. Returns the descriptor where their
 * questions come; -1: the kernel does not do it, all is as usual. */
int gr_ports_watch(void);
/* Answers one, when the descriptor is readable. */
void gr_ports_answer(const gr_pod_ports *ports, int fd);

#endif
