/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/local/pod_files.h"

#include "operator/local/room.h"

#include "base/fail.h"
#include "base/file.h"
#include "operator/local/base64.h"
#include "operator/object.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MODE_OF_FILES = 0644, MODE_OF_FOLDERS = 0755, MODE_OF_EMPTY = 0777 };

/* Of a ConfigMap or a Secret, what counts most first. */
static const char *const parts[] = {"stringData", "data", "binaryData"};

/* The volumes of one pod while they are written. */
typedef struct pod_files {
    const gr_store *store;
    gr_pod_plan *plan;
    gr_arena *arena;
    gr_diag *diag;
    const char *stand_in;
} pod_files;

/* With its parents; nothing of it has to be durable. */
static gr_status make_folder(const pod_files *f, const char *path)
{
    int error = gr_room_make_folders(path);
    return error == 0 ? GR_OK : gr_fail_errno(f->diag, "create", path, error);
}

/* Returns true if the path does not lead out of where it begins. */
static bool is_inside(const char *path)
{
    const char *at = path;
    for (;; at++) {
        size_t length = strcspn(at, "/");
        if (length == 2 && strncmp(at, "..", 2) == 0) {
            return false;
        }
        at += length;
        if (*at == '\0') {
            return path[0] != '/' && path[0] != '\0';
        }
    }
}

/* A name of a volume or of a claim, which becomes a folder's. */
static bool is_name(const char *name)
{
    return name != NULL && name[0] != '\0' && name[0] != '.' && strchr(name, '/') == NULL;
}

/* Who reads sees the old file or the new one. */
static gr_status write_file(const pod_files *f, const char *folder, const char *name,
                            const char *data, size_t size_bytes, int64_t mode)
{
    char path[PATH_MAX], next[PATH_MAX + 8];
    int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    if (length >= (int)sizeof path || !is_inside(name)) {
        return gr_fail(f->diag, GR_E_INVALID, "pod %s: a file of a volume cannot be called \"%s\"",
                       f->plan->name, name);
    }
    char *slash = strrchr(path, '/');
    *slash = '\0';
    gr_status status = make_folder(f, path);
    *slash = '/';
    if (status != GR_OK) {
        return status;
    }
    snprintf(next, sizeof next, "%s/..next", folder); /* no key is called so */
    int fd = open(next, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    int error = fd < 0 ? errno : gr_fd_write(fd, data, size_bytes);
    if (error == 0 && fchmod(fd, (mode_t)(mode & 0777)) != 0) {
        error = errno;
    }
    if (fd >= 0) {
        close(fd);
    }
    if (error == 0 && rename(next, path) != 0) {
        error = errno;
    }
    return error != 0 ? gr_fail_errno(f->diag, "write", path, error) : GR_OK;
}

/* One key of a ConfigMap or a Secret. */
static gr_status write_key(const pod_files *f, const json_t *object, const char *key,
                           const char *folder, const char *name, int64_t mode)
{
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        const char *text =
            json_string_value(json_object_get(json_object_get(object, parts[i]), key));
        bool is_encoded = i == 2 || (i == 1 && gr_object_is(object, "v1", "Secret"));
        if (text == NULL) {
            continue;
        }
        size_t size_bytes = strlen(text);
        char *decoded = is_encoded ? gr_base64_decode(text, &size_bytes) : NULL;
        gr_status status =
            is_encoded && decoded == NULL
                ? gr_fail(f->diag, GR_E_INVALID, "%s \"%s\": the value of \"%s\" must be base64",
                          gr_object_text(object, "kind"), gr_object_text(object, "metadata.name"),
                          key)
                : write_file(f, folder, name, is_encoded ? decoded : text, size_bytes, mode);
        free(decoded);
        return status;
    }
    return gr_fail(f->diag, GR_E_NOT_FOUND,
                   "pod %s needs key \"%s\" of %s \"%s\", which is not there", f->plan->name, key,
                   gr_object_text(object, "kind"), gr_object_text(object, "metadata.name"));
}

static bool has_key(const json_t *object, const char *key)
{
    bool has = false;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        has |= json_object_get(json_object_get(object, parts[i]), key) != NULL;
    }
    return has;
}

static gr_status write_all(const pod_files *f, const json_t *object, const char *folder,
                           int64_t mode)
{
    gr_status status = GR_OK;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        const char *key;
        json_t *value;
        json_object_foreach(json_object_get(object, parts[i]), key, value)
        {
            status = status == GR_OK ? write_key(f, object, key, folder, key, mode) : status;
        }
    }
    return status;
}

/* A source {name or secretName, items, defaultMode, optional}. */
static gr_status write_object(const pod_files *f, const char *kind, const json_t *source,
                              const char *folder)
{
    const char *name = gr_object_text(source, "secretName");
    name = name != NULL ? name : gr_object_text(source, "name");
    const json_t *object = gr_store_find(f->store, "v1", kind, f->plan->space, name), *item;
    const json_t *items = json_object_get(source, "items");
    int64_t mode = gr_object_int(source, "defaultMode", MODE_OF_FILES);
    bool is_optional = gr_object_true(source, "optional");
    size_t i;
    if (object == NULL) {
        return is_optional
                   ? GR_OK
                   : gr_fail(f->diag, GR_E_NOT_FOUND,
                             "pod %s needs %s \"%s\", which is not there; add it to the manifest",
                             f->plan->name, kind, name != NULL ? name : "");
    }
    if (items == NULL) {
        return write_all(f, object, folder, mode);
    }
    gr_status status = GR_OK;
    json_array_foreach(items, i, item)
    {
        const char *key = gr_object_text(item, "key"), *path = gr_object_text(item, "path");
        bool is_left_out = key == NULL || path == NULL || (is_optional && !has_key(object, key));
        if (status == GR_OK && !is_left_out) {
            status = write_key(f, object, key, folder, path, gr_object_int(item, "mode", mode));
        }
    }
    return status;
}

