/* SPDX-License-Identifier: Apache-2.0 */

/* The program that travels with a job: one file as it is, or a folder as tar.gz. What is too large
 * for ConfigMaps is packed into a file: it goes to a store of objects, from which pods fetch it, or
 * to each pod. */

#include "base/fail.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"
#include "cli/s3.h"
#include "cli/submit.h"
#include "kube/http.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

#define WORK_PATH "/gradus/work"

enum {
    BLOCK = 512,       /* of a tar file */
    DEPTH_MAX = 32,    /* folders in folders */
    FILES_MAX = 20000, /* in a folder that travels */
    COPY_BYTES = 64 << 10,
    GZIP_WINDOW = 15 + 16,
    GZIP_MEMORY = 8,
    CODE_BYTES_MAX = GR_SUBMIT_PARTS_MAX * GR_SUBMIT_PART_BYTES,
    KEY_HEX = 16 /* of an archive's hash, in its name */
};
#define ARCHIVE_BYTES_MAX (INT64_C(5) << 30) /* of one PUT, at AWS */
#define FILE_BYTES_MAX (INT64_C(1) << 33)    /* more than 11 octal digits can say */
#define TOO_LARGE_ADVICE                                                                           \
    "put it on a volume that pods can mount (--code pvc:CLAIM:/path), or leave out what the "      \
    "program does not need"

/* ---- tar.gz ---------------------------------------------------------------------------------- */

typedef struct archive {
    z_stream zip;
    char *bytes;
    size_t used, room;
    int fd; /* of the file that gets what fills `bytes`; -1: they grow */
    gr_sha256 *sha;
    int64_t written; /* to the file */
    int files;
    const char *top; /* as the user named it */
} archive;

/* A file without a name. */
static gr_status open_temporary(archive *to, gr_diag *diag)
{
    const char *folder = getenv("TMPDIR");
    folder = folder != NULL && folder[0] != '\0' ? folder : "/tmp";
    to->fd = gr_fd_temporary(folder);
    if (to->fd < 0) {
        return gr_fail_errno(diag, "make a temporary file in", folder, errno);
    }
    return gr_sha256_create(&to->sha) == GR_OK
               ? GR_OK
               : gr_fail(diag, GR_E_NO_MEMORY, "no memory to pack %.200s", to->top);
}

/* What has been packed goes to the file. */
static gr_status write_out(archive *to, gr_diag *diag)
{
    char text[GR_ERRNO_TEXT_BYTES];
    int error = gr_fd_write(to->fd, to->bytes, to->used);
    to->written += (int64_t)to->used;
    if (error != 0) {
        return gr_fail(diag, GR_E_IO, "cannot pack %.200s into a temporary file (TMPDIR): %s",
                       to->top, gr_text_errno(error, text));
    }
    if (to->written > ARCHIVE_BYTES_MAX) {
        return gr_fail(diag, GR_E_INVALID,
                       "--code %.200s: packed it has more than %" PRId64 " GiB, the most that "
                       "travels; " TOO_LARGE_ADVICE,
                       to->top, ARCHIVE_BYTES_MAX >> 30);
    }
    gr_status status = gr_sha256_add(to->sha, to->bytes, to->used);
    to->used = 0;
    return status == GR_OK ? GR_OK : gr_fail(diag, status, "no SHA-256 of %.200s", to->top);
}

/* Room for more of the archive. */
static gr_status make_room(archive *to, gr_diag *diag)
{
    if (to->fd < 0 && to->room > CODE_BYTES_MAX) {
        gr_status status = open_temporary(to, diag);
        if (status != GR_OK) {
            return status;
        }
    }
    if (to->fd >= 0 && to->room > 0) {
        return write_out(to, diag);
    }
    size_t room = to->room > 0 ? 2 * to->room : COPY_BYTES;
    char *bytes = realloc(to->bytes, room);
    if (bytes == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory to pack %.200s", to->top);
    }
    to->bytes = bytes;
    to->room = room;
    return GR_OK;
}

static gr_status deflate_all(archive *to, const void *data, size_t size_bytes, int flush,
                             gr_diag *diag)
{
    to->zip.next_in = (Bytef *)(uintptr_t)data;
    to->zip.avail_in = (uInt)size_bytes;
    int code = Z_OK;
    do {
        gr_status status = to->used == to->room ? make_room(to, diag) : GR_OK;
        if (status != GR_OK) {
            return status;
        }
        to->zip.next_out = (Bytef *)to->bytes + to->used;
        to->zip.avail_out = (uInt)(to->room - to->used);
        code = deflate(&to->zip, flush);
        to->used = to->room - to->zip.avail_out;
    } while (to->zip.avail_out == 0 || (flush == Z_FINISH && code == Z_OK));
    return GR_OK;
}

