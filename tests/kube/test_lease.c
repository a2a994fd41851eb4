/* SPDX-License-Identifier: Apache-2.0 */

/* Leader election by the rules alone: candidates, one Lease, and clocks of the test's. */

#include "base/support_base.h"
#include "base/time_text.h"
#include "kube/lease.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SECOND_US = 1000000, CANDIDATES = 3 };

static const gr_kube_lease_times times = {15 * SECOND_US, 10 * SECOND_US, 2 * SECOND_US};

static gr_kube_lease_view candidate(const char *identity)
{
    gr_kube_lease_view view = {.times = times};
    strcpy(view.identity, identity);
    return view;
}

/* The Lease as a server keeps it: a write with an old version is refused. */
typedef struct server {
    json_t *lease;
    int version;
} server;

static bool write_lease(server *place, json_t *fresh)
{
    json_t *metadata = json_object_get(fresh, "metadata");
    const char *version = json_string_value(json_object_get(metadata, "resourceVersion"));
    char now[16];
    snprintf(now, sizeof now, "%d", place->version);
    if (place->lease != NULL ? version == NULL || strcmp(version, now) != 0 : version != NULL) {
        json_decref(fresh);
        return false;
    }
    snprintf(now, sizeof now, "%d", ++place->version);
    json_object_set_new(metadata, "resourceVersion", json_string(now));
    json_decref(place->lease);
    place->lease = fresh;
    return true;
}

static const json_t *spec_of(const server *place)
{
    return json_object_get(place->lease, "spec");
}

static bool look(gr_kube_lease_view *view, server *place, int64_t now_us, int64_t wall_us)
{
    json_t *fresh = gr_kube_lease_look(view, place->lease, "op", now_us, wall_us);
    bool done = fresh != NULL && write_lease(place, fresh);
    if (done) {
        gr_kube_lease_won(view, now_us);
    }
    return done;
}

static void first_candidate_makes_the_lease(void **state)
{
    (void)state;
    server place = {0};
    gr_kube_lease_view a = candidate("a"), b = candidate("b");
    assert_true(look(&a, &place, 1000, 1769860800000000));
    assert_true(a.leads);
    char *text = json_dumps(place.lease, JSON_COMPACT | JSON_SORT_KEYS);
    assert_string_equal(
        text, "{\"apiVersion\":\"coordination.k8s.io/v1\",\"kind\":\"Lease\",\"metadata\":"
              "{\"name\":\"op\",\"resourceVersion\":\"1\"},\"spec\":{\"acquireTime\":"
              "\"2026-01-31T12:00:00.000000Z\",\"holderIdentity\":\"a\",\"leaseDurationSeconds\":"
              "15,\"leaseTransitions\":0,\"renewTime\":\"2026-01-31T12:00:00.000000Z\"}}");
    free(text);
    assert_false(look(&b, &place, 5000, 0));
    assert_false(b.leads);
    json_decref(place.lease);
}

static void lease_is_taken_when_it_was_seen_unchanged_for_its_duration(void **state)
{
    (void)state;
    server place = {0};
    gr_kube_lease_view a = candidate("a"), b = candidate("b");
    int64_t b_us = 77 * SECOND_US; /* a clock of its own; b's wall clock is years ahead */
    int64_t years_us = 5LL * 365 * 86400 * SECOND_US;
    assert_true(look(&a, &place, 0, 0));
    assert_false(look(&b, &place, b_us, years_us));
    assert_false(look(&b, &place, b_us + 14 * SECOND_US, years_us));
    assert_true(look(&a, &place, 14 * SECOND_US, 14 * SECOND_US)); /* renewed */
    assert_false(look(&b, &place, b_us + 16 * SECOND_US, years_us));
    assert_false(look(&b, &place, b_us + 30 * SECOND_US, years_us));
    assert_true(look(&b, &place, b_us + 31 * SECOND_US, years_us));
    assert_int_equal(json_integer_value(json_object_get(spec_of(&place), "leaseTransitions")), 1);
    assert_false(look(&a, &place, 32 * SECOND_US, 32 * SECOND_US));
    assert_false(a.leads); /* it sees that another one leads */
    json_decref(place.lease);
}