static gr_status write_projected(const pod_files *f, const json_t *volume, const char *folder)
{
    gr_status status = GR_OK;
    size_t i;
    const json_t *source;
    json_array_foreach(gr_object_at(volume, "projected.sources"), i, source)
    {
        const json_t *map = json_object_get(source, "configMap");
        const json_t *secret = json_object_get(source, "secret");
        if (status == GR_OK && (map != NULL || secret != NULL)) {
            status = write_object(f, map != NULL ? "ConfigMap" : "Secret",
                                  map != NULL ? map : secret, folder);
        }
    }
    return status;
}

/* Where the volume is; what is made of it lies in `folder`. */
static gr_status write_volume(pod_files *f, const json_t *volume, const char *folder,
                              const char **source_out)
{
    const char *host_path = gr_object_text(volume, "hostPath.path");
    const char *claim = gr_object_text(volume, "persistentVolumeClaim.claimName");
    *source_out = folder;
    if (host_path != NULL) {
        *source_out = host_path;
        return gr_object_is_text(volume, "hostPath.type", "DirectoryOrCreate")
                   ? make_folder(f, host_path)
                   : GR_OK;
    }
    if (claim != NULL && !is_name(claim)) {
        return gr_fail(f->diag, GR_E_INVALID,
                       "pod %s: a PersistentVolumeClaim cannot be called \"%s\"", f->plan->name,
                       claim);
    }
    if (claim != NULL) { /* it outlives the pod: a folder of the user */
        char here[PATH_MAX];
        char *path = getcwd(here, sizeof here) != NULL
                         ? gr_arena_printf(f->arena, "%s/%s", here, claim)
                         : NULL;
        *source_out = path;
        return path != NULL ? make_folder(f, path)
                            : gr_fail(f->diag, GR_E_IO, "the working directory is gone");
    }
    gr_status status = make_folder(f, folder);
    const json_t *map = json_object_get(volume, "configMap");
    const json_t *secret = json_object_get(volume, "secret");
    if (status != GR_OK) {
        return status;
    }
    if (map != NULL || secret != NULL) {
        return write_object(f, map != NULL ? "ConfigMap" : "Secret", map != NULL ? map : secret,
                            folder);
    }
    if (json_object_get(volume, "projected") != NULL) {
        return write_projected(f, volume, folder);
    }
    if (json_object_get(volume, "emptyDir") == NULL) {
        f->stand_in = gr_object_text(volume, "name");
    }
    /* As kubelet does: whatever user a container has. No other user reaches the run's folder. */
    return chmod(folder, MODE_OF_EMPTY) == 0 ? GR_OK
                                             : gr_fail_errno(f->diag, "change", folder, errno);
}

gr_status gr_pod_files_write(const gr_store *store, const json_t *pod, const char *folder,
                             gr_arena *arena, gr_pod_plan *plan, const char **stand_in_out,
                             gr_diag *diag)
{
    pod_files f = {.store = store, .plan = plan, .arena = arena, .diag = diag};
    size_t i;
    const json_t *volume;
    json_array_foreach(gr_object_at(pod, "spec.volumes"), i, volume)
    {
        const char *name = gr_object_text(volume, "name"), *source;
        if (!is_name(name)) {
            return gr_fail(diag, GR_E_INVALID, "pod %s: a volume cannot be called \"%s\"",
                           plan->name, name != NULL ? name : "");
        }
        char *path = gr_arena_printf(arena, "%s/volumes/%s", folder, name);
        gr_status status = path != NULL ? write_volume(&f, volume, path, &source)
                                        : gr_fail(diag, GR_E_NO_MEMORY, "no memory for a volume");
        if (status != GR_OK) {
            return status;
        }
        for (size_t k = 0; k < plan->mount_count; k++) {
            gr_volume_mount *mount = &plan->mounts[k];
            if (strcmp(mount->volume, name) == 0) {
                mount->source = mount->sub_path[0] == '\0'
                                    ? source
                                    : gr_arena_printf(arena, "%s/%s", source, mount->sub_path);
            }
        }
    }
    *stand_in_out = f.stand_in;
    for (size_t k = 0; k < plan->mount_count; k++) {
        const char *sub_path = plan->mounts[k].sub_path;
        if (sub_path[0] != '\0' && !is_inside(sub_path)) {
            return gr_fail(diag, GR_E_INVALID, "pod %s: subPath \"%s\" leads out of volume \"%s\"",
                           plan->name, sub_path, plan->mounts[k].volume);
        }
        if (plan->mounts[k].source == NULL) {
            return gr_fail(diag, GR_E_INVALID,
                           "pod %s mounts volume \"%s\", which it does not have", plan->name,
                           plan->mounts[k].volume);
        }
    }
    return GR_OK;
}
