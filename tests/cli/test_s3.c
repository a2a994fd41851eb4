/* SPDX-License-Identifier: Apache-2.0 */
/* URLs for a store of objects: where objects are, who may fetch them, and whose keys sign. */
#include "cli/s3.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { ARENA_BYTES = 1 << 20 };
static const char *const variables[] = {"AWS_ACCESS_KEY_ID",
                                        "AWS_SECRET_ACCESS_KEY",
                                        "AWS_SESSION_TOKEN",
                                        "AWS_REGION",
                                        "AWS_DEFAULT_REGION",
                                        "AWS_ENDPOINT_URL_S3",
                                        "AWS_ENDPOINT_URL",
                                        "AWS_PROFILE",
                                        "AWS_SHARED_CREDENTIALS_FILE",
                                        "AWS_CONFIG_FILE",
                                        "HOME"};

static int clear(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        unsetenv(variables[i]);
    }
    return 0;
}

static gr_s3_access some_access(void)
{
    gr_s3_access access = {.key_id = "AKIAIOSFODNN7EXAMPLE",
                           .secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
                           .region = "us-east-1"};
    return access;
}

/* The request, the keys and the signature are those that Amazon publishes as an example of
 * "Authenticating Requests: Using Query Parameters (AWS Signature Version 4)". */
static void sign_as_amazon_does(void **state)
{
    (void)state;
    gr_arena arena;
    gr_arena_init(&arena, ARENA_BYTES);
    gr_s3_access access = some_access();
    const gr_s3_place place = {"https", "examplebucket.s3.amazonaws.com", "/test.txt"};
    const char *url = gr_s3_sign(&access, &place, "GET", 86400, 1369353600, &arena);
    assert_non_null(url);
    assert_string_equal(
        url, "https://examplebucket.s3.amazonaws.com/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&"
             "X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request&"
             "X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&"
             "X-Amz-Signature="
             "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404");
    snprintf(access.token, sizeof access.token, "a+b/c=");
    url = gr_s3_sign(&access, &place, "PUT", 60, 1369353600, &arena);
    assert_non_null(url);
    assert_non_null(strstr(url, "&X-Amz-Security-Token=a%2Bb%2Fc%3D&X-Amz-SignedHeaders=host&"));
    gr_arena_fini(&arena);
}

static void expect_place(const gr_s3_access *access, const char *text, const char *url)
{
    gr_arena arena;
    gr_s3_place place;
    gr_diag diag;
    char got[512];
    gr_arena_init(&arena, ARENA_BYTES);
    assert_int_equal(gr_s3_place_read(access, text, &arena, &place, &diag), GR_OK);
    snprintf(got, sizeof got, "%s://%s%s", place.scheme, place.host, place.path);
    assert_string_equal(got, url);
    gr_arena_fini(&arena);
}

static void find_places(void **state)
{
    (void)state;
    gr_s3_access access = some_access();
    expect_place(&access, "s3://data/a/b.tar.gz",
                 "https://data.s3.us-east-1.amazonaws.com/a/b.tar.gz");
    expect_place(&access, "s3://my.data/a b+\xc3\xa4?#",
                 "https://s3.us-east-1.amazonaws.com/my.data/a%20b%2B%C3%A4%3F%23");
    snprintf(access.region, sizeof access.region, "cn-north-1");
    expect_place(&access, "s3://data/a", "https://data.s3.cn-north-1.amazonaws.com.cn/a");
    snprintf(access.endpoint, sizeof access.endpoint, "http://minio:9000");
    expect_place(&access, "s3://data/a", "http://minio:9000/data/a");
    snprintf(access.endpoint, sizeof access.endpoint, "https://minio:443");
    expect_place(&access, "s3://data/a", "https://minio/data/a");
}

