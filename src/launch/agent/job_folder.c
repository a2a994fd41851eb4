/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/agent/job_folder.h"

#include "base/fail.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
    RECORD_BYTES = GR_JOB_COMMAND_BYTES + GR_JOB_RUN_BYTES + 192,
    END_BYTES = PATH_MAX + 192,
    LISTED_MAX = 1024,
    TRIES = 8,
    KEPT_S = 7 * 24 * 3600
};

/* In the order in which they are removed: without a job nobody finds the folder; and who has found
 * it before must not find an end that its launcher has, while no lock tells that the job is not
 * over yet. */
static const char *const files[] = {"job",    "job.new",    "end",  "end.new",  "socket",
                                    "output", "output.old", "left", "left.new", "lock"};

#define HIDDEN_FORMAT ".new-%d"
#define RECORD_FORMAT                                                                              \
    "gradus job 3\nstart %" PRId64 "\nidentity %" PRIx64                                           \
    "\nsupervisor %d launcher %d\nattempt %d of %d\nrun %s\ncommand "
#define LEFT_FORMAT "delivered %" PRIu64 " %" PRIu64 "\n"
#define OUTPUT_LINE "\noutput "
#define END_FORMAT "code %d\nend %" PRId64 "\n" LEFT_FORMAT "content %" PRIx64 OUTPUT_LINE "%s\n"

/* ---- Names ----------------------------------------------------------------------------------- */

static bool is_name(const char *name)
{
    size_t size = strlen(name);
    for (size_t i = 0; i < size; i++) {
        bool plain = isalnum((unsigned char)name[i]);
        if (!plain && (i == 0 || strchr("._-", name[i]) == NULL)) {
            return false;
        }
    }
    return size > 0 && size < GR_JOB_NAME_BYTES;
}

gr_status gr_job_name_check(const char *name, gr_diag *diag)
{
    char quoted[GR_VALUE_BYTES];
    gr_text_quote(name, quoted);
    return is_name(name) ? GR_OK
                         : gr_fail(diag, GR_E_INVALID,
                                   "%s is no name of a job: it has 1 to %d letters, digits, '.', "
                                   "'_' or '-', and begins with a letter or digit",
                                   quoted, GR_JOB_NAME_BYTES - 1);
}

uint64_t gr_job_identity(int argc, char *const *argv)
{
    char folder[PATH_MAX] = "";
    (void)!getcwd(folder, sizeof folder);
    uint64_t identity = gr_hash64(folder, strlen(folder), 0);
    for (int i = 0; i < argc; i++) {
        identity = gr_hash64(argv[i], strlen(argv[i]), identity);
    }
    return identity;
}

static void put_line(char *text, size_t size_bytes, const char *format, ...) GR_PRINTF(3, 4);

static void put_line(char *text, size_t size_bytes, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    gr_text_line(text, size_bytes, format, arguments);
    va_end(arguments);
}

void gr_job_describe(int argc, char *const *argv, char command_out[GR_JOB_COMMAND_BYTES])
{
    put_line(command_out, GR_JOB_COMMAND_BYTES, "gradus");
    for (int i = 0; i < argc; i++) {
        size_t used = strlen(command_out);
        if (used + 8 < GR_JOB_COMMAND_BYTES) {
            put_line(command_out + used, GR_JOB_COMMAND_BYTES - used, " %s", argv[i]);
        }
    }
}

/* ---- The folder around them ------------------------------------------------------------------ */

static gr_status open_own(const char *path, int *fd_out, gr_diag *diag)
{
    struct stat info = {0};
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
        return GR_E_NOT_FOUND;
    }
    if (fd < 0 ? lstat(path, &info) != 0 : fstat(fd, &info) != 0) {
        if (fd >= 0) {
            close(fd);
        }
        return gr_fail_errno(diag, "open the folder", path, errno);
    }
    if (fd < 0 || info.st_uid != geteuid() || (info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
        if (fd >= 0) {
            close(fd);
        }
        return gr_fail(diag, GR_E_INVALID,
                       "%s is no folder of this user's alone (uid %u, mode %04o): the jobs there "
                       "are another user's, or may be; remove it, or set XDG_RUNTIME_DIR",
                       path, (unsigned)info.st_uid, (unsigned)(info.st_mode & 07777));
    }
    *fd_out = fd;
    return GR_OK;
}

