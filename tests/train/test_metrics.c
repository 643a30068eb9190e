/* metrics.jsonl: what a line holds, exact digits, and how it is cut back at resumption. */
#include "support/allocations.h"
#include "support/cmocka.h"

#include "base/file.h"
#include "formats/json.h"
#include "support/scratch.h"
#include "train/metrics.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct scratch scratch;
static char *path;

static int setup(void **state)
{
    (void)state;
    scratch_open(&scratch);
    path = scratch_path(&scratch, "metrics.jsonl");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_close(&scratch);
    return 0;
}

struct lines {
    int progress, last, line;
    char text[256];
};

static void keep_line(void *context, enum log_level level, const char *text)
{
    (void)level;
    struct lines *l = context;
    l->line++;
    snprintf(l->text, sizeof l->text, "%s", text);
}

static void keep_progress(void *context, const char *text, bool last)
{
    struct lines *l = context;
    l->progress++;
    l->last += last;
    snprintf(l->text, sizeof l->text, "%s", text);
}

static void open_metrics(struct metrics *m, int64_t step, int64_t every, bool tensorboard)
{
    struct error err = {0};
    if (metrics_open(m, scratch.directory, step, every, tensorboard, &err) != 0)
        fail_msg("%s: %s", err.where, err.what);
}

static char *contents(void)
{
    char *text;
    size_t n;
    assert_int_equal(file_read(path, 1 << 20, &text, &n, NULL), 0);
    return text;
}

static void expect_contents(const char *wanted)
{
    char *text = contents();
    assert_string_equal(text, wanted);
    free(text);
}

static void put(const char *text)
{
    assert_int_equal(file_write_all(path, text, strlen(text), NULL), 0);
}

static const struct metrics_step step3 = {.step = 3,
                                          .total = 4,
                                          .tokens = 500,
                                          .tokens_seen = 1500,
                                          .loss = 0.1 + 0.2,
                                          .lr = 1e-3 / 3,
                                          .grad_norm = 1.0 / 3,
                                          .seconds = 0.25,
                                          .seconds_left = 1};

static double number(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    assert_true(json_is_number(v));
    return json_number_value(v);
}

static void test_step_line(void **state)
{
    (void)state;
    struct metrics m;
    struct lines seen = {0};
    const struct log log = {keep_line, keep_progress, &seen};
    open_metrics(&m, 0, 1, false);
    assert_int_equal(metrics_step(&m, &step3, &log, NULL), 0);
    char *text = contents(); /* there at once, not at the end */
    json_t *object = json_loads(text, 0, NULL);
    assert_non_null(object);
    assert_int_equal(json_object_size(object), 9);
    assert_true(number(object, "loss") == 0.1 + 0.2);
    assert_true(number(object, "lr") == 1e-3 / 3);
    assert_true(number(object, "grad_norm") == 1.0 / 3);
    assert_true(number(object, "seconds") == 0.25);
    assert_true(number(object, "tokens_per_second") == 2000);
    assert_int_equal(json_integer_value(json_object_get(object, "step")), 3);
    assert_int_equal(json_integer_value(json_object_get(object, "tokens")), 500);
    assert_int_equal(json_integer_value(json_object_get(object, "tokens_seen")), 1500);
    assert_true(json_is_null(json_object_get(object, "peak_share")));
    assert_int_equal(text[strlen(text) - 1], '\n');
    json_decref(object);
    free(text);
    assert_int_equal(seen.progress, 1);
    assert_int_equal(seen.last, 0);
    assert_non_null(strstr(seen.text, "step 3/4"));
    assert_int_equal(metrics_close(&m, NULL), 0);
    assert_int_equal(metrics_close(&m, NULL), 0);
}

/* log.every thins what is shown, never the file; the last step is shown in any case. */
static void test_every(void **state)
{
    (void)state;
    struct metrics m;
    struct lines seen = {0};
    const struct log log = {keep_line, keep_progress, &seen};
    open_metrics(&m, 0, 3, false);
    for (int64_t step = 1; step <= 7; step++) {
        struct metrics_step s = step3;
        s.step = step;
        s.total = 7;
        assert_int_equal(metrics_step(&m, &s, &log, NULL), 0);
    }
    assert_int_equal(seen.progress, 3); /* 3, 6, 7 */
    assert_int_equal(seen.last, 1);
    metrics_close(&m, NULL);
    char *text = contents();
    int lines = 0;
    for (const char *at = text; (at = strchr(at, '\n')); at++)
        lines++;
    assert_int_equal(lines, 7);
    free(text);
}

static void test_evaluation(void **state)
{
    (void)state;
    struct metrics m;
    struct lines seen = {0};
    const struct log log = {keep_line, keep_progress, &seen};
    open_metrics(&m, 0, 1, false);
    assert_int_equal(m.last_evaluation, -1);
    assert_int_equal(metrics_eval(&m, 5, 2.0 / 3, 77, 0.5, &log, NULL), 0);
    metrics_close(&m, NULL);
    char *text = contents();
    json_t *object = json_loads(text, 0, NULL);
    assert_true(number(object, "eval_loss") == 2.0 / 3);
    assert_int_equal(json_integer_value(json_object_get(object, "eval_targets")), 77);
    json_decref(object);
    free(text);
    assert_int_equal(seen.line, 1);
    open_metrics(&m, 5, 1, false);
    assert_int_equal(m.last_evaluation, 5);
    metrics_close(&m, NULL);
    open_metrics(&m, 4, 1, false);
    assert_int_equal(m.last_evaluation, -1);
    metrics_close(&m, NULL);
    expect_contents("");
}

