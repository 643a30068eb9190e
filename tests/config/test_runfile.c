/* The run file: defaults, values, overrides, every kind of mistake with its exact message. */
#include "config/small_runfile.h"

#include "base/file.h"
#include "config/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* All mistakes, in order, as they are shown, each followed by a newline. */
static void refuse(const char *text, const char *const *overrides, int64_t n, const char *want)
{
    struct error_list errors = {0};
    struct run_config config;
    char got[16384], line[2048];
    size_t used = 0;
    if (parse(text, overrides, n, &config, &errors) == 0)
        fail_msg("accepted: %s", text);
    assert_null(config.output); /* zeroed */
    got[0] = '\0';
    for (int64_t i = 0; i < errors.count; i++) {
        assert_int_equal(errors.items[i].kind, ERROR_INPUT);
        error_format(&errors.items[i], line, sizeof line);
        used += (size_t)snprintf(got + used, sizeof got - used, "%s\n", line);
        assert_true(used < sizeof got);
    }
    assert_string_equal(got, want);
    error_list_free(&errors);
}

static void refuse_with(const char *override, const char *want)
{
    refuse(LEAST, &override, 1, want);
}

static void defaults(void **state)
{
    (void)state;
    struct run_config c;
    accept(LEAST, NULL, 0, &c);
    assert_string_equal(c.output, "runs/demo");
    assert_int_equal(c.seed, 42);
    assert_string_equal(c.model.from, "base");
    assert_null(c.model.config);
    assert_null(c.model.config_inline);
    assert_string_equal(c.tokenizer, "base");
    assert_int_equal(c.data.train.count, 1);
    assert_string_equal(c.data.train.items[0], "a.jsonl");
    assert_int_equal(c.data.eval.count, 0);
    assert_string_equal(c.data.text, "text");
    assert_int_equal(c.data.seq_len, 512);
    assert_true(c.data.pack && c.data.add_eos && c.data.shuffle && !c.data.special_in_text);
    assert_int_equal(c.data.add_bos, RUN_ADD_BOS_AUTO);
    assert_int_equal(c.data.bad_lines, DATA_BAD_LINES_ERROR);
    assert_string_equal(c.data.cache, "runs/token-cache");
    assert_int_equal(c.train.steps, 1000);
    assert_true(c.train.epochs == 0);
    assert_int_equal(c.train.global_batch, 12);
    assert_int_equal(c.train.micro_batch, 4);
    assert_int_equal(c.train.dtype, RUN_DTYPE_BF16);
    assert_int_equal(run_config_train_dtype(&c), DTYPE_BF16);
    assert_int_equal(run_config_checkpoint_dtype(&c), DTYPE_BF16);
    assert_int_equal(c.train.recompute, RUN_RECOMPUTE_NONE);
    assert_int_equal(c.train.lanes, 0);
    assert_int_equal(c.optimizer.name, RUN_OPTIMIZER_ADAMW);
    assert_true(c.optimizer.lr == 5e-5 && c.optimizer.betas[0] == 0.9 && c.optimizer.betas[1] == 0.95);
    assert_true(c.optimizer.eps == 1e-8 && c.optimizer.weight_decay == 0.1 && c.optimizer.clip == 1.0);
    assert_false(c.optimizer.decay_all);
    assert_int_equal(c.schedule.name, RUN_SCHEDULE_LINEAR);
    assert_int_equal(c.schedule.warmup_steps, 0);
    assert_true(c.schedule.min_lr == 0 && !c.schedule.hf_schedule);
    assert_int_equal(c.parallel.zero, 3);
    assert_int_equal(c.parallel.threads, 0);
    assert_int_equal(c.parallel.transport, COMM_AUTO);
    assert_true(c.parallel.watchdog == COMM_WATCHDOG_SECONDS);
    assert_true(c.parallel.overlap);
    assert_string_equal(c.backend.name, "auto");
    assert_string_equal(c.backend.isa, "auto");
    assert_string_equal(c.backend.products, "auto");
    assert_int_equal(c.checkpoint.every, 500);
    assert_true(c.checkpoint.minutes == 0);
    assert_int_equal(c.checkpoint.keep, 3);
    assert_int_equal(c.checkpoint.dtype, RUN_DTYPE_AUTO);
    assert_int_equal(c.eval.every, 500);
    assert_true(c.eval.at_start);
    assert_int_equal(c.log.every, 1);
    assert_true(c.log.tensorboard);
    run_config_free(&c);
    run_config_free(&c); /* again is safe */
}

