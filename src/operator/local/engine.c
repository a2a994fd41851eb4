/* SPDX-License-Identifier: Apache-2.0 */
#include "operator/local/engine.h"

#include "base/clock.h"
#include "base/fail.h"
#include "launch/environ.h"
#include "launch/process.h"
#include "launch/spawn.h"
#include "operator/local/room.h"
#include "operator/object.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define LABEL "dev.gradus.run"

enum { IMAGES_MAX = 64, FIXED_WORDS = 64, LIST_BYTES = 64 * 1024, REMOVED_MAX = 1024 };
/* So long a client has to answer, and to remove the containers of a run. */
enum { CLIENT_US = 10000000, REMOVAL_US = 60000000 };

static const char *const engines[] = {"podman", "docker"};
enum { ENGINES = sizeof engines / sizeof engines[0] };

/* ---- The client ------------------------------------------------------------------------------ */
/* With its stdout at `out`; < 0: nowhere. Returns its id; -1: there is no such program. */
static pid_t start_client(char *const *argv, char *const *environment, int out)
{
    gr_spawn_error error;
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    const gr_spawn way = {.argv = argv,
                          .environment = environment,
                          .stdin_fd = fd,
                          .stdout_fd = out >= 0 ? out : fd,
                          .stderr_fd = fd};
    pid_t pid = fd >= 0 ? gr_spawn_start(&way, &error) : -1;
    if (fd >= 0) {
        close(fd);
    }
    return pid;
}

static pid_t start_quietly(char *const *argv, char *const *environment)
{
    return start_client(argv, environment, -1);
}

/* What it prints goes to a file in memory, which nobody need read while it runs. Returns its id and
 * the file; -1: nothing was started. */
static pid_t start_asking(char *const *argv, char *const *environment, int *answer_out)
{
    int answer = memfd_create("gradus-answer", MFD_CLOEXEC);
    pid_t pid = answer >= 0 ? start_client(argv, environment, answer) : -1;
    if (pid < 0 && answer >= 0) {
        close(answer);
    }
    *answer_out = answer;
    return pid;
}

/* The text of a client that has ended. Closes the file. */
static void take_answer(int answer, char *text_out, size_t bytes)
{
    ssize_t got = pread(answer, text_out, bytes - 1, 0);
    text_out[got > 0 ? got : 0] = '\0';
    close(answer);
}

/* Its exit code. A client that has not ended in time is killed: the engine does not answer. */
static int wait_for_client(pid_t pid, int64_t limit_us)
{
    const gr_clock clock = gr_clock_real();
    gr_process client = gr_process_open(pid);
    int status;
    if (!gr_process_wait(&client, gr_clock_deadline_us(&clock, limit_us), &status)) {
        (void)gr_process_signal(&client, SIGKILL);
        (void)gr_process_wait(&client, GR_NEVER, &status);
    }
    gr_process_close(&client);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Its exit code; 127: there is no such program. */
static int run_quietly(char *const *argv, char *const *environment, int64_t limit_us)
{
    pid_t pid = start_quietly(argv, environment);
    return pid < 0 ? 127 : wait_for_client(pid, limit_us);
}

static char *word(const char *text)
{
    return (char *)(uintptr_t)text;
}

static bool is_installed(const char *engine)
{
    char *const argv[] = {word(engine), word("--version"), NULL};
    return run_quietly(argv, environ, CLIENT_US) == 0;
}

static bool has_image(const char *engine, const char *image)
{
    char *const argv[] = {word(engine), word("image"), word("inspect"), word(image), NULL};
    return run_quietly(argv, environ, CLIENT_US) == 0;
}

/* ---- Choice ---------------------------------------------------------------------------------- */
typedef struct image_list {
    const char *images[IMAGES_MAX];
    size_t count;
    bool has_none; /* a container without image */
} image_list;

static void add_image(image_list *list, const char *image)
{
    for (size_t i = 0; i < list->count && image != NULL; i++) {
        image = strcmp(list->images[i], image) != 0 ? image : NULL;
    }
    if (image != NULL && list->count < IMAGES_MAX) {
        list->images[list->count++] = image;
    }
}

/* Those of containers, and those of a GradusJob's roles, wherever they stand in a job's spec. */
static void find_images(const json_t *value, image_list *list)
{
    const char *key;
    json_t *member;
    size_t i;
    json_array_foreach(value, i, member)
    {
        find_images(member, list);
    }
    if (gr_object_text(value, "image") != NULL) {
        add_image(list, gr_object_text(value, "image"));
    }
    json_object_foreach((json_t *)(uintptr_t)value, key, member)
    {
        for (i = 0; strcmp(key, "containers") == 0 && i < json_array_size(member); i++) {
            list->has_none |= gr_object_text(json_array_get(member, i), "image") == NULL;
        }
        find_images(member, list);
    }
}

/* The first that the engine does not have; NULL: it has all. */
static const char *missing_image(const char *engine, const image_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        if (!has_image(engine, list->images[i])) {
            return list->images[i];
        }
    }
    return NULL;
}

