/* SPDX-License-Identifier: Apache-2.0 */
/* A launcher that comes to a job whose supervisor goes at that moment. */
#include "launch/agent/takeover.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static void supervisor_that_goes_before_it_accepts_has_just_ended(void **state)
{
    (void)state;
    char runtime[] = "/tmp/gradus-test-XXXXXX", base[64];
    assert_non_null(mkdtemp(runtime));
    assert_int_equal(setenv("XDG_RUNTIME_DIR", runtime, 1), 0);
    const gr_job_record record = {.start_s = 1, .run = "run", .command = "gradus run"};
    gr_job_message message = {.kind = GR_JOB_STATUS};
    gr_job_status status;
    gr_job_folder folder;
    int listen_fd;
    assert_int_equal(gr_job_folder_create("name", &record, &folder, &listen_fd, NULL), GR_OK);
    int sender = gr_job_folder_connect(&folder), receiver = gr_job_folder_connect(&folder);
    assert_true(sender >= 0 && receiver >= 0);
    assert_int_equal(gr_job_send(receiver, &message, NULL), 0);
    close(listen_fd);
    assert_int_equal(gr_job_send(sender, &message, NULL), EPIPE);
    assert_int_equal(gr_job_receive(receiver, &message, NULL), EPIPE);
    close(sender);
    close(receiver);
    assert_int_equal(gr_takeover_ask(&folder, GR_JOB_STATUS, 0, &status, NULL), GR_E_AGAIN);
    gr_job_folder_remove(&folder);
    gr_job_folder_close(&folder);
    snprintf(base, sizeof base, "%s/gradus", runtime);
    assert_int_equal(rmdir(base), 0);
    assert_int_equal(rmdir(runtime), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(supervisor_that_goes_before_it_accepts_has_just_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