static void all_values(void **state)
{
    (void)state;
    struct run_config c;
    accept(everything, NULL, 0, &c);
    assert_string_equal(c.output, "/data/runs/é #1");
    assert_int_equal(c.seed, 9007199254740993);
    assert_string_equal(c.tokenizer, "2024");
    assert_string_equal(c.model.config_place, "run.yaml:5: model.config");
    json_t *m = c.model.config_inline;
    assert_int_equal(json_object_size(m), 8);
    assert_int_equal(json_integer_value(json_object_get(m, "hidden_size")), 60);
    assert_true(json_real_value(json_object_get(m, "rms_norm_eps")) == 1e-5);
    assert_true(json_is_true(json_object_get(m, "tie_word_embeddings")));
    assert_true(json_is_null(json_object_get(m, "rope_scaling")));
    assert_int_equal(json_array_size(json_object_get(m, "eos_token_id")), 2);
    assert_string_equal(json_string_value(json_object_get(m, "name")), "a\"b\n");
    assert_int_equal(c.data.train.count, 3);
    assert_string_equal(c.data.train.items[1], "*.jsonl.zst");
    assert_string_equal(c.data.eval.items[0], "c.jsonl");
    assert_int_equal(c.data.seq_len, 1000);
    assert_true(!c.data.pack && !c.data.add_eos && !c.data.shuffle && c.data.special_in_text);
    assert_int_equal(c.data.add_bos, RUN_ADD_BOS_TRUE);
    assert_int_equal(c.data.bad_lines, DATA_BAD_LINES_SKIP);
    assert_string_equal(c.data.cache, "/var/cache/tokens");
    assert_true(c.train.steps == 0 && c.train.epochs == 2.5);
    assert_int_equal(run_config_train_dtype(&c), DTYPE_F32);
    assert_int_equal(run_config_checkpoint_dtype(&c), DTYPE_BF16);
    assert_int_equal(c.train.recompute, RUN_RECOMPUTE_FULL);
    assert_true(c.optimizer.betas[0] == 0 && c.optimizer.betas[1] == 0.999 && c.optimizer.clip == 0);
    assert_int_equal(c.schedule.name, RUN_SCHEDULE_COSINE);
    assert_true(c.schedule.min_lr == 3.3e-7 && c.schedule.hf_schedule && c.schedule.warmup_steps == 7);
    assert_int_equal(c.parallel.zero, 0);
    assert_int_equal(c.parallel.transport, COMM_MPI);
    assert_true(!c.parallel.overlap && c.parallel.watchdog == 7.5);
    assert_string_equal(c.backend.name, "guarded");
    assert_string_equal(c.backend.isa, "avx2");
    assert_string_equal(c.backend.products, "onednn");
    assert_true(c.checkpoint.every == 0 && c.checkpoint.minutes == 12.5 && c.checkpoint.keep == 0);
    assert_true(c.eval.every == 3 && !c.eval.at_start && c.log.every == 10 && !c.log.tensorboard);
    run_config_free(&c);
}

