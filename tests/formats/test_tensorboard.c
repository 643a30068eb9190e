#include "formats/tensorboard.h"
#include "support/allocations.h"
#include "support/cmocka.h"
#include "support/scratch.h"

#include "base/clock.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int open_scratch(void **state)
{
    static struct scratch scratch;
    scratch_open(&scratch);
    *state = &scratch;
    return 0;
}

static int close_scratch(void **state)
{
    scratch_close(*state);
    return 0;
}

static void checksum(void **state)
{
    (void)state;
    /* The first is the polynomial's usual check value, the others are from RFC 3720, B.4. */
    uint8_t bytes[32] = {0};
    assert_int_equal(crc32c("123456789", 9), 0xe3069283u);
    assert_int_equal(crc32c("", 0), 0);
    assert_int_equal(crc32c(bytes, 32), 0x8a9136aau);
    memset(bytes, 0xff, sizeof bytes);
    assert_int_equal(crc32c(bytes, 32), 0x62a8ab43u);
    for (int i = 0; i < 32; i++)
        bytes[i] = (uint8_t)i;
    assert_int_equal(crc32c(bytes, 32), 0x46dd794eu);
}

static void scalars_read_back(void **state)
{
    struct scratch *s = *state;
    struct event_writer w;
    struct event_reader r;
    struct event e;
    struct error err;
    char tag[EVENT_TAG_MAX + 2];
    const int n = 3000; /* more than one buffer */
    char *directory = scratch_path(s, "run/tensorboard");
    assert_int_equal(event_writer_open(&w, directory, &err), 0);
    char *path = strdup(w.path);
    assert_non_null(strstr(path, "/run/tensorboard/events.out.tfevents."));
    memset(tag, 't', sizeof tag);
    tag[EVENT_TAG_MAX] = '\0';
    int64_t before = allocations_count();
    for (int i = 0; i < n; i++)
        assert_int_equal(
            event_writer_scalar(&w, i % 2 ? tag : "loss", i * 1000000007LL, 1.5 + i, (float)i / 3, &err), 0);
    assert_int_equal(event_writer_scalar(&w, "", 1, 0, 0, &err), -1);
    tag[EVENT_TAG_MAX] = 't';
    tag[EVENT_TAG_MAX + 1] = '\0';
    assert_int_equal(event_writer_scalar(&w, tag, 1, 0, 0, &err), -1);
    tag[EVENT_TAG_MAX] = '\0';
    assert_int_equal(event_writer_scalar(&w, "neg", -1, -2, NAN, &err), 0);
    assert_int_equal(event_writer_scalar(&w, "zero", 0, 0, 0, &err), 0);
    assert_int_equal(event_writer_flush(&w, &err), 0);
    assert_int_equal(allocations_count(), before);
    /* What was flushed is there before the writer closes. */
    assert_int_equal(event_reader_open(&r, path, &err), 0);
    assert_int_equal(event_reader_next(&r, &e, &err), 1);
    assert_string_equal(e.file_version, "brain.Event:2");
    assert_true(fabs(e.wall_time - clock_wall()) < 1000);
    assert_int_equal(e.count, 0);
    for (int i = 0; i < n; i++) {
        assert_int_equal(event_reader_next(&r, &e, &err), 1);
        assert_null(e.file_version);
        assert_int_equal(e.count, 1);
        assert_int_equal(e.others, 0);
        assert_string_equal(e.scalars[0].tag, i % 2 ? tag : "loss");
        assert_true(e.scalars[0].value == (float)i / 3);
        assert_true(e.step == i * 1000000007LL);
        assert_true(e.wall_time == 1.5 + i);
    }
    assert_int_equal(event_reader_next(&r, &e, &err), 1);
    assert_true(e.step == -1 && e.wall_time == -2 && isnan(e.scalars[0].value));
    assert_int_equal(event_reader_next(&r, &e, &err), 1);
    assert_true(e.step == 0 && e.count == 1 && e.scalars[0].value == 0);
    assert_int_equal(event_reader_next(&r, &e, &err), 0);
    assert_int_equal(event_reader_next(&r, &e, &err), 0);
    event_reader_close(&r);
    event_reader_close(&r); /* once more does no harm */
    assert_int_equal(event_writer_close(&w, &err), 0);
    assert_int_equal(event_writer_close(&w, &err), 0);
    free(path);
}