/* The first that is installed and has all images; NULL: none, and *note_out says what one lacks. */
static const char *find_engine(const image_list *list, char note_out[GR_ENGINE_NOTE_BYTES])
{
    for (size_t i = 0; i < ENGINES && !list->has_none && list->count > 0; i++) {
        const char *missing = is_installed(engines[i]) ? missing_image(engines[i], list) : "";
        if (missing == NULL) {
            note_out[0] = '\0';
            return engines[i];
        }
        if (missing[0] != '\0' && note_out[0] == '\0') {
            snprintf(note_out, GR_ENGINE_NOTE_BYTES,
                     "info: %s does not have the image %.200s; --containers %s pulls it and runs "
                     "the job in it",
                     engines[i], missing, engines[i]);
        }
    }
    return NULL;
}

gr_status gr_engine_choose(const char *asked, const json_t *objects, const char **engine_out,
                           char note_out[GR_ENGINE_NOTE_BYTES], gr_diag *diag)
{
    image_list list = {.count = 0};
    size_t i;
    const json_t *object;
    *engine_out = NULL;
    note_out[0] = '\0';
    if (strcmp(asked, "no") == 0) {
        return GR_OK;
    }
    if (strcmp(asked, "auto") == 0) {
        json_array_foreach(objects, i, object)
        {
            find_images(json_object_get(object, "spec"), &list);
        }
        *engine_out = find_engine(&list, note_out);
        return GR_OK;
    }
    for (i = 0; i < ENGINES && strcmp(asked, engines[i]) != 0; i++) {
    }
    if (i == ENGINES) {
        return gr_fail(diag, GR_E_INVALID, "--containers %.100s: it is auto, no, podman or docker",
                       asked);
    }
    *engine_out = engines[i];
    return is_installed(asked)
               ? GR_OK
               : gr_fail(diag, GR_E_NOT_FOUND,
                         "--containers %s: %s is not installed here, or does not start", asked,
                         asked);
}

/* ---- Words ----------------------------------------------------------------------------------- */
/* The words of a client while they grow. */
typedef struct engine_words {
    gr_arena *arena;
    char **words;
    size_t count, room;
    bool no_memory;
} engine_words;

static void begin_words(engine_words *w, gr_arena *arena, size_t room)
{
    *w = (engine_words){
        .arena = arena, .words = gr_arena_alloc(arena, (room + 1) * sizeof(char *)), .room = room};
    w->no_memory = w->words == NULL;
}

/* `text` NULL: no memory. */
static void add(engine_words *w, const char *text)
{
    if (text == NULL || w->no_memory || w->count == w->room) {
        w->no_memory = true;
        return;
    }
    w->words[w->count++] = word(text);
    w->words[w->count] = NULL;
}

static void add_pair(engine_words *w, const char *flag, const char *text)
{
    add(w, flag);
    add(w, text);
}

/* One value of --mount, which is a line of CSV: in quotes, those in it doubled. */
static const char *quote(gr_arena *arena, const char *key, const char *text)
{
    char *quoted = gr_arena_alloc(arena, 2 * strlen(text) + strlen(key) + 4), *at = quoted;
    if (quoted == NULL) {
        return NULL;
    }
    at += sprintf(at, "\"%s=", key);
    for (; *text != '\0'; text++) {
        if (*text == '"') {
            *at++ = '"';
        }
        *at++ = *text;
    }
    memcpy(at, "\"", 2);
    return quoted;
}

static void add_mount(engine_words *w, const char *source, const char *target, bool is_read_only)
{
    const char *from = quote(w->arena, "source", source);
    const char *to = quote(w->arena, "target", target);
    if (from == NULL || to == NULL) {
        w->no_memory = true;
        return;
    }
    add_pair(
        w, "--mount",
        gr_arena_printf(w->arena, "type=bind,%s,%s%s", from, to, is_read_only ? ",readonly" : ""));
}