/* GR_E_NOT_FOUND: there is none, and none is to be made. */
static gr_status open_base(bool make, int *fd_out, gr_diag *diag)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    char path[PATH_MAX];
    struct stat info;
    if (runtime != NULL && runtime[0] == '/' && strlen(runtime) + 16 < sizeof path &&
        stat(runtime, &info) == 0 && S_ISDIR(info.st_mode)) {
        snprintf(path, sizeof path, "%s/gradus", runtime);
    } else {
        snprintf(path, sizeof path, "/tmp/gradus-%u", (unsigned)geteuid());
    }
    if (make && mkdir(path, S_IRWXU) != 0 && errno != EEXIST) {
        return gr_fail_errno(diag, "make the folder", path, errno);
    }
    return open_own(path, fd_out, diag);
}

int gr_job_folder_list(char (*names_out)[GR_JOB_NAME_BYTES], int room, gr_diag *diag)
{
    int base, count = 0;
    if (open_base(false, &base, diag) != GR_OK) {
        return 0;
    }
    DIR *folder = fdopendir(base);
    if (folder == NULL) {
        close(base);
        return 0;
    }
    for (struct dirent *entry; count < room && (entry = readdir(folder)) != NULL;) {
        char path[sizeof entry->d_name + 8];
        snprintf(path, sizeof path, "%s/job", entry->d_name);
        if (is_name(entry->d_name) && faccessat(base, path, R_OK, 0) == 0) {
            snprintf(names_out[count++], GR_JOB_NAME_BYTES, "%.*s", GR_JOB_NAME_BYTES - 1,
                     entry->d_name);
        }
    }
    closedir(folder);
    return count;
}

/* ---- One folder ------------------------------------------------------------------------------ */

static void remove_entries(int base_fd, int fd, const char *name)
{
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        (void)unlinkat(fd, files[i], 0);
    }
    (void)unlinkat(base_fd, name, AT_REMOVEDIR);
}

void gr_job_folder_remove(const gr_job_folder *folder)
{
    remove_entries(folder->base_fd, folder->fd, folder->name);
}

void gr_job_folder_close(gr_job_folder *folder)
{
    int *const fds[] = {&folder->lock_fd, &folder->fd, &folder->base_fd};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
        if (*fds[i] >= 0) {
            close(*fds[i]);
        }
        *fds[i] = -1;
    }
}