static void json_is_yaml(void **state)
{
    (void)state;
    struct run_config c;
    accept("{\"output\": \"o\", \"model\": {\"config\": \"config.json\"}, \"tokenizer\": \"t\",\n"
           " \"data\": {\"train\": [\"a.txt\"], \"seq_len\": 8},\n"
           " \"train\": {\"epochs\": 1, \"global_batch\": 5e0, \"micro_batch\": 1}}",
           NULL, 0, &c);
    assert_string_equal(c.model.config, "config.json");
    assert_string_equal(c.data.cache, "token-cache");
    assert_int_equal(c.train.global_batch, 5);
    assert_true(c.train.epochs == 1);
    run_config_free(&c);
}

static void caches_lie_beside_the_output(void **state)
{
    (void)state;
    static const char *const outputs[][2] = {
        {"output=run", "token-cache"},
        {"output=a/b/run/", "a/b/token-cache"},
        {"output=/run", "/token-cache"},
        {"output=../x//", "../token-cache"},
    };
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i++) {
        struct run_config c;
        accept(LEAST, &outputs[i][0], 1, &c);
        assert_string_equal(c.data.cache, outputs[i][1]);
        run_config_free(&c);
    }
}

static void overrides(void **state)
{
    (void)state;
    struct run_config c;
    const char *some[] = {"train.steps=null",
                          "train.epochs=0.5",
                          "optimizer={lr: 1e-3, betas: [0.8, 0.9]}",
                          "optimizer.lr=2e-3",
                          "data.train=[x.jsonl, 'y z.jsonl']",
                          "data.eval=*.jsonl",
                          "output=2024",
                          "data.text=a: b # c",
                          "parallel.zero=1",
                          "train.dtype=fp32",
                          "data.add_bos=false",
                          "tokenizer=tok=1"};
    accept(LEAST, some, sizeof some / sizeof some[0], &c);
    assert_int_equal(c.train.steps, 0);
    assert_true(c.train.epochs == 0.5 && c.optimizer.lr == 2e-3 && c.optimizer.betas[1] == 0.9);
    assert_true(c.optimizer.eps == 1e-8);
    assert_int_equal(c.data.train.count, 2);
    assert_string_equal(c.data.train.items[1], "y z.jsonl");
    assert_string_equal(c.data.eval.items[0], "*.jsonl");
    assert_string_equal(c.output, "2024");
    assert_string_equal(c.data.text, "a: b # c");
    assert_string_equal(c.tokenizer, "tok=1");
    assert_int_equal(c.parallel.zero, 1);
    assert_int_equal(c.train.dtype, RUN_DTYPE_FP32);
    assert_int_equal(c.data.add_bos, RUN_ADD_BOS_FALSE);
    run_config_free(&c);

    /* An override stands in for what is wrong in the file, and a null for the default. */
    const char *mend[] = {"optimizer.lr=1", "optimizer.clip=null", "schedule=null"};
    accept(LEAST "optimizer: {lr: fast, clip: 3}\nschedule: {name: cosine, warmup_steps: -1}\n", mend, 3, &c);
    assert_true(c.optimizer.lr == 1 && c.optimizer.clip == 1.0);
    assert_int_equal(c.schedule.name, RUN_SCHEDULE_LINEAR);
    run_config_free(&c);

    const char *model[] = {"model={config: {model_type: llama}, from: null}",
                           "tokenizer=t",
                           "model.config.num_hidden_layers=2",
                           "model.config.rope_scaling={type: linear, factor: 2}",
                           "model.config.rope_scaling.factor=4",
                           "model.config.model_type=null"};
    accept(LEAST, model, 6, &c);
    assert_int_equal(json_object_size(c.model.config_inline), 2);
    assert_int_equal(json_integer_value(json_object_get(c.model.config_inline, "num_hidden_layers")), 2);
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(c.model.config_inline, "rope_scaling"), "factor")),
        4);
    assert_string_equal(c.model.config_place, "command line: model.config");
    run_config_free(&c);
}

