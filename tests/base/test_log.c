#include "base/log.h"
#include "support/cmocka.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct seen {
    char last[8192];
    enum log_level level;
    int lines, progress, ends;
};

static void see_line(void *context, enum log_level level, const char *text)
{
    struct seen *s = context;
    snprintf(s->last, sizeof s->last, "%s", text);
    s->level = level;
    s->lines++;
}

static void see_progress(void *context, const char *text, bool last)
{
    struct seen *s = context;
    snprintf(s->last, sizeof s->last, "%s", text);
    s->progress++;
    s->ends += last;
}

static void messages_reach_the_sink(void **state)
{
    (void)state;
    struct seen s = {.lines = 0};
    struct log log = {see_line, see_progress, &s};
    log_info(&log, "%d of %s", 3, "four");
    assert_string_equal(s.last, "3 of four");
    assert_int_equal(s.level, LOG_INFO);
    log_warning(&log, "careful");
    assert_int_equal(s.level, LOG_WARNING);
    log_progress(&log, false, "%d%%", 50);
    assert_string_equal(s.last, "50%");
    log_progress(&log, true, "done");
    assert_int_equal(s.lines, 2);
    assert_int_equal(s.progress, 2);
    assert_int_equal(s.ends, 1);
    log_info(&log, "%5000s", "x"); /* longer than any fixed buffer */
    assert_int_equal(strlen(s.last), 5000);
    assert_int_equal(s.last[4999], 'x');
}

static void empty_sinks_swallow(void **state)
{
    (void)state;
    struct log none = {0};
    log_info(&none, "x");
    log_warning(&none, "x");
    log_progress(&none, true, "x");
    log_info(NULL, "x");
    log_progress(NULL, false, "x");
}

/* What a stream that is no terminal, or is taken for one, receives. */
static char *written(bool terminal)
{
    char *text = NULL;
    size_t size;
    FILE *stream = tmpfile();
    assert_non_null(stream);
    struct log log;
    struct log_stream state;
    log_to_stream(&log, &state, stream);
    assert_false(state.terminal);
    state.terminal = terminal;
    log_progress(&log, false, "one");
    log_progress(&log, false, "two");
    log_warning(&log, "bad \033[2J\nline \xc3\xa9");
    log_progress(&log, true, "three");
    long length = ftell(stream);
    assert_true(length > 0);
    size = (size_t)length;
    text = calloc(size + 1, 1);
    assert_non_null(text);
    rewind(stream);
    assert_int_equal(fread(text, 1, size, stream), size);
    fclose(stream);
    return text;
}

static void pipe_gets_plain_lines(void **state)
{
    (void)state;
    char *text = written(false);
    assert_string_equal(text, "one\nwarning: bad ?[2J\nline \xc3\xa9\nthree\n");
    free(text);
}

static void terminal_redraws_one_line(void **state)
{
    (void)state;
    char *text = written(true);
    assert_string_equal(text,
                        "\r\033[Kone\r\033[Ktwo\r\033[Kwarning: bad ?[2J\nline \xc3\xa9\n\r\033[Kthree\n");
    free(text);
}

static void numbers_for_people(void **state)
{
    (void)state;
    char out[32];
    assert_string_equal(format_count(0, out), "0");
    assert_string_equal(format_count(999, out), "999");
    assert_string_equal(format_count(1000, out), "1,000");
    assert_string_equal(format_count(1234567, out), "1,234,567");
    assert_string_equal(format_count(-123456, out), "-123,456");
    assert_string_equal(format_count(INT64_MIN, out), "-9,223,372,036,854,775,808");

    assert_string_equal(format_bytes(0, out), "0 B");
    assert_string_equal(format_bytes(999, out), "999 B");
    assert_string_equal(format_bytes(1000, out), "1.0 kB");
    assert_string_equal(format_bytes(999949, out), "999.9 kB");
    assert_string_equal(format_bytes(999950, out), "1.0 MB"); /* never "1000.0 kB" */
    assert_string_equal(format_bytes(1234567890, out), "1.2 GB");
    assert_string_equal(format_bytes(INT64_MAX, out), "9.2 EB");
    assert_string_equal(format_bytes(-2500, out), "-2.5 kB");

    assert_string_equal(format_duration(0, out), "0.0 s");
    assert_string_equal(format_duration(59.94, out), "59.9 s");
    assert_string_equal(format_duration(59.97, out), "1 min 00 s"); /* never "60.0 s" */
    assert_string_equal(format_duration(185, out), "3 min 05 s");
    assert_string_equal(format_duration(3599.7, out), "1 h 00 min");
    assert_string_equal(format_duration(3725, out), "1 h 02 min");
    assert_string_equal(format_duration(90000, out), "1 d 01 h");
    assert_string_equal(format_duration(-1.5, out), "-1.5 s");
    assert_string_equal(format_duration((double)NAN, out), "unknown");
    assert_string_equal(format_duration((double)INFINITY, out), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_reach_the_sink), cmocka_unit_test(empty_sinks_swallow),
        cmocka_unit_test(pipe_gets_plain_lines),   cmocka_unit_test(terminal_redraws_one_line),
        cmocka_unit_test(numbers_for_people),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
