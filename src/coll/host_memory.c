/* SPDX-License-Identifier: Apache-2.0 */
#include "coll/host_memory.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <sys/uio.h>
#include <unistd.h>

/* Of CUDA's driver interface, which is asked if the program has loaded it. */
enum { CUDA_ATTRIBUTE_MEMORY_TYPE = 2, CUDA_MEMORY_TYPE_DEVICE = 2 };

static int read_loads(struct dl_phdr_info *info, size_t size_bytes, void *arg)
{
    (void)size_bytes;
    *(unsigned long long *)arg = info->dlpi_adds;
    return 1; /* the first library is enough */
}

/* To look for a library takes 20 us: again only when the program has loaded one. */
static void find_driver(gr_host_memory *memory)
{
    unsigned long long loads = 0;
    (void)dl_iterate_phdr(read_loads, &loads);
    if (loads == memory->loads || memory->ask_driver) {
        return;
    }
    memory->loads = loads;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    if (driver) { /* and stays */
        union {
            void *symbol;
            gr_pointer_attribute *call;
        } found = {.symbol = dlsym(driver, "cuPointerGetAttribute")};
        memory->ask_driver = found.call;
    }
}

static bool is_of_device(gr_host_memory *memory, uintptr_t address)
{
    find_driver(memory);
    unsigned type = 0;
    return memory->ask_driver &&
           memory->ask_driver(&type, CUDA_ATTRIBUTE_MEMORY_TYPE, address) == 0 &&
           type == CUDA_MEMORY_TYPE_DEVICE;
}

bool gr_host_memory_ask(gr_host_memory *memory, uintptr_t address)
{
    char byte;
    struct iovec to = {.iov_base = &byte, .iov_len = 1};
    struct iovec from = {.iov_base = (void *)address, .iov_len = 1};
    /* Where the system call is not permitted nothing is known, and nothing refused. */
    if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) != 1 && errno == EFAULT) {
        return false;
    }
    if (is_of_device(memory, address)) {
        return false;
    }
    uintptr_t page = address >> 12;
    size_t at = gr_host_memory_place(page);
    memory->pages[at ^ 1] = memory->pages[at];
    memory->pages[at] = page;
    return true;
}