/* An entry's head (POSIX ustar). Owner and times are nobody's, so that the same files give the same
 * archive. */
static gr_status add_head(archive *to, const char *name, char type, unsigned mode, int64_t size,
                          const char *target, gr_diag *diag)
{
    char head[BLOCK] = {0};
    size_t length = strlen(name), cut = 0;
    if (length > 100) { /* what is in front of a slash goes elsewhere */
        for (size_t i = length - 101; i < length && i <= 155 && cut == 0; i++) {
            cut = name[i] == '/' ? i : 0;
        }
    }
    if ((length > 100 && cut == 0) || (target != NULL && strlen(target) > 100)) {
        return gr_fail(diag, GR_E_INVALID, "--code: the path %.200s is too long to be packed",
                       name);
    }
    memcpy(head, name + (cut > 0 ? cut + 1 : 0), length - (cut > 0 ? cut + 1 : 0));
    memcpy(head + 345, name, cut);
    snprintf(head + 100, 8, "%07o", mode & 0777U);
    snprintf(head + 108, 8, "%07o", 0U);
    snprintf(head + 116, 8, "%07o", 0U);
    snprintf(head + 124, 12, "%011llo", (unsigned long long)size);
    snprintf(head + 136, 12, "%011o", 0U);
    memset(head + 148, ' ', 8);
    head[156] = type;
    if (target != NULL) {
        memcpy(head + 157, target, strlen(target));
    }
    memcpy(head + 257, "ustar\00000", 8);
    unsigned sum = 0;
    for (size_t i = 0; i < sizeof head; i++) {
        sum += (unsigned char)head[i];
    }
    snprintf(head + 148, 8, "%06o", sum);
    return deflate_all(to, head, sizeof head, Z_NO_FLUSH, diag);
}

static gr_status add_file(archive *to, int folder, const char *name, const char *path,
                          const struct stat *facts, gr_diag *diag)
{
    static const char zeros[BLOCK];
    char data[COPY_BYTES];
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return gr_fail_errno(diag, "read", path, errno);
    }
    int64_t left = facts->st_size;
    if (left >= FILE_BYTES_MAX) {
        close(fd);
        return gr_fail(diag, GR_E_INVALID,
                       "--code %.200s: %.200s has %" PRId64 " GiB or more, and a file that "
                       "travels has less; " TOO_LARGE_ADVICE,
                       to->top, path, FILE_BYTES_MAX >> 30);
    }
    gr_status status = add_head(to, path, '0', facts->st_mode, left, NULL, diag);
    while (status == GR_OK && left > 0) {
        size_t want = left < (int64_t)sizeof data ? (size_t)left : sizeof data;
        ssize_t got = read(fd, data, want);
        if (got <= 0) {
            status = gr_fail(diag, GR_E_IO,
                             "--code: %.200s became shorter while it was read; send the job again "
                             "when nothing writes it",
                             path);
        } else {
            status = deflate_all(to, data, (size_t)got, Z_NO_FLUSH, diag);
            left -= got;
        }
    }
    size_t rest = (size_t)(facts->st_size % BLOCK);
    if (status == GR_OK && rest > 0) {
        status = deflate_all(to, zeros, BLOCK - rest, Z_NO_FLUSH, diag);
    }
    close(fd);
    return status;
}