static void wrong_overrides(void **state)
{
    (void)state;
    refuse_with("train.steps",
                "command line: \"train.steps\" is not of the form key=value; write key=value, for "
                "example train.steps=100\n");
    refuse_with("=5", "command line: \"=5\" is not of the form key=value; write key=value, for example "
                      "train.steps=100\n");
    refuse_with("train.steps=", "command line: train.steps: no value behind the =; key=null unsets a key\n");
    refuse_with("train.step=5", "command line: train.step: unknown key; did you mean train.steps?\n");
    refuse_with("train.steps=many",
                "command line: train.steps: expected a whole number, found text \"many\"\n");
    refuse_with("train.steps=1.5",
                "command line: train.steps: expected a whole number, found the number 1.5\n");
    refuse_with("output=null",
                "run.yaml: output is missing; add it: directory of this run: the resolved run file, "
                "metrics and checkpoints\n");
    refuse_with(
        "model.config.hidden_size=64",
        "command line: model.config.hidden_size: model.config is no map; give model.config as a map\n");
    refuse_with("train=5", "command line: train: expected a map of keys, found the number 5\n");
    refuse_with("train.epochs=3",
                "run.yaml: train.steps and train.epochs are both given; remove one of them (on "
                "the command line: key=null)\n");
    const char *two[] = {"optimizer.clip=x", "seed=-1"};
    refuse(LEAST, two, 2,
           "command line: optimizer.clip: expected a number, found text \"x\"\n"
           "command line: seed: -1 is too small, it must be at least 0\n");
}

static void missing_keys(void **state)
{
    (void)state;
    refuse(
        "seed: 1\n", NULL, 0,
        "run.yaml: output is missing; add it: directory of this run: the resolved run file, metrics and "
        "checkpoints\n"
        "run.yaml: data.train is missing; add it: files and globs: JSONL (one object a line) or .txt (one "
        "document a file), also .gz, .zst and .xz\n"
        "run.yaml: data.seq_len is missing; add it: positions of one row\n"
        "run.yaml: train.global_batch is missing; add it: rows of one optimizer step, over all ranks\n"
        "run.yaml: train.micro_batch is missing; add it: rows of one forward and backward pass on one rank\n"
        "run.yaml: one of model.from and model.config is missing; add model: {from: DIR} to start from those "
        "weights, or model: {config: config.json} to start from random ones\n"
        "run.yaml: one of train.steps and train.epochs is missing; add train: {steps: N}, or train: {epochs: "
        "N}\n");
    refuse_with("data.train=[]",
                "run.yaml: data.train is missing; add it: files and globs: JSONL (one object a "
                "line) or .txt (one document a file), also .gz, .zst and .xz\n");
    const char *no_tokenizer[] = {"model={from: null, config: c.json}"};
    refuse(LEAST, no_tokenizer, 1,
           "run.yaml: tokenizer is missing, and model.config brings none; add tokenizer: DIR, a directory "
           "with a "
           "tokenizer.json\n");
}