/* A volume of a GradusJob for our programs gives way to what has them already. */
static void add_mounts(engine_words *w, const gr_engine_place *place, const gr_pod_plan *plan)
{
    static const char *const tools[][2] = {{"ssh", "/usr/local/sbin/ssh"},
                                           {"rsh", "/usr/local/sbin/rsh"},
                                           {"kubectl", "/usr/local/sbin/kubectl"},
                                           {"sshd", GR_CONTAINED_SSHD},
                                           /* also by the paths that images have them at */
                                           {"ssh", "/usr/bin/ssh"},
                                           {"sshd", "/usr/sbin/sshd"}};
    add_mount(w, place->hosts, "/etc/hosts", true);
    add_mount(w, place->exec, place->exec, false);
    for (size_t i = 0; i < sizeof tools / sizeof tools[0]; i++) {
        const char *source = gr_arena_printf(w->arena, "%s/%s", place->tools, tools[i][0]);
        if (source == NULL) {
            w->no_memory = true;
            return;
        }
        add_mount(w, source, tools[i][1], true);
    }
    add_mount(w, place->program_folder, GR_GRADUS_FOLDER, true);
    for (size_t i = 0; i < plan->mount_count; i++) {
        const gr_volume_mount *mount = &plan->mounts[i];
        if (strcmp(mount->path, GR_GRADUS_FOLDER) == 0) {
            continue;
        }
        if (mount->sub_path[0] != '\0') { /* one that nobody has made yet, perhaps */
            (void)gr_room_make_folders(mount->source);
        }
        add_mount(w, mount->source, mount->path, mount->is_read_only);
    }
}

/* ---- Environment ----------------------------------------------------------------------------- */
/* Returns true if the client itself needs the variable: then a container's stands in the client's
 * words. All others are in the client's environment alone, which no other user can read. */
static bool is_of_client(const char *entry)
{
    static const char *const names[] = {
        "PATH=",   "HOME=",      "USER=",      "TMPDIR=",     "XDG_",     "DOCKER_",
        "LD_",     "CONTAINER_", "DBUS_",      "CONTAINERS_", "STORAGE_", "REGISTRY_AUTH_FILE=",
        "NOTIFY_", "GODEBUG=",   "GOMAXPROCS="};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strncmp(entry, names[i], strlen(names[i])) == 0) {
            return true;
        }
    }
    return false;
}

static size_t count_entries(char *const *environment)
{
    size_t count = 0;
    while (environment[count] != NULL) {
        count++;
    }
    return count;
}

/* The container's variables, by -e; what the client gets to know their values goes to `client`. */
static void add_environment(engine_words *w, char *const *environment, engine_words *client)
{
    for (; *environment != NULL; environment++) {
        const char *entry = *environment;
        int length = (int)strcspn(entry, "=");
        if (is_of_client(entry)) {
            add_pair(w, "--env", entry);
        } else {
            add_pair(w, "--env", gr_arena_printf(w->arena, "%.*s", length, entry));
            add(client, entry);
        }
    }
}

/* That of `gradus run`, but for what the container has as well. */
static void add_inherited(engine_words *client, char *const *inherited, char *const *environment)
{
    for (; *inherited != NULL; inherited++) {
        char *name =
            gr_arena_printf(client->arena, "%.*s", (int)strcspn(*inherited, "="), *inherited);
        if (name == NULL) {
            client->no_memory = true;
            return;
        }
        if (is_of_client(*inherited) || gr_environ_find(environment, name) == NULL) {
            add(client, *inherited);
        }
    }
}

/* ---- Containers ------------------------------------------------------------------------------ */
static void add_options(engine_words *w, const gr_engine_place *place, const gr_container *c,
                        const gr_pod_plan *plan)
{
    add(w, place->engine);
    add(w, "run");
    add(w, "--rm");
    add_pair(w, "--name", c->contained);
    add_pair(w, "--label", gr_arena_printf(w->arena, LABEL "=%s", place->run));
    add_pair(w, "--network", "host");
    add_pair(w, "--hostname", plan->host_name);
    add_pair(w, "--log-driver", "none");
    add_pair(w, "--security-opt", "label=disable"); /* or SELinux hides what is mounted */
    add_pair(w, "--pull", c->pull);
    if (c->folder != NULL) {
        add_pair(w, "--workdir", c->folder);
    }
    if (c->user != NULL) {
        add_pair(w, "--user", c->user);
    }
}