static void names_do_not_collide(void **state)
{
    struct scratch *s = *state;
    struct event_writer w[3];
    struct error err;
    for (int i = 0; i < 3; i++)
        assert_int_equal(event_writer_open(&w[i], scratch_path(s, "tb"), &err), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_not_equal(strcmp(w[i].path, w[(i + 1) % 3].path), 0);
        assert_int_equal(event_writer_scalar(&w[i], "a", i, 0, 0, &err), 0);
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(event_writer_close(&w[i], &err), 0);
}

/* The bytes of an event, put together by hand. */
static size_t frame(uint8_t *out, const void *message, uint64_t n)
{
    memcpy(out, &n, 8);
    uint32_t crc = crc32c(out, 8);
    crc = ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
    memcpy(out + 8, &crc, 4);
    memcpy(out + 12, message, n);
    crc = crc32c(message, n);
    crc = ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
    memcpy(out + 12 + n, &crc, 4);
    return 16 + n;
}

/* wall_time 1.5, step 300, summary {value {tag "ab", simple_value 0.5}, value {tag "im"}}, and a field 9
 * that nobody here knows. */
static const uint8_t by_hand[] = {0x09, 0,    0,    0,    0, 0,    0,    0xf8, 0x3f, 0x10, 0xac,
                                  0x02, 0x2a, 0x11, 0x0a, 9, 0x0a, 0x02, 'a',  'b',  0x15, 0,
                                  0,    0,    0x3f, 0x0a, 4, 0x0a, 2,    'i',  'm',  0x48, 0x07};

static void known_bytes(void **state)
{
    struct scratch *s = *state;
    uint8_t bytes[256];
    struct event_reader r;
    struct event e;
    struct error err;
    char *path = scratch_path(s, "hand");
    assert_int_equal(file_write_all(path, bytes, frame(bytes, by_hand, sizeof by_hand), &err), 0);
    assert_int_equal(event_reader_open(&r, path, &err), 0);
    assert_int_equal(event_reader_next(&r, &e, &err), 1);
    assert_true(e.wall_time == 1.5);
    assert_int_equal(e.step, 300);
    assert_int_equal(e.count, 1);
    assert_int_equal(e.others, 1);
    assert_string_equal(e.scalars[0].tag, "ab");
    assert_true(e.scalars[0].value == 0.5f);
    assert_int_equal(event_reader_next(&r, &e, &err), 0);
    event_reader_close(&r);
}

/* What the writer writes, byte for byte, but for the first record with its clock. */
static void written_bytes(void **state)
{
    struct scratch *s = *state;
    static const uint8_t message[] = {0x09, 0,    0,    0,    0,    0,    0,    0xf8, 0x3f,
                                      0x10, 0xac, 0x02, 0x2a, 0x0b, 0x0a, 0x09, 0x0a, 0x02,
                                      'a',  'b',  0x15, 0,    0,    0,    0x3f};
    uint8_t expected[64];
    struct event_writer w;
    struct file_map map;
    struct error err;
    size_t n = frame(expected, message, sizeof message);
    assert_int_equal(event_writer_open(&w, scratch_path(s, "bytes"), &err), 0);
    char *path = strdup(w.path);
    assert_int_equal(event_writer_scalar(&w, "ab", 300, 1.5, 0.5f, &err), 0);
    assert_int_equal(event_writer_close(&w, &err), 0);
    assert_int_equal(file_map(path, &map, &err), 0);
    assert_int_equal(map.size, 12 + 9 + 15 + 4 + n);
    assert_memory_equal(map.data + map.size - n, expected, n);
    file_unmap(&map);
    free(path);
}

/* Reads a file that is cut or damaged: the events before it, then -1 with the message. */
static void assert_damaged(struct scratch *s, const uint8_t *bytes, size_t n, int before, const char *what)
{
    struct event_reader r;
    struct event e;
    struct error err = {0};
    char *path = scratch_path(s, "damaged");
    assert_int_equal(file_write_all(path, bytes, n, &err), 0);
    assert_int_equal(event_reader_open(&r, path, &err), 0);
    for (int i = 0; i < before; i++)
        assert_int_equal(event_reader_next(&r, &e, &err), 1);
    assert_int_equal(event_reader_next(&r, &e, &err), -1);
    assert_int_equal(err.kind, ERROR_INPUT);
    if (strstr(err.what, what) == NULL)
        fail_msg("\"%s\" not in \"%s\"", what, err.what);
    event_reader_close(&r);
}

static void damage(void **state)
{
    struct scratch *s = *state;
    uint8_t bytes[256], broken[256];
    size_t n = frame(bytes, by_hand, sizeof by_hand);
    memcpy(bytes + n, bytes, n);
    for (size_t cut = 1; cut < n; cut += 5)
        assert_damaged(s, bytes, n + cut, 1, "is cut short");
    memcpy(broken, bytes, 2 * n);
    broken[n + 3] ^= 1;
    assert_damaged(s, broken, 2 * n, 1, "length with a wrong checksum");
    memcpy(broken, bytes, 2 * n);
    broken[n + 20] ^= 1;
    assert_damaged(s, broken, 2 * n, 1, "data with a wrong checksum");
    assert_damaged(s, broken, 2 * n, 1, "byte 49");
    assert_damaged(s, (const uint8_t *)"this is a text, not events", 26, 0, "no event file");
    /* A length near 2^64 with a right checksum must not wrap around. */
    uint64_t huge = UINT64_MAX - 3;
    uint32_t crc = crc32c(&huge, 8);
    crc = ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
    memcpy(broken, &huge, 8);
    memcpy(broken + 8, &crc, 4);
    assert_damaged(s, broken, 64, 0, "is cut short");
    /* Right frame, wrong message. */
    assert_damaged(s, broken, frame(broken, "\x09\x01", 2), 0, "no Event message");
}

static void unwritable(void **state)
{
    struct scratch *s = *state;
    struct event_writer w;
    struct event_reader r;
    struct error err;
    char *path = scratch_path(s, "file");
    assert_int_equal(file_write_all(path, "x", 1, &err), 0);
    assert_int_equal(event_writer_open(&w, path, &err), -1);
    assert_int_equal(event_writer_close(&w, &err), 0);
    assert_int_equal(event_reader_open(&r, scratch_path(s, "none"), &err), -1);
    assert_int_equal(err.kind, ERROR_INPUT);
    event_reader_close(&r);
}

/* A full disk: the write fails with a message, and closing fails too but frees everything. */
static void full_disk(void **state)
{
    struct scratch *s = *state;
    struct event_writer w;
    struct error err;
    assert_int_equal(event_writer_open(&w, scratch_path(s, "full"), &err), 0);
    FILE *full = fopen("/dev/full", "w");
    if (full == NULL) {
        event_writer_close(&w, NULL);
        skip();
    }
    assert_int_not_equal(dup2(fileno(full), w.fd), -1);
    fclose(full);
    assert_int_equal(event_writer_scalar(&w, "a", 1, 1, 1, &err), 0);
    assert_int_equal(event_writer_flush(&w, &err), -1);
    assert_int_equal(err.kind, ERROR_RUN);
    assert_int_equal(event_writer_close(&w, &err), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checksum),
        cmocka_unit_test_setup_teardown(scalars_read_back, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(names_do_not_collide, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(known_bytes, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(written_bytes, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(damage, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(unwritable, open_scratch, close_scratch),
        cmocka_unit_test_setup_teardown(full_disk, open_scratch, close_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