static void many_mistakes_at_once(void **state)
{
    (void)state;
    refuse(
        "output: [a]\n"
        "seed: 1.5\n"
        "modle: {from: base}\n"
        "model: {from: base, config: c.json}\n"
        "data:\n"
        "  train: {a: b}\n"
        "  seq_len: 0\n"
        "  pack: yes\n"
        "  add_bos: maybe\n"
        "train: {steps: 10, epochs: 1, global_batch: 2, micro_batch: 4, learning_rate: 1, lanes: 2}\n"
        "optimizer: {lr: fast, betas: [0.9], eps: 0, decay_al: true}\n"
        "schedule: {warmup_steps: 11, name: cosin}\n"
        "paralel: 5\n",
        NULL, 0,
        "run.yaml:1:9: output: expected text, found a list\n"
        "run.yaml:2:7: seed: expected a whole number, found the number 1.5\n"
        "run.yaml:3:1: modle: unknown key; did you mean model?\n"
        "run.yaml:6:10: data.train: expected text or a list of texts, found a map\n"
        "run.yaml:7:12: data.seq_len: 0 is too small, it must be at least 1\n"
        "run.yaml:8:9: data.pack: expected true or false, found text \"yes\"; YAML 1.2 knows only true and "
        "false\n"
        "run.yaml:9:12: data.add_bos: expected one of auto, true, false, found text \"maybe\"\n"
        "run.yaml:10:64: train.learning_rate: unknown key; did you mean optimizer.lr?\n"
        "run.yaml:11:17: optimizer.lr: expected a number, found text \"fast\"\n"
        "run.yaml:11:30: optimizer.betas: expected a list of two numbers, found 1 of them\n"
        "run.yaml:11:42: optimizer.eps: 0 is too small, it must be above 0\n"
        "run.yaml:11:45: optimizer.decay_al: unknown key; did you mean optimizer.decay_all?\n"
        "run.yaml:12:36: schedule.name: expected one of constant, linear, cosine, wsd, multistep, found text "
        "\"cosin\"; did you mean cosine?\n"
        "run.yaml:13:1: paralel: unknown key; did you mean parallel?\n"
        "run.yaml: model.from and model.config are both given; remove one of them (on the command line: "
        "key=null)\n"
        "run.yaml: train.steps and train.epochs are both given; remove one of them (on the command line: "
        "key=null)\n"
        "run.yaml: train.micro_batch 4 is larger than train.global_batch 2; lower micro_batch, or raise "
        "global_batch\n"
        "run.yaml: schedule.warmup_steps 11 is more than train.steps 10; lower warmup_steps, or raise steps\n"
        "run.yaml: train.lanes: 2 lanes are not available in this version; set it to 0\n");
}

static void contradictions(void **state)
{
    (void)state;
    struct run_config c;
    refuse_with("train.micro_batch=13",
                "run.yaml: train.micro_batch 13 is larger than train.global_batch 12; lower "
                "micro_batch, or raise global_batch\n");
    refuse_with("schedule.min_lr=1e-3",
                "run.yaml: schedule.min_lr 0.001 is above optimizer.lr 5e-05; lower min_lr, or raise lr\n");
    refuse_with("schedule.warmup_steps=1001",
                "run.yaml: schedule.warmup_steps 1001 is more than train.steps 1000; "
                "lower warmup_steps, or raise steps\n");
    const char *wide[] = {"data.seq_len=16777216", "train.micro_batch=128", "train.global_batch=128"};
    refuse(
        LEAST, wide, 3,
        "run.yaml: train.micro_batch 128 times data.seq_len 16777216 are more positions than can be counted; "
        "lower one of them\n");
    wide[1] = "train.micro_batch=127";
    accept(LEAST, wide, 3, &c);
    run_config_free(&c);
    const char *fine[] = {"schedule.warmup_steps=1000", "train.micro_batch=12", "schedule.min_lr=5e-5"};
    accept(LEAST, fine, 3, &c);
    run_config_free(&c);
}

