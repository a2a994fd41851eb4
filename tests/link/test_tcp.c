/* SPDX-License-Identifier: Apache-2.0 */

/* What only links of the kind tcp have. */

#include "link/mesh.h"
#include "support_pair.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

/* Pacing is for networks: inside a host no link may have an algorithm that paces. */
static void test_local_links_are_not_paced(void **state)
{
    (void)state;
    pair p;
    pair_open(&p, GR_LINK_TCP);
    for (int i = 0; i < 2; i++) {
        char name[16] = "";
        socklen_t size = sizeof name;
        assert_int_equal(getsockopt(p.link[i]->fd, IPPROTO_TCP, TCP_CONGESTION, name, &size), 0);
        assert_string_equal(name, "reno");
    }
    pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_local_links_are_not_paced)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
