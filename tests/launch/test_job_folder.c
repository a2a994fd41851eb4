/* SPDX-License-Identifier: Apache-2.0 */
/* Whose the exit code of a job is: its launcher's while its supervisor lives, whoever asks next
 * after that. */
#include "launch/agent/job_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static gr_job_state state_of(const char *name, int *code_out)
{
    gr_job_folder folder;
    gr_job_end end = {.code = -1};
    assert_int_equal(gr_job_folder_open(name, &folder, NULL), GR_OK);
    gr_job_state state = gr_job_folder_state(&folder, &end);
    gr_job_folder_close(&folder);
    *code_out = end.code;
    return state;
}

static void job_folder_keeps_an_end_for_its_launcher(void **state)
{
    (void)state;
    char runtime[] = "/tmp/gradus-test-XXXXXX", path[64], name[GR_JOB_NAME_BYTES];
    assert_non_null(mkdtemp(runtime));
    assert_int_equal(setenv("XDG_RUNTIME_DIR", runtime, 1), 0);
    const gr_job_record record = {
        .start_s = 1, .identity = 2, .run = "run", .command = "gradus run"};
    const gr_job_end end = {.code = 7, .end_s = 9};
    gr_job_folder folder;
    int listen_fd, code;
    assert_int_equal(gr_job_folder_create(NULL, &record, &folder, &listen_fd, NULL), GR_OK);
    snprintf(name, sizeof name, "%s", folder.name);
    assert_int_equal(state_of(name, &code), GR_JOB_RUNS);
    assert_int_equal(gr_job_folder_write_end(&folder, &end), 0);
    assert_int_equal(state_of(name, &code), GR_JOB_RUNS);
    close(listen_fd);
    gr_job_folder_close(&folder); /* and with it the lock */
    assert_int_equal(state_of(name, &code), GR_JOB_ENDED);
    assert_int_equal(code, 7);
    assert_int_equal(gr_job_folder_open(name, &folder, NULL), GR_OK);
    gr_job_folder_remove(&folder);
    assert_int_equal(gr_job_folder_state(&folder, &(gr_job_end){0}), GR_JOB_LOST);
    gr_job_folder_close(&folder);
    assert_int_equal(gr_job_folder_open(name, &folder, NULL), GR_E_NOT_FOUND);
    snprintf(path, sizeof path, "%s/gradus", runtime);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rmdir(runtime), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(job_folder_keeps_an_end_for_its_launcher),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