static void bounds(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"parallel.zero=4", "4 is too large, it must be at most 3"},
        {"parallel.zero=-1", "-1 is too small, it must be at least 0"},
        {"parallel.threads=5000", "5000 is too large, it must be at most 4096"},
        {"parallel.watchdog=0", "0 is too small, it must be at least 0.1"},
        {"parallel.watchdog=-5", "-5 is too small, it must be at least 0.1"},
        {"parallel.watchdog=.nan", "expected a finite number, found the number .nan"},
        {"parallel.watchdog=.inf", "expected a finite number, found the number .inf"},
        {"parallel.watchdog=a minute", "expected a number, found text \"a minute\""},
        {"optimizer.betas=[0.9, 1]", "1 is too large, it must be below 1"},
        {"optimizer.betas=[-0.1, 0.9]", "-0.1 is too small, it must be at least 0"},
        {"optimizer.lr=-1e-5", "-1e-05 is too small, it must be at least 0"},
        {"optimizer.lr=.inf", "expected a finite number, found the number .inf"},
        {"optimizer.clip=-1", "-1 is too small, it must be at least 0"},
        {"train.steps=0", "0 is too small, it must be at least 1"},
        {"train.steps=1e300",
         "the number 1e300 is too large to be whole for sure; write it without fraction and "
         "exponent"},
        {"train.global_batch=3e9", "3000000000 is too large, it must be at most 2147483647"},
        {"train.micro_batch=99999999999999999999", "the number 99999999999999999999 is too large"},
        {"log.every=0", "0 is too small, it must be at least 1"},
        {"checkpoint.keep=-1", "-1 is too small, it must be at least 0"},
        {"log.tensorboard=1", "expected true or false, found the number 1"},
        {"data.train=[a, 5]", "expected text, found the number 5; put it in quotes if it is meant as text"},
        {"data.train=[a, '']", "it is empty"},
        {"data.text=''", "it is empty"},
        {"data.text=[a]", "expected text, found a list"},
        {"model.config=[a]", "expected the path of a config.json or a map of its keys, found a list"},
        {"backend.name=gpu",
         "expected one of auto, cpu, reference, guarded, found text \"gpu\"; did you mean cpu?"},
        {"schedule.decay=root", "expected one of linear, cosine, sqrt, found text \"root\""},
        {"schedule.decay_steps=0", "0 is too small, it must be at least 1"},
        {"schedule.at=[]", "expected 1 to 16 numbers, found 0 of them"},
        {"schedule.at=[.1,.1,.1,.1,.1,.1,.1,.1,.1,.1,.1,.1,.1,.1,.1,.1,.1]",
         "expected 1 to 16 numbers, found 17 of them"},
        {"schedule.at=[0.5, 1]", "1 is too large, it must be below 1"},
        {"schedule.at=0", "0 is too small, it must be above 0"},
        {"schedule.at={a: 1}", "expected a number or a list of numbers, found a map"},
        {"schedule.factor=[0.5, 1.5]", "1.5 is too large, it must be at most 1"},
        {"schedule.factor=[0.5, 0]", "0 is too small, it must be above 0"},
        {"schedule.factor=[x]", "expected a number, found text \"x\""},
        {"parallel.transport=nccl", "expected one of auto, shm, mpi, found text \"nccl\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct error_list errors = {0};
        struct run_config c;
        char want[256], got[1024];
        assert_int_equal(parse(LEAST, &cases[i][0], 1, &c, &errors), -1);
        int key = (int)(strchr(cases[i][0], '=') - cases[i][0]);
        snprintf(want, sizeof want, "command line: %.*s: %s", key, cases[i][0], cases[i][1]);
        error_format(&errors.items[0], got, sizeof got);
        assert_string_equal(got, want);
        error_list_free(&errors);
    }
}

static void not_available_yet(void **state)
{
    (void)state;
    refuse_with(
        "train.dtype=fp16",
        "command line: train.dtype: fp16 is not available in this version; this version has fp32, bf16\n");
    refuse_with("train.lanes=4",
                "run.yaml: train.lanes: 4 lanes are not available in this version; set it to 0\n");
}