static bool is_left_out(const char *name)
{
    static const char *const names[] = {".", "..", ".git", "__pycache__", ".venv"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

static gr_status add_folder(archive *to, int folder, const char *path, int depth, gr_diag *diag);

static gr_status add_entry(archive *to, int folder, const char *name, const char *path, int depth,
                           gr_diag *diag)
{
    struct stat facts;
    char target[PATH_MAX];
    if (fstatat(folder, name, &facts, AT_SYMLINK_NOFOLLOW) != 0) {
        return gr_fail_errno(diag, "read", path, errno);
    }
    if (++to->files > FILES_MAX) {
        return gr_fail(diag, GR_E_INVALID,
                       "--code %.200s: more than %d files; name the folder of "
                       "the program alone",
                       to->top, FILES_MAX);
    }
    if (S_ISREG(facts.st_mode)) {
        return add_file(to, folder, name, path, &facts, diag);
    }
    if (S_ISLNK(facts.st_mode)) {
        ssize_t length = readlinkat(folder, name, target, sizeof target - 1);
        if (length < 0) {
            return gr_fail_errno(diag, "read", path, errno);
        }
        target[length] = '\0';
        return add_head(to, path, '2', 0777, 0, target, diag);
    }
    if (!S_ISDIR(facts.st_mode)) {
        return GR_OK; /* sockets, pipes, devices */
    }
    int inner = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (inner < 0) {
        return gr_fail_errno(diag, "read", path, errno);
    }
    gr_status status = add_head(to, path, '5', facts.st_mode | 0700, 0, NULL, diag);
    return status == GR_OK ? add_folder(to, inner, path, depth + 1, diag) : (close(inner), status);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void free_names(char **names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(names[i]);
    }
    free(names);
}

/* In order of names. */
static gr_status read_names(DIR *dir, char ***names_out, size_t *count_out, gr_diag *diag)
{
    char **names = NULL;
    size_t count = 0;
    const struct dirent *entry;
    while ((entry = readdir(dir)) != NULL) {
        if (is_left_out(entry->d_name)) {
            continue;
        }
        char **more = realloc(names, (count + 1) * sizeof *names);
        names = more != NULL ? more : names;
        char *name = more != NULL && count < FILES_MAX ? strdup(entry->d_name) : NULL;
        if (name == NULL) {
            free_names(names, count);
            return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the names of a folder's files");
        }
        names[count++] = name;
    }
    if (count > 0) {
        qsort(names, count, sizeof *names, compare_names);
    }
    *names_out = names;
    *count_out = count;
    return GR_OK;
}

/* Takes `folder`. `path` is that in the archive, "" the top. */
static gr_status add_folder(archive *to, int folder, const char *path, int depth, gr_diag *diag)
{
    char **names = NULL, inner[PATH_MAX];
    size_t count = 0;
    DIR *dir = depth < DEPTH_MAX ? fdopendir(folder) : NULL;
    if (dir == NULL) {
        int error = depth < DEPTH_MAX ? errno : 0;
        close(folder);
        return error != 0 ? gr_fail_errno(diag, "read", path, error)
                          : gr_fail(diag, GR_E_INVALID,
                                    "--code %.200s: more than %d folders in each other at %.100s; "
                                    "name the folder of the program alone",
                                    to->top, DEPTH_MAX, path);
    }
    gr_status status = read_names(dir, &names, &count, diag);
    for (size_t i = 0; i < count && status == GR_OK; i++) {
        int length =
            snprintf(inner, sizeof inner, "%s%s%s", path, path[0] != '\0' ? "/" : "", names[i]);
        status = length < (int)sizeof inner
                     ? add_entry(to, dirfd(dir), names[i], inner, depth, diag)
                     : gr_fail(diag, GR_E_INVALID, "--code: the path %.200s is too long", path);
    }
    free_names(names, count);
    closedir(dir);
    return status;
}

/* A folder (path_inside ""), or one file with its path in the archive. */
static gr_status pack_all(archive *to, const char *path_inside, gr_diag *diag)
{
    static const char zeros[2 * BLOCK];
    gr_status status;
    if (path_inside[0] != '\0') {
        struct stat facts;
        status = stat(to->top, &facts) == 0
                     ? add_file(to, AT_FDCWD, to->top, path_inside, &facts, diag)
                     : gr_fail_errno(diag, "read", to->top, errno);
    } else {
        int folder = open(to->top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        status = folder >= 0 ? add_folder(to, folder, "", 0, diag)
                             : gr_fail_errno(diag, "read", to->top, errno);
    }
    if (status == GR_OK) {
        status = deflate_all(to, zeros, sizeof zeros, Z_FINISH, diag);
    }
    if (status == GR_OK && to->fd < 0 && to->used > CODE_BYTES_MAX) {
        status = open_temporary(to, diag);
    }
    return status == GR_OK && to->fd >= 0 ? write_out(to, diag) : status;
}

static gr_status pack(gr_submit *submit, const char *path, const char *path_inside, gr_diag *diag)
{
    gr_submit_code *code = &submit->code;
    archive to = {.top = path, .fd = -1};
    if (deflateInit2(&to.zip, Z_BEST_COMPRESSION, Z_DEFLATED, GZIP_WINDOW, GZIP_MEMORY,
                     Z_DEFAULT_STRATEGY) != Z_OK) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory to pack %.200s", path);
    }
    gr_status status = submit->options.upload != NULL ? open_temporary(&to, diag) : GR_OK;
    if (status == GR_OK) {
        status = pack_all(&to, path_inside, diag);
    }
    deflateEnd(&to.zip);
    if (status == GR_OK && to.sha != NULL) {
        status = gr_sha256_end(to.sha, code->sha256);
    }
    gr_sha256_destroy(to.sha);
    code->is_packed = status == GR_OK;
    if (status == GR_OK && to.fd < 0) {
        code->bytes = to.bytes;
        code->size_bytes = to.used;
        return GR_OK;
    }
    free(to.bytes);
    if (status == GR_OK) {
        code->fd = to.fd;
        code->size_bytes = (size_t)to.written;
    } else if (to.fd >= 0) {
        close(to.fd);
    }
    return status;
}

/* ---- What travels ---------------------------------------------------------------------------- */

static bool is_file(const char *path)
{
    struct stat facts;
    return stat(path, &facts) == 0 && S_ISREG(facts.st_mode);
}

/* The word of the command that names a program of this folder: the first one, or the first behind
 * an interpreter that is no flag. An absolute path is one of the image. -1: none. */
static int program_of(char *const *words)
{
    if (words == NULL || words[0][0] == '/') {
        return -1;
    }
    if (strchr(words[0], '/') != NULL) {
        return is_file(words[0]) ? 0 : -1;
    }
    for (int i = 1; words[i] != NULL; i++) {
        if (words[i][0] != '-') {
            return words[i][0] != '/' && is_file(words[i]) ? i : -1;
        }
    }
    return -1;
}

/* Where a file will be, from the working folder: where it is from here, unless that leads out. */
static const char *path_inside(const char *path)
{
    while (strncmp(path, "./", 2) == 0) {
        path += 2;
    }
    const char *slash = strrchr(path, '/');
    bool leads_out = path[0] == '/' || strstr(path, "..") != NULL || strlen(path) > 200;
    return leads_out && slash != NULL ? slash + 1 : path;
}

static gr_status take_file(gr_submit *submit, const char *path, int word, gr_diag *diag)
{
    gr_submit_code *code = &submit->code;
    struct stat facts;
    const char *inside = path_inside(path);
    if (stat(path, &facts) != 0) {
        return gr_fail_errno(diag, "read", path, errno);
    }
    if (word >= 0) {
        char *moved = gr_arena_printf(&submit->arena, "./%s", inside);
        if (moved == NULL) {
            return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the command");
        }
        ((char **)(uintptr_t)submit->words)[word] = moved;
    }
    snprintf(code->path, sizeof code->path, "%s", inside);
    if (facts.st_size > GR_SUBMIT_PART_BYTES || submit->options.upload != NULL) {
        return pack(submit, path, inside, diag);
    }
    return gr_file_read(path, GR_SUBMIT_PART_BYTES, &code->bytes, &code->size_bytes, diag);
}

/* "pvc:CLAIM:/path": the command runs there. */
static gr_status take_volume(gr_submit *submit, gr_diag *diag)
{
    const char *text = submit->options.code, *path = strrchr(text, ':');
    if (path == NULL || path[1] != '/') {
        return gr_fail(diag, GR_E_INVALID, "--code %.200s: it must be pvc:CLAIM:/path", text);
    }
    submit->code.volume = text;
    submit->code.work_path = path + 1;
    return GR_OK;
}

/* Words that name files of the folder as they are named from here. */
static gr_status move_words(gr_submit *submit, const char *folder, gr_diag *diag)
{
    size_t length = strlen(folder);
    while (length > 1 && folder[length - 1] == '/') {
        length--;
    }
    for (int i = 0; submit->words[i] != NULL; i++) {
        const char *word = submit->words[i];
        if (strncmp(word, folder, length) == 0 && word[length] == '/' && is_file(word)) {
            char *moved = gr_arena_printf(&submit->arena, "./%s", word + length + 1);
            if (moved == NULL) {
                return gr_fail(diag, GR_E_NO_MEMORY, "no memory for the command");
            }
            ((char **)(uintptr_t)submit->words)[i] = moved;
        }
    }
    return GR_OK;
}

/* The URLs by which the archive `text` ("s3://BUCKET/KEY") is fetched, and put (NULL: not). */
static gr_status sign(gr_submit *submit, const char *text, char **put_url_out, gr_diag *diag)
{
    gr_submit_code *code = &submit->code;
    gr_s3_access access;
    gr_s3_place place;
    int64_t now_s = (int64_t)time(NULL);
    gr_status status = gr_s3_access_find(&access, diag);
    if (status == GR_OK) {
        status = gr_s3_place_read(&access, text, &submit->arena, &place, diag);
    }
    if (status == GR_OK) {
        code->url = gr_s3_sign(&access, &place, "GET", GR_S3_LONGEST_S, now_s, &submit->arena);
        if (put_url_out != NULL) {
            *put_url_out =
                gr_s3_sign(&access, &place, "PUT", GR_S3_LONGEST_S, now_s, &submit->arena);
        }
        if (code->url == NULL || (put_url_out != NULL && *put_url_out == NULL)) {
            status = gr_fail(diag, GR_E_NO_MEMORY, "no memory for a URL");
        }
    }
    gr_s3_access_fini(&access);
    return status;
}

/* An archive that pods fetch. */
static gr_status take_url(gr_submit *submit, gr_diag *diag)
{
    const char *text = submit->options.code;
    submit->code.is_packed = true;
    if (submit->options.upload != NULL) {
        return gr_fail(diag, GR_E_INVALID, "--code %.200s is not here, so --upload means nothing",
                       text);
    }
    if (strncmp(text, "s3://", 5) == 0) {
        return sign(submit, text, NULL, diag);
    }
    if (strncmp(text, "https://", 8) != 0 || strpbrk(text, " \t\r\n\"\\") != NULL) {
        return gr_fail(diag, GR_E_INVALID,
                       "--code %.200s: an archive (tar.gz) that pods fetch is named by "
                       "https://HOST/PATH or s3://BUCKET/KEY; http:// would let anybody on the way "
                       "replace it",
                       text);
    }
    submit->code.url = gr_arena_strdup(&submit->arena, text);
    return submit->code.url != NULL ? GR_OK : gr_fail(diag, GR_E_NO_MEMORY, "no memory for a URL");
}

/* An archive is named by its contents: the same one is put there once. */
static gr_status sign_upload(gr_submit *submit, gr_diag *diag)
{
    const char *folder = submit->options.upload;
    size_t length = strlen(folder);
    char *text =
        gr_arena_printf(&submit->arena, "%s%sgradus-%.*s.tar.gz", folder,
                        folder[length - 1] == '/' ? "" : "/", KEY_HEX, submit->code.sha256);
    return text != NULL ? sign(submit, text, &submit->code.put_url, diag)
                        : gr_fail(diag, GR_E_NO_MEMORY, "no memory for a URL");
}

static gr_status find_code(gr_submit *submit, gr_diag *diag)
{
    const char *code = submit->options.code;
    int word = program_of(submit->words);
    struct stat facts;
    if (code == NULL && word < 0) {
        return GR_OK;
    }
    if (code != NULL && strncmp(code, "pvc:", 4) == 0) {
        return take_volume(submit, diag);
    }
    submit->code.work_path = WORK_PATH;
    if (code != NULL && strstr(code, "://") != NULL) {
        return take_url(submit, diag);
    }
    if (code == NULL) {
        return take_file(submit, submit->words[word], word, diag);
    }
    if (stat(code, &facts) != 0) {
        return gr_fail_errno(diag, "read", code, errno);
    }
    if (!S_ISDIR(facts.st_mode)) {
        return take_file(submit, code,
                         word >= 0 && strcmp(submit->words[word], code) == 0 ? word : -1, diag);
    }
    gr_status status = move_words(submit, code, diag);
    return status == GR_OK ? pack(submit, code, "", diag) : status;
}

gr_status gr_submit_pack(gr_submit *submit, gr_diag *diag)
{
    const char *upload = submit->options.upload;
    if (upload != NULL && strncmp(upload, "s3://", 5) != 0) {
        return gr_fail(diag, GR_E_INVALID, "--upload %.200s: it must be s3://BUCKET/FOLDER",
                       upload);
    }
    gr_status status = find_code(submit, diag);
    if (status != GR_OK || upload == NULL) {
        return status;
    }
    if (submit->code.fd < 0) {
        return gr_fail(diag, GR_E_INVALID,
                       "--upload %.200s: no file or folder travels with this command; name one by "
                       "--code",
                       upload);
    }
    return sign_upload(submit, diag);
}

gr_status gr_submit_upload(const gr_submit_code *code, gr_diag *diag)
{
    return code->put_url == NULL
               ? GR_OK
               : gr_http_put_file(code->put_url, code->fd, (int64_t)code->size_bytes,
                                  getenv("AWS_CA_BUNDLE"), diag);
}

void gr_submit_code_fini(gr_submit_code *code)
{
    free(code->bytes);
    if (code->fd >= 0) {
        close(code->fd);
    }
}
