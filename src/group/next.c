/* SPDX-License-Identifier: Apache-2.0 */
#include "group/member.h"

#include "base/fail.h"
#include "link/secret.h"

#include <stdlib.h>

/* Another thread may have heard what this one waits for: so often it is looked at. */
enum { LOOK_US = 5000 };

bool gr_group_offered(gr_group *group)
{
    pthread_mutex_lock(&group->lock);
    bool offered = group->offer.generation != 0 && group->next == NULL;
    pthread_mutex_unlock(&group->lock);
    return offered;
}

/* A group for what is offered; its members are not known yet. */
static gr_status open_next(gr_group *group, const gr_log *log, gr_group **next_out, gr_diag *diag)
{
    gr_group *next = calloc(1, sizeof *next);
    if (next == NULL) {
        return gr_fail(diag, GR_E_NO_MEMORY, "no memory for a group");
    }
    next->home = group;
    next->log = log;
    next->tcp = group->tcp;
    pthread_mutex_lock(&group->lock);
    next->seat = group->offer;
    group->next = next->seat.generation != 0 ? next : NULL;
    pthread_mutex_unlock(&group->lock);
    if (next->seat.generation == 0) {
        free(next);
        return gr_fail(diag, GR_E_CANCELLED, "the next generation is not wanted any more");
    }
    next->rank = (int)next->seat.rank;
    next->world_size = (int)next->seat.world_size;
    *next_out = next;
    return GR_OK;
}

/* All the time that others may need for a step does not count: they answer between two. */
static gr_status await_members(gr_joining *join, gr_diag *diag)
{
    gr_group *next = join->group;
    bool known = false;
    join->deadline_us = GR_NEVER;
    while (!known) {
        gr_status status = gr_group_hear(next, diag);
        if (status < 0) {
            return status;
        }
        pthread_mutex_lock(&next->home->lock);
        known = next->generation != 0;
        pthread_mutex_unlock(&next->home->lock);
        if (!known && status == GR_PENDING) {
            gr_joining_sleep(join, gr_clock_now_us(&join->clock) + LOOK_US);
        }
    }
    gr_joining_set_deadline(join);
    return GR_OK;
}

gr_status gr_group_prepare(gr_group *group, const gr_group_config *config, const gr_log *log,
                           gr_group **next_out, gr_diag *diag)
{
    gr_joining join;
    gr_group *next = NULL;
    gr_diag own_diag;
    diag = diag != NULL ? diag : &own_diag;
    gr_diag_clear(diag);
    gr_status status = open_next(group, log, &next, diag);
    if (status != GR_OK) {
        return status;
    }
    next->members = calloc((size_t)gr_group_members_max(config), sizeof *next->members);
    status = next->members != NULL ? gr_joining_begin(&join, next, config, log, diag)
                                   : gr_fail(diag, GR_E_NO_MEMORY, "no memory for a group");
    if (status == GR_OK) {
        status = gr_joining_open_mesh(&join, diag);
    }
    if (status == GR_OK) {
        gr_joining_say_hello(&join);
        status = await_members(&join, diag);
    }
    if (status == GR_OK) {
        status = gr_joining_find_hosts(&join, diag);
    }
    if (status == GR_OK && next->mesh != NULL) {
        status = gr_joining_wire(&join, diag);
    }
    gr_wipe_stack();
    if (status != GR_OK) {
        gr_group_leave(next);
        return status;
    }
    *next_out = next;
    return GR_OK;
}

void gr_group_withdraw(gr_group *group)
{
    pthread_mutex_lock(&group->lock);
    const gr_group *next = group->next;
    if (next == NULL || next->seat.generation == group->offer.generation) { /* else it is another */
        group->offer.generation = 0;
    }
    pthread_mutex_unlock(&group->lock);
}

bool gr_group_is_called_off(gr_group *group)
{
    pthread_mutex_lock(&group->lock);
    const gr_group *next = group->next;
    bool off = next != NULL && (group->broken || group->offer.generation != next->seat.generation);
    pthread_mutex_unlock(&group->lock);
    return off;
}

bool gr_group_may_go_over(gr_group *next, bool wait, int64_t timeout_us)
{
    gr_group *home = next->home;
    gr_joining join = {.group = next, .clock = gr_clock_real()};
    gr_diag nothing;
    join.deadline_us = gr_clock_deadline_us(&join.clock, timeout_us);
    for (;;) {
        pthread_mutex_lock(&home->lock);
        bool change = home->change;
        pthread_mutex_unlock(&home->lock);
        if (change) {
            return true;
        }
        gr_status status = gr_group_hear(next, &nothing);
        if (status < 0 || (status == GR_PENDING && (!wait || gr_joining_late(&join)))) {
            return false;
        }
        if (status == GR_PENDING) {
            gr_joining_sleep(&join, GR_NEVER);
        }
    }
}

void gr_group_go_over(gr_group *group, gr_group *next, const gr_log *log)
{
    free(group->members);
    group->seat = next->seat;
    group->offer = (gr_seat){0};
    group->next = NULL;
    group->change = false;
    group->log = log;
    group->rank = next->rank;
    group->world_size = next->world_size;
    group->generation = next->generation;
    group->placed = next->placed;
    group->mesh = next->mesh;
    group->members = next->members;
    group->topology = next->topology;
    gr_group_name_hosts(group);
    free(next);
}

void gr_group_call_off(gr_group *next)
{
    gr_group *home = next->home;
    uint8_t message[GR_MESSAGE_SMALL_MAX];
    uint64_t generation = next->seat.generation;
    pthread_mutex_lock(&home->lock);
    home->next = NULL;
    if (home->offer.generation == generation) {
        home->offer.generation = 0;
    }
    pthread_mutex_unlock(&home->lock);
    gr_status said = gr_group_say(next, message,
                                  gr_message_put_number(GR_MESSAGE_CALL_OFF, generation, message));
    (void)said; /* if the coordinator is gone, there is nothing to call off */
    free(next->members);
    free(next);
}