static void refuse_wrong_places(void **state)
{
    (void)state;
    static const char *const wrong[] = {"s3://",       "s3://data",    "s3://data/",  "s3://Data/a",
                                        "s3://da/a",   "s3://-data/a", "s3://a..b/a", "s3:///a",
                                        "s3://a@bc/a", "s3://a b c/a"};
    const gr_s3_access access = some_access();
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        gr_arena arena;
        gr_s3_place place;
        gr_diag diag;
        gr_arena_init(&arena, ARENA_BYTES);
        assert_int_equal(gr_s3_place_read(&access, wrong[i], &arena, &place, &diag), GR_E_INVALID);
        assert_non_null(strstr(diag.text, "it must be s3://BUCKET/KEY"));
        gr_arena_fini(&arena);
    }
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static void expect_access(const char *key_id, const char *secret, const char *token,
                          const char *region, const char *endpoint)
{
    gr_s3_access access;
    gr_diag diag;
    assert_int_equal(gr_s3_access_find(&access, &diag), GR_OK);
    assert_string_equal(access.key_id, key_id);
    assert_string_equal(access.secret, secret);
    assert_string_equal(access.token, token);
    assert_string_equal(access.region, region);
    assert_string_equal(access.endpoint, endpoint);
    gr_s3_access_fini(&access);
    assert_string_equal(access.secret, "");
}

static void find_keys(void **state)
{
    (void)state;
    char keys[] = "/tmp/gradus-s3-keys-XXXXXX", config[] = "/tmp/gradus-s3-config-XXXXXX";
    close(mkstemp(keys));
    close(mkstemp(config));
    write_text(keys, "# of the file\n[default]\naws_access_key_id = A\n"
                     "aws_secret_access_key=S=\r\naws_session_token = T\n\n"
                     "[ other ]\naws_access_key_id = B\naws_secret_access_key = R\n");
    write_text(config, "[default]\nregion = eu-west-1\n[profile other]\nregion = eu-west-2\n"
                       "endpoint_url = https://store:9000/\n");
    setenv("AWS_SHARED_CREDENTIALS_FILE", keys, 1);
    setenv("AWS_CONFIG_FILE", config, 1);
    expect_access("A", "S=", "T", "eu-west-1", "");
    setenv("AWS_PROFILE", "other", 1);
    expect_access("B", "R", "", "eu-west-2", "https://store:9000");
    setenv("AWS_REGION", "eu-west-3", 1);
    setenv("AWS_ENDPOINT_URL", "http://here", 1);
    expect_access("B", "R", "", "eu-west-3", "http://here");
    /* Keys of the environment do not get the token of a file. */
    setenv("AWS_PROFILE", "default", 1);
    setenv("AWS_ACCESS_KEY_ID", "E", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "F", 1);
    expect_access("E", "F", "", "eu-west-3", "http://here");
    unlink(keys);
    unlink(config);
}

static void expect_no_access(gr_status status, const char *words)
{
    gr_s3_access access;
    gr_diag diag;
    assert_int_equal(gr_s3_access_find(&access, &diag), status);
    assert_non_null(strstr(diag.text, words));
    gr_s3_access_fini(&access);
}

static void tell_what_is_missing_or_wrong(void **state)
{
    (void)state;
    expect_no_access(GR_E_NOT_FOUND, "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
    setenv("HOME", "/nowhere", 1);
    expect_no_access(GR_E_NOT_FOUND, "~/.aws/credentials");
    setenv("AWS_ACCESS_KEY_ID", "E", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "F", 1);
    setenv("AWS_ENDPOINT_URL", "minio:9000", 1);
    expect_no_access(GR_E_INVALID, "must be https://HOST:PORT");
    setenv("AWS_ENDPOINT_URL", "https://minio/path", 1);
    expect_no_access(GR_E_INVALID, "must be https://HOST:PORT");
    unsetenv("AWS_ENDPOINT_URL");
    setenv("AWS_REGION", "eu west", 1);
    expect_no_access(GR_E_INVALID, "a name like eu-central-1");
    static char large[GR_S3_KEY_BYTES + 1];
    memset(large, 'k', sizeof large - 1);
    setenv("AWS_ACCESS_KEY_ID", large, 1);
    expect_no_access(GR_E_INVALID, "too long");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sign_as_amazon_does),
        cmocka_unit_test(find_places),
        cmocka_unit_test(refuse_wrong_places),
        cmocka_unit_test_setup_teardown(find_keys, clear, clear),
        cmocka_unit_test_setup_teardown(tell_what_is_missing_or_wrong, clear, clear),
    };
    return cmocka_run_group_tests(tests, clear, NULL);
}