static void schedules(void **state)
{
    (void)state;
    static const char *const cases[][5] = {
        {"wsd needs schedule.decay_steps; add how many steps before the end the rate begins to fall, say a "
         "tenth of the "
         "run",
         "schedule.name=wsd"},
        {"multistep needs schedule.at and schedule.factor; add for example at: [0.8, 0.9] and factor: "
         "[0.316, 0.1]",
         "schedule.name=multistep", "schedule.at=0.5"},
        {"schedule.decay_steps belongs to schedule.name wsd alone; leave it out, or choose that schedule",
         "schedule.decay_steps=10"},
        {"schedule.factor belongs to schedule.name multistep alone; leave it out, or choose that schedule",
         "schedule.factor=0.1"},
        {"schedule.warmup_steps 901 and schedule.decay_steps 100 together are more than train.steps 1000; "
         "lower one of "
         "them, or raise steps",
         "schedule.name=wsd", "schedule.decay_steps=100", "schedule.warmup_steps=901"},
        {"schedule.at has 2 numbers, schedule.factor 1; give one factor for each share",
         "schedule.name=multistep", "schedule.at=[0.5, 0.6]", "schedule.factor=0.1"},
        {"schedule.at: 0.5 does not lie above 0.5; put the shares in ascending order",
         "schedule.name=multistep", "schedule.at=[0.5, 0.5]", "schedule.factor=[0.2, 0.1]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char want[256];
        int64_t n = 1;
        while (cases[i][n + 1])
            n++;
        bool of_name = strncmp(cases[i][0], "schedule.", 9) != 0;
        snprintf(want, sizeof want, "run.yaml: %s%s\n", of_name ? "schedule.name " : "", cases[i][0]);
        refuse(LEAST, &cases[i][1], n, want);
    }
    const char *wsd[] = {"schedule.name=wsd", "schedule.decay_steps=100", "schedule.warmup_steps=900"};
    struct run_config c;
    accept(LEAST, wsd, 3, &c);
    run_config_free(&c);
}

static void nearest_names(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"seq_len", "data.seq_len"},
        {"seqlen", "data.seq_len"},
        {"data.seq_length", "data.seq_len"},
        {"optimiser", "optimizer"},
        {"optimizer.wieght_decay", "optimizer.weight_decay"},
        {"train.warmup_steps", "schedule.warmup_steps"},
        {"per_device_train_batch_size", "train.micro_batch"},
        {"Output", "output"},
        {"sed", "seed"},
        {"log.evry", "log.every"},
        {"train.batch_size", "train.global_batch"},
        {"tokeniser", "tokenizer"},
        {"check_point", "checkpoint"},
        {"backend.threads", "parallel.threads"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *near = schema_nearest(cases[i][0]);
        if (near == NULL || strcmp(near, cases[i][1]) != 0)
            fail_msg("%s gives %s, not %s", cases[i][0], near != NULL ? near : "nothing", cases[i][1]);
    }
    assert_null(schema_nearest("quantization"));
    assert_null(schema_nearest(
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"));
    assert_null(schema_nearest("x.y.z.unheard_of"));
}

static void broken_files(void **state)
{
    (void)state;
    struct error_list errors = {0};
    struct run_config c;
    assert_int_equal(parse("a: [\n", NULL, 0, &c, &errors), -1);
    assert_true(errors.count >= 1);
    error_list_free(&errors);
    errors = (struct error_list){0};
    assert_int_equal(parse("output: a\noutput: b\n", NULL, 0, &c, &errors), -1);
    assert_true(errors.count >= 1);
    error_list_free(&errors);
    refuse("[1, 2]\n",
           (const char *const[]){"output=o", "model.from=m", "data.train=t", "data.seq_len=1",
                                 "train={steps: 1, global_batch: 1, micro_batch: 1}"},
           5,
           "run.yaml:1:1: expected a map of keys, found a list; tercet train --help-config lists all keys\n");
    refuse(LEAST "train.steps: 5\n", NULL, 0,
           "run.yaml:5:1: train.steps: unknown key; write steps: within train:\n");
    errors = (struct error_list){0};
    assert_int_equal(run_config_load("/nonexistent/run.yaml", NULL, 0, &c, &errors), -1);
    assert_int_equal(errors.count, 1);
    assert_int_equal(errors.items[0].kind, ERROR_INPUT);
    error_list_free(&errors);
}

/* An empty file is a map of nothing: all can come from the command line. */
static void empty_file(void **state)
{
    (void)state;
    struct run_config c;
    const char *all[] = {"output=o", "model.from=m", "data={train: t, seq_len: 1}",
                         "train={steps: 1, global_batch: 1, micro_batch: 1}"};
    accept("", all, 4, &c);
    assert_int_equal(c.train.steps, 1);
    run_config_free(&c);
    accept(LEAST "optimizer:\nschedule: null\n", NULL, 0, &c);
    run_config_free(&c);
}

static void from_a_file(void **state)
{
    (void)state;
    char path[] = "/tmp/tercet-config-XXXXXX";
    struct run_config c;
    struct error_list errors = {0};
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, LEAST, strlen(LEAST)), (ssize_t)strlen(LEAST));
    close(fd);
    const char *bad = "train.step=3", *good = "train.steps=3";
    assert_int_equal(run_config_load(path, &good, 1, &c, &errors), 0);
    assert_int_equal(c.train.steps, 3);
    run_config_free(&c);
    assert_int_equal(run_config_load(path, &bad, 1, &c, &errors), -1);
    assert_int_equal(errors.count, 1);
    error_list_free(&errors);
    unlink(path);
}