static void cut(int64_t step)
{
    struct metrics m;
    open_metrics(&m, step, 1, false);
    assert_int_equal(metrics_close(&m, NULL), 0);
}

#define L1 "{\"step\": 1, \"loss\": 5.0}\n"
#define L2 "{\"step\": 2, \"loss\": 4.5}\n"
#define E2 "{\"step\": 2, \"eval_loss\": 4.25}\n"
#define L3 "{\"step\": 3, \"loss\": 4.0}\n"

static void test_cut_back(void **state)
{
    (void)state;
    put(L1 L2 E2 L3);
    cut(3);
    expect_contents(L1 L2 E2 L3);
    cut(2);
    expect_contents(L1 L2 E2);
    cut(1);
    expect_contents(L1);
    cut(0);
    expect_contents("");
}

/* A line that was cut off by a kill is dropped, whatever it had got to; so is what is no line of ours. */
static void test_torn(void **state)
{
    (void)state;
    static const char *const torn[] = {"{", "{\"step\": 2, \"lo", "{\"step\": 2, \"loss\": 4.5}",
                                       "{\"step\": 2"};
    for (size_t i = 0; i < sizeof torn / sizeof *torn; i++) {
        char text[256];
        snprintf(text, sizeof text, "%s%s", L1, torn[i]);
        put(text);
        cut(5);
        expect_contents(L1);
    }
    put(L1 "not JSON\n"
           "[1]\n"
           "{\"step\": \"2\"}\n"
           "{\"step\": -4}\n"
           "\n" L2);
    cut(5);
    expect_contents(L1 L2);
}

/* A line that could not be looked at for want of memory is not taken for a torn one: nothing is cut. */
static void test_no_memory(void **state)
{
    (void)state;
    struct error err;
    int64_t n = 0;
    put(L1 L2 E2);
    for (int status = -1; status != 0; n++) {
        struct metrics m;
        allocations_fail_once(n);
        status = metrics_open(&m, scratch.directory, 2, 1, false, &err);
        allocations_fail_after(-1);
        assert_true(status == 0 || err.kind == ERROR_RUN);
        metrics_close(&m, NULL);
        expect_contents(L1 L2 E2);
    }
    assert_true(n > 20);
}

/* After a cut, new lines follow the kept ones. */
static void test_append(void **state)
{
    (void)state;
    struct metrics m;
    put(L1 L2 L3 "{\"st");
    open_metrics(&m, 2, 1, false);
    assert_int_equal(metrics_eval(&m, 2, 1.5, 3, 0, &(struct log){NULL, NULL, NULL}, NULL), 0);
    metrics_close(&m, NULL);
    char *text = contents();
    assert_true(strncmp(text, L1 L2 "{\"step\": 2, \"eval_loss\": 1.5", strlen(L1 L2) + 20) == 0);
    free(text);
}

static void test_not_finite(void **state)
{
    (void)state;
    struct metrics m;
    open_metrics(&m, 0, 1, false);
    assert_int_equal(metrics_eval(&m, 1, (double)INFINITY, 3, 0, &(struct log){NULL, NULL, NULL}, NULL), 0);
    metrics_close(&m, NULL);
    char *text = contents();
    json_t *object = json_loads(text, 0, NULL);
    assert_non_null(object); /* still JSON */
    assert_true(json_is_null(json_object_get(object, "eval_loss")));
    json_decref(object);
    free(text);
}

static void test_failures(void **state)
{
    (void)state;
    struct metrics m;
    struct error err = {0};
    assert_int_equal(metrics_open(&m, "/nonexistent/of/course", 0, 1, false, &err), -1);
    assert_int_equal(err.kind, ERROR_RUN);
    assert_non_null(strstr(err.where, "metrics.jsonl"));
    assert_int_equal(metrics_close(&m, NULL), 0);
    if (access("/dev/full", W_OK) != 0)
        return;
    open_metrics(&m, 0, 1, false);
    close(m.fd);
    m.fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
    assert_int_equal(metrics_step(&m, &step3, &(struct log){NULL, NULL, NULL}, &err), -1);
    assert_non_null(strstr(err.what, "No space left"));
    assert_true(err.remedy[0] != '\0');
    metrics_close(&m, &err);
}

static void test_tensorboard(void **state)
{
    (void)state;
    struct metrics m;
    open_metrics(&m, 0, 1, true);
    assert_int_equal(metrics_step(&m, &step3, &(struct log){NULL, NULL, NULL}, NULL), 0);
    assert_int_equal(metrics_close(&m, NULL), 0);
    DIR *directory = opendir(scratch_path(&scratch, "tensorboard"));
    assert_non_null(directory);
    int files = 0;
    for (const struct dirent *e; (e = readdir(directory));)
        files += strncmp(e->d_name, "events.out.tfevents.", 20) == 0;
    closedir(directory);
    assert_int_equal(files, 1);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_step_line), TEST(test_every),       TEST(test_evaluation), TEST(test_cut_back),
        TEST(test_torn),      TEST(test_append),      TEST(test_no_memory),  TEST(test_not_finite),
        TEST(test_failures),  TEST(test_tensorboard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
