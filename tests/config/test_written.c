/* What the table of keys has to say: the resolved run file, differences between two, help. */
#include "config/small_runfile.h"

#include "config/schema.h"

#include <stdio.h>

static void written_and_read_again(void **state)
{
    (void)state;
    static const char *const files[] = {
        LEAST, everything, LEAST "schedule: {name: wsd, decay_steps: 9, decay: sqrt}\n",
        LEAST "schedule: {name: multistep, at: [0.8, 0.9], factor: [0.3, 0.1]}\n",
        "output: o\nmodel: {config: 'c d.json'}\ntokenizer: t\n"
        "data: {train: [a, b], seq_len: 1}\n"
        "train: {epochs: 0.1, global_batch: 1, micro_batch: 1}\n"
        "optimizer: {lr: 0.30000000000000004, betas: [0.1, 1e-300]}\n",
        /* what JSON lets stand in a string and YAML does not */
        "output: o\nmodel: {config: {\"k\\x7f\\u2028\": \"v\\x85\\ufeff \\U0001F600 \\u00e9\"}}\ntokenizer: "
        "t\n"
        "data: {train: [a], seq_len: 1}\ntrain: {steps: 1, global_batch: 1, micro_batch: 1}\n"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        struct run_config a, b;
        struct strbuf first = {0}, second = {0};
        struct error_list errors = {0};
        accept(files[i], NULL, 0, &a);
        run_config_write(&a, &first);
        accept(first.data, NULL, 0, &b);
        run_config_write(&b, &second);
        assert_false(first.failed || second.failed);
        assert_string_equal(first.data, second.data);
        assert_int_equal(run_config_difference(&a, &b, NULL, 0, &errors), 0);
        assert_true(a.optimizer.lr == b.optimizer.lr && a.train.epochs == b.train.epochs);
        assert_true(a.model.config_inline == NULL ||
                    json_equal(a.model.config_inline, b.model.config_inline));
        run_config_free(&a);
        run_config_free(&b);
        strbuf_free(&first);
        strbuf_free(&second);
    }
}

static void written_text(void **state)
{
    (void)state;
    struct run_config c;
    struct strbuf out = {0};
    accept(LEAST, NULL, 0, &c);
    run_config_write(&c, &out);
    assert_string_equal(out.data, "output: runs/demo\n"
                                  "seed: 42\n"
                                  "tokenizer: base\n"
                                  "model:\n"
                                  "  from: base\n"
                                  "  config: null\n"
                                  "data:\n"
                                  "  train: [a.jsonl]\n"
                                  "  eval: []\n"
                                  "  text: text\n"
                                  "  seq_len: 512\n"
                                  "  pack: true\n"
                                  "  add_bos: auto\n"
                                  "  add_eos: true\n"
                                  "  special_in_text: false\n"
                                  "  shuffle: true\n"
                                  "  bad_lines: error\n"
                                  "  cache: runs/token-cache\n"
                                  "train:\n"
                                  "  steps: 1000\n"
                                  "  epochs: null\n"
                                  "  global_batch: 12\n"
                                  "  micro_batch: 4\n"
                                  "  dtype: bf16\n"
                                  "  recompute: none\n"
                                  "  lanes: 0\n"
                                  "optimizer:\n"
                                  "  name: adamw\n"
                                  "  lr: 5.0e-05\n"
                                  "  betas: [0.9, 0.95]\n"
                                  "  eps: 1.0e-08\n"
                                  "  weight_decay: 0.1\n"
                                  "  decay_all: false\n"
                                  "  clip: 1.0\n"
                                  "schedule:\n"
                                  "  name: linear\n"
                                  "  warmup_steps: 0\n"
                                  "  min_lr: 0.0\n"
                                  "  hf_schedule: false\n"
                                  "  decay_steps: null\n"
                                  "  decay: linear\n"
                                  "  at: null\n"
                                  "  factor: null\n"
                                  "parallel:\n"
                                  "  zero: 3\n"
                                  "  threads: 0\n"
                                  "  transport: auto\n"
                                  "  overlap: true\n"
                                  "  watchdog: 60.0\n"
                                  "backend:\n"
                                  "  name: auto\n"
                                  "  isa: auto\n"
                                  "  products: auto\n"
                                  "checkpoint:\n"
                                  "  every: 500\n"
                                  "  minutes: 0.0\n"
                                  "  keep: 3\n"
                                  "  dtype: auto\n"
                                  "eval:\n"
                                  "  every: 500\n"
                                  "  at_start: true\n"
                                  "log:\n"
                                  "  every: 1\n"
                                  "  tensorboard: true\n");
    strbuf_free(&out);
    run_config_free(&c);
}

