/* SPDX-License-Identifier: Apache-2.0 */

/* MPIJobs that are launched by agents, as an annotation asks: neither ssh keys nor sshd, and no
 * right to execute commands in pods.
 *
 *   Secret JOB-agent      a token, which launcher and workers prove to each other
 *   launch_agent.sh       in the ConfigMap: what mpirun calls in place of ssh, `gradus rsh`
 *   worker                runs `gradus agent --listen` in place of sshd
 *   init container        brings gradus, where the operator has an image for that
 */

#include "operator/mpijob.h"
#include "operator/object.h"
#include "operator/parts.h"

#include <string.h>

#define FOLDER GR_GRADUS_FOLDER
#define VOLUME GR_GRADUS_VOLUME

const char *const gr_mpijob_launches[] = {"agent", "ssh", NULL};

const char *gr_mpijob_launch(const json_t *job)
{
    const json_t *annotations = gr_object_at(job, "metadata.annotations");
    return json_string_value(json_object_get(annotations, GR_MPIJOB_LAUNCH));
}

static const char *image_of(const gr_mpijob *m)
{
    const char *image = m->look.view->launch_agent_image;
    return image != NULL && image[0] != '\0' ? image : NULL;
}

static const char *program_of(const gr_mpijob *m)
{
    return image_of(m) != NULL ? FOLDER "/gradus" : "gradus";
}

json_t *gr_mpijob_launch_script(gr_mpijob *m)
{
    return json_sprintf("#!/bin/sh\nexec %s rsh \"$@\"\n", program_of(m));
}

static void mount_program(gr_mpijob *m, json_t *container)
{
    if (image_of(m) != NULL) {
        gr_parts_add_mount(&m->look, container, VOLUME, FOLDER);
    }
}

void gr_mpijob_add_agent(gr_mpijob *m, json_t *spec, json_t *container)
{
    json_t *variable =
        json_pack("{s:s, s:{s:{s:o, s:s}}}", "name", "GRADUS_JOIN_TOKEN", "valueFrom",
                  "secretKeyRef", "name", json_sprintf("%s-agent", m->look.name), "key", "token");
    gr_object_append(gr_object_list(container, "env", &m->look.no_memory), variable,
                     &m->look.no_memory);
    if (image_of(m) != NULL) {
        gr_object_append(gr_object_list(spec, "volumes", &m->look.no_memory),
                         json_pack("{s:s, s:{}}", "name", VOLUME, "emptyDir"), &m->look.no_memory);
        gr_object_append(gr_object_list(spec, "initContainers", &m->look.no_memory),
                         gr_look_gradus_container(image_of(m)), &m->look.no_memory);
    }
    mount_program(m, container);
}

/* A command that is sshd stands for what its place is taken of. */
static bool is_sshd(const json_t *container)
{
    const char *word = json_string_value(json_array_get(json_object_get(container, "command"), 0));
    const char *slash = word != NULL ? strrchr(word, '/') : NULL;
    return word != NULL && strcmp(slash != NULL ? slash + 1 : word, "sshd") == 0;
}

void gr_mpijob_add_agent_command(gr_mpijob *m, json_t *container)
{
    bool is_empty = json_array_size(json_object_get(container, "command")) == 0 &&
                    json_array_size(json_object_get(container, "args")) == 0;
    if (is_empty || is_sshd(container)) {
        gr_object_put(
            container, "command",
            json_pack("[s, s, s, s]", program_of(m), "agent", "--listen", ":" GR_MPIJOB_AGENT_PORT),
            &m->look.no_memory);
        json_object_del(container, "args");
    }
}
