/* SPDX-License-Identifier: Apache-2.0 */

/* Where a job writes. */

#include "train/job/job_internal.h"

#include "base/fail.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WHY_BYTES = 160 };

/* Shortens `path` to the folder above; "." or "/" at the end of the way. */
static void go_up(char *path)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') {
        length--;
    }
    while (length > 0 && path[length - 1] != '/') {
        length--;
    }
    while (length > 1 && path[length - 1] == '/') {
        length--;
    }
    if (length == 0) {
        strcpy(path, "."); /* `path` is at least one character long */
        return;
    }
    path[length] = '\0';
}

static gr_status output_fail(const char *what, const gr_node *node, const char *output,
                             const char *at, const char *why, gr_diag *diag)
{
    return gr_node_fail(
        node, diag, GR_E_INVALID,
        "the %s folder %s cannot be written: %s%s%s; choose another one (%s)", what, output,
        strcmp(output, at) != 0 ? at : "", strcmp(output, at) != 0 ? ": " : "", why,
        strcmp(what, "output") == 0 ? "output, --output" : "checkpoint: to, --checkpoint-to");
}

/* Makes something in `folder`: the one test that root, read-only mounts and folders of the kernel
 * do not fool. A file without a name, so that who is killed meanwhile leaves nothing; where there
 * are none, a folder that is removed again. */
static int try_folder(const char *folder)
{
    char probe[PATH_MAX];
    int file = open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    if (file >= 0) {
        return close(file) == 0 ? 0 : errno;
    }
    int length = snprintf(probe, sizeof probe, "%s/.gradus-??????", folder);
    if (length < 0 || length >= (int)sizeof probe) {
        return ENAMETOOLONG;
    }
    memset(probe + length - 6, 'X', 6);
    if (mkdtemp(probe) == NULL) {
        return errno;
    }
    return rmdir(probe) == 0 ? 0 : errno;
}

static gr_status check_output(const char *what, const char *path, const gr_node *node,
                              gr_diag *diag)
{
    char at[PATH_MAX];
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof at) {
        return gr_node_fail(node, diag, GR_E_INVALID,
                            "the name of the %s folder has %zu characters; give 1 to %zu", what,
                            length, sizeof at - 1);
    }
    memcpy(at, path, length + 1);
    struct stat info;
    /* The part of the way that exists; the rest is created when the training starts. */
    while (stat(at, &info) != 0) {
        struct stat link;
        if (errno == ENOENT && lstat(at, &link) == 0) {
            return output_fail(what, node, path, at, "it is a link to nothing", diag);
        }
        if (errno != ENOENT || strcmp(at, ".") == 0 || strcmp(at, "/") == 0) {
            return output_fail(what, node, path, at, strerror(errno), diag);
        }
        go_up(at);
    }
    if (!S_ISDIR(info.st_mode)) {
        return output_fail(what, node, path, at, "it is a file, not a folder", diag);
    }
    int error = try_folder(at);
    if (error == 0) {
        return GR_OK;
    }
    char why[WHY_BYTES];
    snprintf(why, sizeof why, "no folder can be made in it (%s)", strerror(error));
    return output_fail(what, node, path, at, why, diag);
}

/* A file in the output folder. `by_line`: it is open while the training runs, so that a FIFO would
 * make it wait for readers; any other is written at the end, at once. */
static gr_status check_file(const char *output, const char *name, bool by_line, const gr_node *node,
                            gr_diag *diag)
{
    char path[PATH_MAX];
    struct stat info;
    gr_status status = gr_path_join(output, name, path, sizeof path, diag);
    if (status != GR_OK || stat(path, &info) != 0) {
        return status; /* what is not there is made */
    }
    if (S_ISDIR(info.st_mode)) {
        return output_fail("output", node, output, path, "it is a folder, not a file", diag);
    }
    if (by_line && S_ISFIFO(info.st_mode)) {
        return output_fail("output", node, output, path, "it is a FIFO", diag);
    }
    int fd = by_line ? open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC) : -1;
    if (by_line && fd < 0) {
        return output_fail("output", node, output, path, strerror(errno), diag);
    }
    if (fd >= 0) {
        close(fd);
    }
    return GR_OK;
}

static gr_status check_files(const char *output, const gr_node *node, gr_diag *diag)
{
    gr_status status = check_file(output, "metrics.jsonl", true, node, diag);
    return status == GR_OK ? check_file(output, "model.safetensors", false, node, diag) : status;
}

/* "examples/digits/cnn.yaml" -> "cnn" */
static char *name_of(gr_job *job)
{
    const char *slash = strrchr(job->path, '/');
    char *name = gr_arena_strdup(&job->arena, slash != NULL ? slash + 1 : job->path);
    char *dot = name != NULL ? strrchr(name, '.') : NULL;
    if (dot != NULL && dot != name) {
        *dot = '\0';
    }
    return name;
}

/* Where the setting stands, if it is not from a flag. */
static const gr_node *place_of(const gr_node *section, const char *key, const char *text)
{
    const gr_node *node = gr_node_get(section, key);
    bool from_file = node != NULL && node->kind == GR_NODE_SCALAR && strcmp(node->text, text) == 0;
    return from_file ? node : NULL;
}

bool gr_job_writes_checkpoints(const gr_job *job)
{
    return job->checkpoint.every != NULL || job->checkpoint.keep_best;
}

gr_status gr_job_resolve_output(gr_job *job, gr_diag *diag)
{
    gr_checkpoint_config *checkpoint = &job->checkpoint;
    if (job->config.name == NULL || job->config.name[0] == '\0') {
        job->config.name = name_of(job);
    }
    if (job->config.name != NULL && job->config.output == NULL) {
        job->config.output = gr_arena_printf(&job->arena, "out/%s", job->config.name);
    }
    if (job->config.output != NULL && checkpoint->to == NULL) {
        checkpoint->to = gr_arena_printf(&job->arena, "%s/checkpoints", job->config.output);
    }
    if (checkpoint->to == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "%s: no memory for the job", job->path);
    }
    if (job->writes_nothing) {
        return GR_OK;
    }
    const gr_node *place = place_of(job->root, "output", job->config.output);
    gr_status status = check_output("output", job->config.output, place, diag);
    if (status == GR_OK) {
        status = check_files(job->config.output, place, diag);
    }
    return status == GR_OK && gr_job_writes_checkpoints(job)
               ? check_output("checkpoint", checkpoint->to,
                              place_of(job->config.checkpoint, "to", checkpoint->to), diag)
               : status;
}