/* Reading must not depend on anything but its input, and must survive every cut of it. */
static void cut_anywhere(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof everything; n += 3) {
        struct run_config c;
        struct error_list errors = {0};
        if (run_config_parse("run.yaml", everything, n, NULL, 0, &c, &errors) == 0)
            run_config_free(&c);
        else
            assert_true(errors.count > 0);
        error_list_free(&errors);
    }
}

/* ---- key by key ---- */

static void keys_one_by_one(void **state)
{
    (void)state;
    struct run_key key;
    struct strbuf help = {0}, text = {0};
    int count = 0, sections = 0;
    run_config_help(&help);
    for (; run_config_key(count, &key); count++) {
        sections += key.section != NULL;
        assert_string_equal(key.name, schema_keys[count].name);
        /* The help in this form says the same. */
        strbuf_clear(&text);
        strbuf_printf(&text, "  %s (", key.name);
        run_config_key_default(count, &text);
        strbuf_puts(&text, "): ");
        run_config_key_takes(count, &text);
        strbuf_printf(&text, "\n      %s\n", key.help);
        assert_non_null(strstr(help.data, text.data));
    }
    assert_int_equal(count, SCHEMA_KEYS);
    assert_int_equal(sections, 11); /* ten, and the keys without one */
    assert_false(run_config_key(-1, &key));
    strbuf_free(&help);
    strbuf_free(&text);
}

static void words_of_keys(void **state)
{
    (void)state;
    struct run_key key;
    int dtype = schema_find("train.dtype"), pack = schema_find("data.pack"), lr = schema_find("optimizer.lr");
    assert_string_equal(run_config_key_word(dtype, 0), "fp32");
    assert_string_equal(run_config_key_word(dtype, 1), "bf16");
    assert_null(run_config_key_word(dtype, 2)); /* fp16 is for later */
    assert_string_equal(run_config_key_word(pack, 0), "true");
    assert_string_equal(run_config_key_word(pack, 1), "false");
    assert_null(run_config_key_word(pack, 2));
    assert_null(run_config_key_word(lr, 0));
    assert_true(run_config_key(schema_find("data.train"), &key) && key.path);
    assert_true(run_config_key(schema_find("data.text"), &key) && !key.path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),          cmocka_unit_test(all_values),
        cmocka_unit_test(json_is_yaml),      cmocka_unit_test(caches_lie_beside_the_output),
        cmocka_unit_test(overrides),         cmocka_unit_test(wrong_overrides),
        cmocka_unit_test(missing_keys),      cmocka_unit_test(many_mistakes_at_once),
        cmocka_unit_test(contradictions),    cmocka_unit_test(bounds),
        cmocka_unit_test(not_available_yet), cmocka_unit_test(schedules),
        cmocka_unit_test(nearest_names),     cmocka_unit_test(broken_files),
        cmocka_unit_test(empty_file),        cmocka_unit_test(from_a_file),
        cmocka_unit_test(cut_anywhere),      cmocka_unit_test(keys_one_by_one),
        cmocka_unit_test(words_of_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
