/* SPDX-License-Identifier: Apache-2.0 */

/* Any text as what -H says (byte 0 odd) or as a hostfile, and ranks dealt to what is accepted: no
 * name is anything that ssh or a shell would take for something else. */

#include "launch/host_list.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void check_hosts(gr_host_list *hosts)
{
    require(hosts->count >= 1 && hosts->count <= GR_HOSTS_MAX);
    for (int i = 0; i < hosts->count; i++) {
        const char *name = hosts->at[i].name;
        require(name[0] != '\0' && name[0] != '-' && strlen(name) < GR_HOSTS_NAME_BYTES);
        require(hosts->at[i].slots >= 1 && hosts->at[i].slots <= GR_HOSTS_SLOTS_MAX);
        for (; *name != '\0'; name++) {
            require(isalnum((unsigned char)*name) || strchr("._-@:%", *name) != NULL);
        }
        require(gr_host_label(&hosts->at[i]) != NULL);
    }
    int slots = gr_host_list_slots(hosts), workers = slots > 1 ? slots / 2 : 1;
    require(gr_host_list_deal(hosts, slots + 1, NULL) == GR_E_INVALID);
    require(gr_host_list_deal(hosts, workers, NULL) == GR_OK);
    int dealt = 0;
    for (int i = 0; i < hosts->count; i++) {
        require(hosts->at[i].first == dealt && hosts->at[i].workers <= hosts->at[i].slots);
        dealt += hosts->at[i].workers;
    }
    require(dealt == workers);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { ARENA_BYTES_MAX = 1 << 20 };
    if (size < 1) {
        return 0;
    }
    gr_arena arena;
    gr_host_list *hosts = malloc(sizeof *hosts);
    gr_diag diag = {0};
    gr_status status = GR_E_NO_MEMORY;
    gr_arena_init(&arena, ARENA_BYTES_MAX);
    if ((data[0] & 1) != 0) {
        char *text = strndup((const char *)data + 1, size - 1);
        status = text != NULL && hosts != NULL
                     ? gr_host_list_parse(text, "-H", &arena, hosts, &diag)
                     : GR_E_NO_MEMORY;
        free(text);
    } else {
        char path[32];
        int fd = memfd_create("hosts", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/dev/fd/%d", fd);
        if (hosts != NULL && write(fd, data + 1, size - 1) == (ssize_t)size - 1) {
            status = gr_host_list_read(path, &arena, hosts, &diag);
        }
        close(fd);
    }
    if (status == GR_OK) {
        check_hosts(hosts);
    } else {
        require(status == GR_E_NO_MEMORY || diag.text[0] != '\0');
    }
    gr_arena_fini(&arena);
    free(hosts);
    return 0;
}
