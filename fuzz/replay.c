/* SPDX-License-Identifier: Apache-2.0 */

/* Runs a fuzz target over saved inputs: each argument is a file or a folder of files. */

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        return -1;
    }
    struct stat info;
    uint8_t *data = NULL;
    if (fstat(fileno(file), &info) != 0 || (data = malloc((size_t)info.st_size + 1)) == NULL) {
        fclose(file);
        return -1;
    }
    /* An exact-size copy, so that a sanitizer sees a read past the end. */
    size_t size = fread(data, 1, (size_t)info.st_size, file);
    fclose(file);
    uint8_t *exact = malloc(size > 0 ? size : 1);
    if (exact != NULL) {
        memcpy(exact, data, size);
        LLVMFuzzerTestOneInput(exact, size);
    }
    free(exact);
    free(data);
    return exact != NULL ? 0 : -1;
}

static int replay_folder(const char *path, long *count)
{
    DIR *dir = opendir(path);
    if (dir == NULL) {
        perror(path);
        return -1;
    }
    int result = 0;
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        char name[4096];
        if (entry->d_name[0] == '.') {
            continue;
        }
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        result |= replay_file(name);
        (*count)++;
    }
    closedir(dir);
    return result;
}

int main(int argc, char **argv)
{
    long count = 0;
    int result = 0;
    for (int i = 1; i < argc; i++) {
        struct stat info;
        if (stat(argv[i], &info) == 0 && S_ISDIR(info.st_mode)) {
            result |= replay_folder(argv[i], &count);
        } else {
            result |= replay_file(argv[i]);
            count++;
        }
    }
    printf("%ld inputs replayed\n", count);
    return result != 0 || count == 0 ? 1 : 0;
}