static void leader_that_cannot_renew_steps_down_before_others_may_lead(void **state)
{
    (void)state;
    server place = {0};
    gr_kube_lease_view a = candidate("a");
    assert_true(look(&a, &place, 0, 0));
    assert_false(gr_kube_lease_is_over(&a, 9999999));
    assert_true(gr_kube_lease_is_over(&a, 10 * SECOND_US));
    json_decref(place.lease);
}

static void released_lease_is_taken_at_once(void **state)
{
    (void)state;
    server place = {0};
    gr_kube_lease_view a = candidate("a"), b = candidate("b");
    assert_true(look(&a, &place, 0, 0));
    assert_false(look(&b, &place, 0, 0));
    json_object_set_new(json_object_get(place.lease, "spec"), "holderIdentity", json_string(""));
    assert_true(look(&b, &place, 1, 0));
    json_decref(place.lease);
}

static void odd_leases_are_no_obstacle(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{\"metadata\":{\"resourceVersion\":\"0\"}}",
        "{\"metadata\":{\"resourceVersion\":\"0\"},\"spec\":null}",
        "{\"metadata\":{\"resourceVersion\":\"0\"},\"spec\":{\"holderIdentity\":7,"
        "\"leaseDurationSeconds\":-1}}",
        "{\"metadata\":{\"resourceVersion\":\"0\"},\"spec\":[]}"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        server place = {.lease = json_loads(texts[i], 0, NULL)};
        gr_kube_lease_view a = candidate("a");
        assert_true(look(&a, &place, 0, 0));
        assert_string_equal(json_string_value(json_object_get(spec_of(&place), "holderIdentity")),
                            "a");
        json_decref(place.lease);
    }
}

static uint64_t next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005U + 1442695040888963407U;
    return *seed >> 33;
}

/* Candidates with clocks that start anywhere and go 1 % wrong look at random times. They are cut
 * off now and then, or an answer is lost. Never do two lead at one time; others come to lead. */
static void never_do_two_lead(void **state)
{
    (void)state;
    int terms = 0; /* of another leader than before, in all runs */
    for (uint64_t run = 0; run < 300; run++) {
        uint64_t seed = run;
        server place = {0};
        gr_kube_lease_view views[CANDIDATES];
        double rate[CANDIDATES];
        int64_t start_us[CANDIDATES], pause_until_us[CANDIDATES] = {0};
        int last_leader = -1;
        for (int i = 0; i < CANDIDATES; i++) {
            char identity[16];
            snprintf(identity, sizeof identity, "c%d", i);
            views[i] = candidate(identity);
            rate[i] = 0.99 + 0.02 * (double)(next_random(&seed) % 1000) / 1000;
            start_us[i] = (int64_t)(next_random(&seed) % 1000) * SECOND_US;
        }
        for (int64_t now_us = 0; now_us < 1000LL * SECOND_US; now_us += SECOND_US / 4) {
            int leaders = 0;
            for (int i = 0; i < CANDIDATES; i++) {
                int64_t own_us = start_us[i] + (int64_t)((double)now_us * rate[i]);
                if (gr_kube_lease_is_over(&views[i], own_us)) {
                    views[i].leads = false;
                }
                if (next_random(&seed) % 2000 == 0) { /* it is cut off for up to a minute */
                    pause_until_us[i] = now_us + (int64_t)(next_random(&seed) % 60) * SECOND_US;
                }
                if (now_us >= pause_until_us[i] && next_random(&seed) % 8 == 0) {
                    bool led = views[i].leads;
                    json_t *fresh =
                        gr_kube_lease_look(&views[i], place.lease, "op", own_us, now_us);
                    bool written = fresh != NULL && write_lease(&place, fresh);
                    if (written && next_random(&seed) % 10 != 0) { /* else the answer is lost */
                        gr_kube_lease_won(&views[i], own_us);
                    }
                    terms += views[i].leads && !led && i != last_leader;
                    last_leader = views[i].leads ? i : last_leader;
                }
                leaders += views[i].leads;
            }
            assert_true(leaders <= 1);
        }
        json_decref(place.lease);
    }
    assert_in_range(terms, 600, 100000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_candidate_makes_the_lease),
        cmocka_unit_test(lease_is_taken_when_it_was_seen_unchanged_for_its_duration),
        cmocka_unit_test(leader_that_cannot_renew_steps_down_before_others_may_lead),
        cmocka_unit_test(released_lease_is_taken_at_once),
        cmocka_unit_test(odd_leases_are_no_obstacle),
        cmocka_unit_test(never_do_two_lead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
