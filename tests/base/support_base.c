/* SPDX-License-Identifier: Apache-2.0 */
#include "support_base.h"

#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int support_setup_folder(void **state)
{
    char *folder = strdup("/tmp/gradus-test-"
                          "XX"
                          "XX"
                          "XX");
    if (folder == NULL || mkdtemp(folder) == NULL) {
        free(folder);
        return -1;
    }
    *state = folder;
    return 0;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *place)
{
    (void)info;
    (void)kind;
    (void)place;
    return remove(path);
}

int support_teardown_folder(void **state)
{
    int result = nftw(*state, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(*state);
    return result;
}

void support_path(const void *folder, const char *name, char *path_out)
{
    snprintf(path_out, PATH_MAX, "%s/%s", (const char *)folder, name);
}

void support_assert_invalid(gr_status status, const gr_diag *diag, const char *text)
{
    assert_string_equal(diag->text, text);
    assert_int_equal(status, GR_E_INVALID);
    assert_int_equal(diag->status, GR_E_INVALID);
    assert_int_equal(diag->peer_rank, -1);
}
