/* SPDX-License-Identifier: Apache-2.0 */
/* A client of an engine that does not answer. */
#include "base/clock.h"
#include "operator/local/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { PATIENCE_S = 60 };

/* It prints an id, and then does that; the container with that id is removed. */
static void clear_with(const char *hangs)
{
    char folder[] = "/tmp/gradus-test-XXXXXX", path[96], command[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s:/usr/bin:/bin", folder);
    assert_int_equal(setenv("PATH", path, 1), 0); /* where programs are looked for */
    snprintf(path, sizeof path, "%s/podman", folder);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fprintf(
        file,
        "#!/bin/sh\ncd %s\ncase $1 in\nps) echo 1234; %s;;\nrm) echo \"$@\" > removed;;\nesac\n",
        folder, hangs);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, S_IRWXU), 0);
    alarm(PATIENCE_S);
    gr_engine_clear("podman", "run", environ);
    alarm(0);
    snprintf(path, sizeof path, "%s/removed", folder);
    assert_int_equal(access(path, F_OK), 0);
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    assert_int_equal(system(command), 0);
}

static void engine_client_that_neither_answers_nor_ends_is_killed(void **state)
{
    (void)state;
    clear_with("exec sleep 1000");
}

static void engine_client_that_answers_is_not_waited_for(void **state)
{
    int64_t begin_us = gr_now_ns() / 1000;
    (void)state;
    clear_with("exit 0");
    assert_true(gr_now_ns() / 1000 - begin_us < 9000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engine_client_that_neither_answers_nor_ends_is_killed),
        cmocka_unit_test(engine_client_that_answers_is_not_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