/* Each change alone: how many keys a resumed run refuses. */
static void differences(void **state)
{
    (void)state;
    static const struct {
        const char *change;
        int refused;
    } cases[] = {
        {"parallel={zero: 0, threads: 2, transport: mpi, overlap: false, watchdog: 5}", 0},
        {"train.recompute=full", 0},
        {"backend.name=cpu", 0},
        {"backend.name=guarded", 0},
        {"backend.name=reference", 1},
        {"backend.isa=avx2", 1},
        {"backend.products=onednn", 1},
        {"output=elsewhere", 0},
        {"data.cache=elsewhere", 0},
        {"log={every: 7, tensorboard: false}", 0},
        {"checkpoint={every: 7, minutes: 1, keep: 9, dtype: fp32}", 0},
        {"eval={every: 7, at_start: false}", 0},
        {"seed=43", 1},
        {"train.steps=1001", 1},
        {"train.dtype=fp32", 1},
        {"train.micro_batch=3", 1},
        {"optimizer={lr: 1e-3, clip: 2}", 2},
        {"data.train=[a.jsonl, b.jsonl]", 1},
        {"tokenizer=other", 1},
        {"data.seq_len=511", 1},
        {"optimizer.lr=0.00005", 0},
    };
    struct run_config old, now;
    accept(LEAST, NULL, 0, &old);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct error_list errors = {0};
        accept(LEAST, &cases[i].change, 1, &now);
        int64_t n = run_config_difference(&old, &now, NULL, 0, &errors);
        if (n != cases[i].refused || n != errors.count)
            fail_msg("%s refuses %lld keys, not %d", cases[i].change, (long long)n, cases[i].refused);
        error_list_free(&errors);
        run_config_free(&now);
    }
    const char *change[] = {"optimizer.lr=1e-3", "seed=7"}, *allow[] = {"optimizer", "seed", "seeed"};
    struct error_list errors = {0};
    char text[1024];
    accept(LEAST, change, 2, &now);
    assert_int_equal(run_config_difference(&old, &now, allow, 2, &errors), 0);
    assert_int_equal(run_config_difference(&old, &now, allow, 1, &errors), 1);
    error_format(&errors.items[0], text, sizeof text);
    assert_string_equal(text, "seed was 42 when the run began, and is 7 now; set it back, or allow it with "
                              "--allow-change seed");
    assert_int_equal(run_config_difference(&old, &now, allow, 3, &errors), 1);
    error_format(&errors.items[1], text, sizeof text);
    assert_string_equal(text, "command line: --allow-change seeed: unknown key; did you mean seed?");
    error_list_free(&errors);
    run_config_free(&now);
    run_config_free(&old);
}

static void help_has_every_key(void **state)
{
    (void)state;
    struct strbuf help = {0}, page = {0};
    run_config_help(&help);
    run_config_markdown(&page);
    assert_false(help.failed || page.failed);
    for (int i = 0; i < SCHEMA_KEYS; i++) {
        char entry[80];
        assert_non_null(schema_keys[i].name);
        assert_true(strlen(schema_keys[i].help) > 5);
        assert_int_equal(schema_find(schema_keys[i].name), i); /* no name twice */
        snprintf(entry, sizeof entry, "\n  %s (", schema_keys[i].name);
        assert_non_null(strstr(help.data, entry));
        snprintf(entry, sizeof entry, "\n| `%s` | ", schema_keys[i].name);
        assert_non_null(strstr(page.data, entry));
    }
    assert_non_null(strstr(help.data, "  optimizer.lr (5e-5): number\n      highest learning rate\n"));
    assert_non_null(strstr(page.data, "| `data.bad_lines` | error | error \\| skip | "));
    strbuf_free(&help);
    strbuf_free(&page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_and_read_again),
        cmocka_unit_test(written_text),
        cmocka_unit_test(differences),
        cmocka_unit_test(help_has_every_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