static gr_status contain(const gr_engine_place *place, gr_arena *arena, gr_pod_plan *plan,
                         gr_container *c, gr_diag *diag)
{
    engine_words run, client;
    size_t words = count_entries(c->argv), variables = count_entries(c->environment);
    if (c->image == NULL) {
        return gr_fail(diag, GR_E_INVALID,
                       "pod %s: container %s has no image; --containers no runs it as a process",
                       plan->name, c->name);
    }
    c->engine = place->engine;
    c->contained = gr_arena_printf(arena, "%s.%s.%s", place->run, place->pod, c->name);
    begin_words(&run, arena, FIXED_WORDS + 2 * (plan->mount_count + variables) + words);
    begin_words(&client, arena, count_entries(place->environment) + variables);
    add_options(&run, place, c, plan);
    add_mounts(&run, place, plan);
    add_inherited(&client, place->environment, c->environment);
    add_environment(&run, c->environment, &client);
    char **argv = c->argv;
    if (c->has_command) {
        add_pair(&run, "--entrypoint", *argv++);
    }
    add(&run, c->image);
    for (; *argv != NULL; argv++) {
        add(&run, *argv);
    }
    c->argv = run.words;
    c->environment = client.words;
    c->folder = NULL;
    return run.no_memory || client.no_memory
               ? gr_fail(diag, GR_E_NO_MEMORY, "no memory for pod %s", plan->name)
               : GR_OK;
}

gr_status gr_engine_contain(const gr_engine_place *place, gr_arena *arena, gr_pod_plan *plan,
                            gr_diag *diag)
{
    gr_status status = GR_OK;
    for (size_t i = 0; i < plan->container_count && status == GR_OK; i++) {
        gr_container *c = &plan->containers[i];
        if (c->way == GR_CONTAINER_COMMAND) {
            status = contain(place, arena, plan, c, diag);
        }
    }
    return status;
}

char **gr_engine_exec(const gr_container *container, char *const *argv)
{
    char *const first[] = {word(container->engine), word("exec"), word("--interactive"),
                           word(container->contained)};
    size_t count = count_entries(argv), before = sizeof first / sizeof first[0];
    char **words = malloc((before + count + 1) * sizeof *words);
    if (words != NULL) {
        memcpy(words, first, sizeof first);
        memcpy(words + before, argv, (count + 1) * sizeof *words);
    }
    return words;
}

pid_t gr_engine_ask(const gr_container *container, int *answer_out)
{
    char *const argv[] = {word(container->engine),
                          word("container"),
                          word("inspect"),
                          word("--format"),
                          word("{{.State.Running}}"),
                          word(container->contained),
                          NULL};
    return start_asking(argv, container->environment, answer_out);
}

bool gr_engine_says_so(int answer)
{
    char text[8];
    take_answer(answer, text, sizeof text);
    return strcmp(text, "true\n") == 0;
}

/* ---- The end --------------------------------------------------------------------------------- */
/* The client's words that remove containers at once. */
static size_t begin_removal(const char *engine, char *words_out[4])
{
    words_out[0] = word(engine);
    words_out[1] = word("rm");
    words_out[2] = word("--force");
    words_out[3] = word("--time=0"); /* or podman waits for 10 s; docker knows no such word */
    return strcmp(engine, "podman") == 0 ? 4 : 3;
}

pid_t gr_engine_remove(const gr_container *container)
{
    char *words[6];
    size_t count = begin_removal(container->engine, words);
    words[count] = word(container->contained);
    words[count + 1] = NULL;
    return start_quietly(words, container->environment);
}

/* The ids of the run's containers, as one text; "": none. */
static void list_containers(const char *engine, const char *run, char *const *environment,
                            char text_out[LIST_BYTES])
{
    char filter[300];
    int answer;
    snprintf(filter, sizeof filter, "label=" LABEL "=%.200s", run);
    char *const argv[] = {word(engine),     word("ps"), word("--all"), word("--quiet"),
                          word("--filter"), filter,     NULL};
    pid_t pid = start_asking(argv, environment, &answer);
    text_out[0] = '\0';
    if (pid > 0) {
        (void)wait_for_client(pid, CLIENT_US);
        take_answer(answer, text_out, LIST_BYTES);
    }
}

void gr_engine_clear(const char *engine, const char *run, char *const *environment)
{
    char text[LIST_BYTES], *words[REMOVED_MAX + 5], *rest;
    list_containers(engine, run, environment, text);
    size_t first = begin_removal(engine, words), count = first;
    for (char *id = strtok_r(text, " \n", &rest); id != NULL && count < first + REMOVED_MAX;
         id = strtok_r(NULL, " \n", &rest)) {
        words[count++] = id;
    }
    words[count] = NULL;
    if (count > first) {
        (void)run_quietly(words, environment, REMOVAL_US);
    }
}