gr_status gr_job_folder_open(const char *name, gr_job_folder *folder_out, gr_diag *diag)
{
    gr_job_folder folder = {.base_fd = -1, .fd = -1, .lock_fd = -1};
    gr_status status = gr_job_name_check(name, diag);
    if (status == GR_OK) {
        snprintf(folder.name, sizeof folder.name, "%s", name);
        status = open_base(false, &folder.base_fd, diag);
    }
    if (status == GR_OK) {
        folder.fd = openat(folder.base_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        status =
            folder.fd >= 0 && faccessat(folder.fd, "job", R_OK, 0) == 0 ? GR_OK : GR_E_NOT_FOUND;
    }
    if (status == GR_E_NOT_FOUND) {
        (void)gr_fail(diag, status,
                      "you have no job \"%s\" on this host; gradus ls lists those that you have",
                      name);
    }
    if (status != GR_OK) {
        gr_job_folder_close(&folder);
        return status;
    }
    *folder_out = folder;
    return GR_OK;
}

static ssize_t read_small(int folder_fd, const char *name, char *text_out, size_t room)
{
    int fd = openat(folder_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, text_out, room - 1) : -1;
    if (fd >= 0) {
        close(fd);
    }
    text_out[got > 0 ? got : 0] = '\0';
    return got;
}

/* 0 or errno. */
static int write_small(int folder_fd, const char *name, const char *text)
{
    int fd = openat(folder_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
    int error = fd >= 0 ? gr_fd_write(fd, text, strlen(text)) : errno;
    if (fd >= 0) {
        close(fd);
    }
    return error;
}

static bool is_held(const gr_job_folder *folder)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = openat(folder->fd, "lock", O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    bool held = fd >= 0 && fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
    if (fd >= 0) {
        close(fd);
    }
    return held;
}

gr_job_state gr_job_folder_state(const gr_job_folder *folder, gr_job_end *end_out)
{
    char text[END_BYTES];
    gr_job_end end = {.content = 0};
    if (is_held(folder)) { /* its end may be there already, and is for its own launcher */
        return GR_JOB_RUNS;
    }
    if (read_small(folder->fd, "end", text, sizeof text) <= 0 ||
        sscanf(text, "code %d end %" SCNd64 " delivered %" SCNu64 " %" SCNu64 " content %" SCNx64,
               &end.code, &end.end_s, &end.delivered[0], &end.delivered[1], &end.content) < 4) {
        return GR_JOB_LOST;
    }
    const char *output = strstr(text, OUTPUT_LINE);
    if (output != NULL) { /* the rest but the end of the line, whatever is in the name */
        output += strlen(OUTPUT_LINE);
        snprintf(end.output, sizeof end.output, "%.*s", (int)strlen(output) - 1, output);
    }
    *end_out = end;
    return GR_JOB_ENDED;
}

bool gr_job_folder_record(const gr_job_folder *folder, gr_job_record *record_out)
{
    char text[RECORD_BYTES];
    int behind = 0;
    bool read = read_small(folder->fd, "job", text, sizeof text) > 0 &&
                sscanf(text,
                       "gradus job 3 start %" SCNd64 " identity %" SCNx64
                       " supervisor %d launcher %d attempt %d of %d run %63s command %n",
                       &record_out->start_s, &record_out->identity, &record_out->supervisor,
                       &record_out->launcher, &record_out->attempt, &record_out->restarts,
                       record_out->run, &behind) == 7 &&
                behind > 0;
    put_line(record_out->command, sizeof record_out->command, "%.*s",
             read ? (int)strcspn(text + behind, "\n") : 0, text + behind);
    return read;
}

/* 0 or errno. */
static int replace_small(int folder_fd, const char *name, const char *new_name, const char *text)
{
    (void)unlinkat(folder_fd, new_name, 0);
    int error = write_small(folder_fd, new_name, text);
    return error == 0 && renameat(folder_fd, new_name, folder_fd, name) != 0 ? errno : error;
}

int gr_job_folder_write_record(const gr_job_folder *folder, const gr_job_record *record)
{
    char text[RECORD_BYTES];
    snprintf(text, sizeof text, RECORD_FORMAT "%s\n", record->start_s, record->identity,
             (int)record->supervisor, (int)record->launcher, record->attempt, record->restarts,
             record->run, record->command);
    return replace_small(folder->fd, "job", "job.new", text);
}

int gr_job_folder_write_end(const gr_job_folder *folder, const gr_job_end *end)
{
    char text[END_BYTES];
    snprintf(text, sizeof text, END_FORMAT, end->code, end->end_s, end->delivered[0],
             end->delivered[1], end->content, end->output);
    return replace_small(folder->fd, "end", "end.new", text);
}

int gr_job_folder_write_left(const gr_job_folder *folder, const uint64_t delivered[GR_JOB_STREAMS])
{
    char text[RECORD_BYTES];
    if (delivered == NULL) {
        return unlinkat(folder->fd, "left", 0) == 0 || errno == ENOENT ? 0 : errno;
    }
    snprintf(text, sizeof text, LEFT_FORMAT, delivered[0], delivered[1]);
    return replace_small(folder->fd, "left", "left.new", text);
}

bool gr_job_folder_left(const gr_job_folder *folder, uint64_t delivered_out[GR_JOB_STREAMS])
{
    char text[RECORD_BYTES];
    return read_small(folder->fd, "left", text, sizeof text) > 0 &&
           sscanf(text, "delivered %" SCNu64 " %" SCNu64, &delivered_out[0], &delivered_out[1]) ==
               2;
}

/* ---- Its socket ------------------------------------------------------------------------------ */

/* Through the descriptor of the folder, whose own path may be too long for an address. */
static void name_socket(const gr_job_folder *folder, struct sockaddr_un *address_out)
{
    *address_out = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(address_out->sun_path, sizeof address_out->sun_path, "/proc/self/fd/%d/socket",
             folder->fd);
}

static int listen_in(const gr_job_folder *folder)
{
    struct sockaddr_un address;
    name_socket(folder, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && (bind(fd, (const struct sockaddr *)&address, sizeof address) != 0 ||
                    listen(fd, GR_JOB_FOLDER_BACKLOG) != 0)) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

int gr_job_folder_connect(const gr_job_folder *folder)
{
    struct sockaddr_un address;
    name_socket(folder, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof address) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

/* ---- A new one ------------------------------------------------------------------------------- */

/* When a job was lost that wrote until then. */
static int64_t last_written_s(const gr_job_folder *folder)
{
    struct stat info = {0};
    (void)fstatat(folder->fd, "output", &info, AT_SYMLINK_NOFOLLOW);
    return (int64_t)info.st_mtime;
}

/* Whoever removes a folder holds its lock meanwhile, so that no new job is in it. */
static void remove_stale(gr_job_folder *folder, bool replaced, int64_t now_s)
{
    gr_job_end end = {0};
    gr_job_state state = gr_job_folder_state(folder, &end);
    int64_t since_s = state == GR_JOB_ENDED ? end.end_s : last_written_s(folder);
    bool kept = now_s < since_s + KEPT_S && !(replaced && state == GR_JOB_LOST);
    if (state == GR_JOB_RUNS || kept) {
        return;
    }
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = openat(folder->fd, "lock", O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fcntl(fd, F_SETLK, &lock) == 0) {
        gr_job_folder_remove(folder);
    }
    if (fd >= 0) {
        close(fd);
    }
}

static void remove_all_stale(const char *new_name)
{
    char(*names)[GR_JOB_NAME_BYTES] = malloc(LISTED_MAX * sizeof *names);
    int count = names != NULL ? gr_job_folder_list(names, LISTED_MAX, NULL) : 0;
    for (int i = 0; i < count; i++) {
        gr_job_folder folder;
        if (gr_job_folder_open(names[i], &folder, NULL) == GR_OK) {
            bool replaced = new_name != NULL && strcmp(names[i], new_name) == 0;
            remove_stale(&folder, replaced, (int64_t)time(NULL));
            gr_job_folder_close(&folder);
        }
    }
    free(names);
}

/* All that is in it; 0 or errno. */
static int fill(gr_job_folder *folder, const gr_job_record *record, int *listen_fd_out)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    folder->lock_fd =
        openat(folder->fd, "lock", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (folder->lock_fd < 0 || fcntl(folder->lock_fd, F_OFD_SETLK, &lock) != 0) {
        return errno;
    }
    *listen_fd_out = listen_in(folder);
    if (*listen_fd_out < 0) {
        return errno;
    }
    return gr_job_folder_write_record(folder, record);
}

/* Of supervisors that were killed while they made or removed theirs. */
static void remove_unfinished(int base_fd)
{
    int fd = openat(base_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), pid;
    DIR *entries = fd >= 0 ? fdopendir(fd) : NULL;
    for (struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;) {
        bool made =
            sscanf(entry->d_name, HIDDEN_FORMAT, &pid) == 1 && kill(pid, 0) != 0 && errno == ESRCH;
        if (!made && !is_name(entry->d_name)) {
            continue;
        }
        gr_job_folder left = {
            .fd = openat(base_fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)};
        bool unfinished = made || faccessat(left.fd, "job", F_OK, 0) != 0;
        if (left.fd >= 0 && unfinished && !is_held(&left)) {
            remove_entries(base_fd, left.fd, entry->d_name);
        }
        if (left.fd >= 0) {
            close(left.fd);
        }
    }
    if (entries != NULL) {
        closedir(entries);
    } else if (fd >= 0) {
        close(fd);
    }
}

/* Under a name of its own until all is there. */
static gr_status make(gr_job_folder *folder, const gr_job_record *record, char hidden[32],
                      int *listen_fd_out, gr_diag *diag)
{
    snprintf(hidden, 32, HIDDEN_FORMAT, (int)getpid());
    if (mkdirat(folder->base_fd, hidden, S_IRWXU) != 0 && errno != EEXIST) {
        return gr_fail_errno(diag, "make a folder for", "the job", errno);
    }
    folder->fd = openat(folder->base_fd, hidden, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int error = folder->fd < 0 ? errno : 0;
    for (size_t i = 0; i < sizeof files / sizeof files[0] && error == 0; i++) {
        (void)unlinkat(folder->fd, files[i], 0); /* of a process of this number that was killed */
    }
    if (error == 0) {
        error = fill(folder, record, listen_fd_out);
    }
    return error == 0 ? GR_OK : gr_fail_errno(diag, "fill the folder of", "the job", error);
}

/* 0 or errno; EEXIST: there is a job of that name. */
static int rename_new(gr_job_folder *folder, const char *hidden, const char *name)
{
    snprintf(folder->name, sizeof folder->name, "%s", name);
    return renameat2(folder->base_fd, hidden, folder->base_fd, name, RENAME_NOREPLACE) == 0 ? 0
                                                                                            : errno;
}

void gr_job_folder_remove_unfinished(void)
{
    int base_fd;
    if (open_base(false, &base_fd, NULL) == GR_OK) {
        remove_unfinished(base_fd);
        close(base_fd);
    }
}

gr_status gr_job_folder_create(const char *name, const gr_job_record *record,
                               gr_job_folder *folder_out, int *listen_fd_out, gr_diag *diag)
{
    gr_job_folder folder = {.base_fd = -1, .fd = -1, .lock_fd = -1};
    char hidden[32] = "";
    int error = EEXIST;
    *listen_fd_out = -1;
    gr_status status = open_base(true, &folder.base_fd, diag);
    if (status == GR_OK) {
        remove_all_stale(name);
        remove_unfinished(folder.base_fd);
        status = make(&folder, record, hidden, listen_fd_out, diag);
    }
    for (int i = 0; i < (name != NULL ? 1 : TRIES) && status == GR_OK && error == EEXIST; i++) {
        uint8_t random[3];
        char id[2 * sizeof random + 1];
        status = gr_random_bytes(random, sizeof random, diag);
        gr_hex(random, sizeof random, id);
        if (status == GR_OK) {
            error = rename_new(&folder, hidden, name != NULL ? name : id);
        }
    }
    if (status == GR_OK && error == EEXIST) {
        status = gr_fail(diag, GR_E_INVALID,
                         "--name: you have a job \"%s\" on this host already, of another command "
                         "line or folder, or with a launcher; see gradus ls, attach, logs and stop",
                         folder.name);
    } else if (status == GR_OK && error != 0) {
        status = gr_fail_errno(diag, "rename the folder of job", folder.name, error);
    }
    if (status != GR_OK) {
        if (folder.fd >= 0) {
            remove_entries(folder.base_fd, folder.fd, hidden);
        }
        if (*listen_fd_out >= 0) {
            close(*listen_fd_out);
        }
        gr_job_folder_close(&folder);
        return status;
    }
    *folder_out = folder;
    return GR_OK;
}
