/* tercet train and tercet plan: one run file, overrides, ranks. */
#include "cli/cli.h"
#include "cli/run_options.h"
#include "formats/json.h"
#include "plan/machine.h"
#include "plan/measure.h"
#include "plan/peaks.h"
#include "plan/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct train_arguments {
    const char *file;
    const char **overrides, **allow;
    int64_t override_count, allow_count;
    int ranks;
    int64_t profile_steps; /* 0: none */
    bool resume, overwrite, dry_run, json, help_config, help_markdown, plan;
    const char *resume_path;
    struct cli *cli;
    struct run_config config;
    struct strbuf yaml;
    struct train_options options;
};

enum {
    OPTION_RESUME = CLI_OWN,
    OPTION_OVERWRITE,
    OPTION_DRY_RUN,
    OPTION_ALLOW,
    OPTION_PROFILE,
    OPTION_HELP_CONFIG
};
enum { PROFILED_STEPS = 3 };

static const struct argp_option train_table[] = {
    {"ranks", 'n', "RANKS", 0,
     "Start so many ranks on this machine (an MPI launcher's ranks are joined without it)", 0},
    {"profile", OPTION_PROFILE, "STEPS", OPTION_ARG_OPTIONAL,
     "Time so many steps op by op (3): a table, and OUTPUT/trace.json for Perfetto", 0},
    {"resume", OPTION_RESUME, "CHECKPOINT", OPTION_ARG_OPTIONAL,
     "Go on from this checkpoint, or from the newest one; starts where there is none", 0},
    {"overwrite", OPTION_OVERWRITE, NULL, 0, "Remove the run that the output directory holds", 0},
    {"allow-change", OPTION_ALLOW, "KEY", 0, "With --resume: this key of the run file may differ from before",
     0},
    {"dry-run", OPTION_DRY_RUN, NULL, 0, "Check everything, print the plan and stop", 0},
    {"help-config", OPTION_HELP_CONFIG, "text|markdown", OPTION_ARG_OPTIONAL,
     "Print every key of the run file and stop, as text or as in docs/run-file.md", 0},
    {"json", CLI_JSON, NULL, 0, "Print one JSON object at the end", 0},
    {0},
};
static const struct argp_option plan_table[] = {
    {"ranks", 'n', "RANKS", 0, "Plan for so many ranks on this machine", 0},
    {"help-config", OPTION_HELP_CONFIG, "text|markdown", OPTION_ARG_OPTIONAL,
     "Print every key of the run file and stop, as text or as in docs/run-file.md", 0},
    {"json", CLI_JSON, NULL, 0, "Print one JSON object", 0},
    {0},
};

static void argument(struct train_arguments *a, const char *text, struct argp_state *state)
{
    if (!a->file)
        a->file = text;
    else if (strchr(text, '='))
        a->overrides[a->override_count++] = text;
    else
        argp_error(state, "'%s' is neither the run file (that is '%s') nor key=value", text, a->file);
}

static error_t parse(int key, char *text, struct argp_state *state)
{
    struct train_arguments *a = state->input;
    switch (key) {
    case 'n':
        a->ranks = (int)cli_parse_int(state, "-n", text, 1, COMM_MAX_LOCAL_RANKS);
        return 0;
    case OPTION_RESUME:
        a->resume = true;
        a->resume_path = text;
        return 0;
    case OPTION_PROFILE:
        a->profile_steps = text ? cli_parse_int(state, "--profile", text, 1, 1000) : PROFILED_STEPS;
        return 0;
    case OPTION_OVERWRITE:
        a->overwrite = true;
        return 0;
    case OPTION_ALLOW:
        a->allow[a->allow_count++] = text;
        return 0;
    case OPTION_DRY_RUN:
        a->dry_run = true;
        return 0;
    case OPTION_HELP_CONFIG:
        a->help_config = true;
        a->help_markdown = text && strcmp(text, "markdown") == 0;
        if (text && !a->help_markdown && strcmp(text, "text") != 0)
            argp_error(state, "--help-config=%s: expected text or markdown", text);
        return 0;
    case CLI_JSON:
        a->json = true;
        return 0;
    case ARGP_KEY_ARG:
        argument(a, text, state);
        return 0;
    case ARGP_KEY_END:
        if (!a->file && !a->help_config)
            argp_error(state, "give a run file");
        if (a->resume_path && a->overwrite)
            argp_error(state, "--resume=%s and --overwrite contradict each other", a->resume_path);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp train_argp = {
    train_table,
    parse,
    "RUN.yaml [key=value …]",
    "Example:\n  tercet train run.yaml -n 2 train.steps=100\n\n"
    "Trains a model: JSON Lines text in, a Hugging Face model directory out.\v"
    "key=value overrides a key of the run file by its dotted path; key=null unsets it. SIGTERM, SIGINT or an "
    "empty file OUTPUT/stop finish the step, save and stop; --resume goes on from there, with any number of "
    "ranks.",
    NULL,
    NULL,
    NULL};
static const struct argp plan_argp = {plan_table,
                                      parse,
                                      "RUN.yaml [key=value …]",
                                      "Example:\n  tercet plan run.yaml -n 2\n\nPrints the memory that each "
                                      "rank of a run needs, item by item.\v"
                                      "Nothing of it is allocated, and no text is read. Where it does not "
                                      "fit this machine, the settings that would.",
                                      NULL,
                                      NULL,
                                      NULL};

/* All that changed, in one sentence: a run that goes on must be the same run. */
static int compare_run(void *context, const char *old_yaml, struct error *err)
{
    const struct train_arguments *a = context;
    struct run_config old;
    struct error_list errors = {0};
    if (run_config_parse("the checkpoint's run.yaml", old_yaml, strlen(old_yaml), NULL, 0, &old, &errors) !=
        0) {
        if (err && errors.count > 0)
            *err = errors.items[0];
        error_list_free(&errors);
        return -1;
    }
    int64_t changed = run_config_difference(&old, &a->config, a->allow, a->allow_count, &errors);
    run_config_free(&old);
    if (changed == 0)
        return 0;
    struct strbuf all = {0};
    for (int64_t i = 0; i < errors.count; i++)
        strbuf_printf(&all, "%s%s%s%s", i > 0 ? "; " : "", errors.items[i].where,
                      errors.items[i].where[0] ? ": " : "", errors.items[i].what);
    error_set(err, ERROR_INPUT, a->file,
              "set them back, start a new output, or allow each with --allow-change KEY", "%s",
              all.data ? all.data : "keys differ from the checkpoint's");
    strbuf_free(&all);
    error_list_free(&errors);
    return -1;
}

static void say_plan(const struct train_arguments *a, const struct train_plan *plan)
{
    struct strbuf text = {0};
    plan_text(plan, &text);
    char *line = text.data;
    for (char *end; line && (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        log_info(&a->cli->log, "%s", line);
    }
    strbuf_free(&text);
}

static int print_plan(const struct train_arguments *a, const struct train_plan *plan, struct error *err)
{
    struct strbuf text = {0};
    if (a->json)
        plan_json(plan, &text);
    else
        plan_text(plan, &text);
    return cli_put(&text, err);
}

static void profile_json(const struct train_profile *p, struct json_writer *w)
{
    json_write_object(w, "profile");
    json_write_int(w, "steps", p->steps);
    json_write_double(w, "seconds", p->seconds);
    json_write_double(w, "product_peak", p->peak > 0 ? p->peak : NAN);
    json_write_double(w, "bandwidth", p->bandwidth > 0 ? p->bandwidth : NAN);
    json_write_array(w, "ops");
    for (int i = 0; i < p->count; i++) {
        const struct profile_row *r = &p->rows[i];
        double limit = train_profile_limit(p, r);
        json_write_object(w, NULL);
        json_write_string(w, "name", r->name);
        json_write_int(w, "calls", r->calls);
        json_write_double(w, "seconds", r->seconds);
        json_write_double(w, "product_flops", r->cost.product_flops);
        json_write_double(w, "bytes", r->cost.bytes);
        json_write_double(w, "share_of_limit", limit > 0 ? limit : NAN);
        json_write_end(w);
    }
    json_write_end(w);
    json_write_end(w);
}

static void report_json(const struct train_report *r, struct strbuf *out)
{
    struct json_writer w;
    json_writer_start(&w, out, 0);
    json_write_object(&w, NULL);
    json_write_int(&w, "first_step", r->first_step);
    json_write_int(&w, "last_step", r->last_step);
    json_write_int(&w, "total_steps", r->total_steps);
    bool any = r->last_step > r->first_step; /* else there is no loss to tell: null */
    json_write_double(&w, "first_loss", any ? r->first_loss : NAN);
    json_write_double(&w, "last_loss", any ? r->last_loss : NAN);
    json_write_double(&w, "seconds", r->seconds);
    json_write_int(&w, "stop_signal", r->stop_signal);
    json_write_bool(&w, "complete", r->last_step == r->total_steps);
    json_write_string(&w, "checkpoint", r->checkpoint[0] ? r->checkpoint : NULL);
    if (r->profile.count > 0)
        profile_json(&r->profile, &w);
    json_write_end(&w);
}

static int say_report(const struct train_arguments *a, const struct train_report *r, struct error *err)
{
    char time[32];
    const struct log *log = &a->cli->log;
    if (r->first_step == r->total_steps)
        log_info(log, "nothing to do: all %lld steps are done", (long long)r->total_steps);
    else if (r->last_step > r->first_step)
        log_info(log, "steps %lld to %lld in %s, loss %.4f to %.4f; saved as %s",
                 (long long)r->first_step + 1, (long long)r->last_step, format_duration(r->seconds, time),
                 r->first_loss, r->last_loss, r->checkpoint);
    if (r->last_step == 0 && r->total_steps > 0)
        log_info(log, "stopped before the first step; start again with the same command and --resume");
    else if (r->last_step < r->total_steps)
        log_info(log, "stopped after step %lld of %lld; go on with the same command and --resume",
                 (long long)r->last_step, (long long)r->total_steps);
    if (!a->json)
        return 0;
    struct strbuf text = {0};
    report_json(r, &text);
    return cli_put(&text, err);
}

static int refuse_size(const struct train_plan *plan, struct error *err)
{
    char need[32], have[32];
    if (plan->advice[0] == '\0')
        return 0;
    return error_set(err, ERROR_INPUT, "memory", plan->advice,
                     "the run needs %s, this machine has %s available",
                     format_bytes(plan->memory_needed, need), format_bytes(plan->memory_available, have));
}

static int train_body(struct comm *comm, void *context, struct error *err)
{
    struct train_arguments *a = context;
    struct train_run *run;
    bool root = comm_rank(comm) == 0;
    if (train_prepare(&run, comm, &a->options, &a->cli->log, err) != 0)
        return (int)err->kind;
    const struct train_plan *plan = train_plan(run);
    int status = plan->stop_signal ? 128 + plan->stop_signal : 0;
    if (status != 0) {
        train_free(run);
        return status;
    }
    if (a->dry_run || a->plan) {
        if ((root && print_plan(a, plan, err) != 0) || cli_flush(err) != 0 ||
            (a->dry_run && refuse_size(plan, err) != 0))
            status = (int)err->kind;
        train_free(run);
        return status;
    }
    struct train_report report = {0};
    if (root)
        say_plan(a, plan);
    /* A rank's words are known to be said when it ends well. */
    if (refuse_size(plan, err) != 0 || train_execute(run, &report, err) != 0 ||
        (root && say_report(a, &report, err) != 0) || cli_flush(err) != 0)
        status = (int)err->kind;
    train_free(run);
    return status != 0 ? status : report.stop_signal ? 128 + report.stop_signal : 0;
}

/* What a profile measures bytes against. One process of a machine asks, before there are ranks. */
static int find_bandwidth(struct train_arguments *a, struct error *err)
{
    struct machine m;
    struct backend *backend;
    const struct backend_options any = {.name = "reference", .threads = 1};
    a->options.profile_steps = a->profile_steps;
    if (a->profile_steps == 0 || a->plan || a->dry_run || comm_launcher_rank() != 0)
        return 0;
    if (backend_create(&backend, &any, err) != 0)
        return -1;
    machine_describe("", backend, &m);
    backend_destroy(backend);
    int64_t memory = m.limits.memory_available >= 0 ? m.limits.memory_available / 4 : 1 << 28;
    log_progress(&a->cli->log, false, "measuring memory");
    return measure_bandwidth(m.cores, m.last_cache, memory, &a->options.bandwidth, err);
}

static int run_ranks(struct train_arguments *a)
{
    struct error err = {0};
    run_config_write(&a->config, &a->yaml);
    if (a->yaml.failed) {
        error_memory(&err, a->yaml.length, "the run file");
        return cli_fail(a->cli, &err);
    }
    run_options_fill(&a->config, a->yaml.data, &a->options);
    a->options.resume = a->resume;
    a->options.resume_path = a->resume_path;
    a->options.overwrite = a->overwrite;
    a->options.compare_run = compare_run;
    a->options.compare_context = a;
    a->options.peak = peaks_of_backend;
    if (find_bandwidth(a, &err) != 0)
        return cli_fail(a->cli, &err);
    int ranks = a->ranks;
    enum comm_transport transport = a->config.parallel.transport;
    if (a->plan) {
        a->options.plan_ranks = ranks ? ranks : 1;
        a->options.plan_messages = transport == COMM_MPI;
        ranks = 1;
        transport = COMM_AUTO;
    }
    struct comm_options options = {
        .ranks = ranks, .transport = transport, .watchdog = a->config.parallel.watchdog, .log = &a->cli->log};
    int status = comm_run_with(&options, train_body, a, &err);
    return err.kind != ERROR_NONE ? cli_fail(a->cli, &err) : status;
}

static int run(struct train_arguments *a)
{
    if (a->help_config) {
        struct strbuf text = {0};
        if (a->help_markdown)
            run_config_markdown(&text);
        else
            run_config_help(&text);
        return cli_print(a->cli, &text);
    }
    struct error_list errors = {0};
    if (run_config_load(a->file, a->overrides, a->override_count, &a->config, &errors) != 0) {
        /* Under a launcher all processes see the same mistakes: one tells. */
        int status = comm_launcher_rank() == 0 ? cli_fail_list(a->cli, &errors) : ERROR_INPUT;
        error_list_free(&errors);
        return status;
    }
    int status = run_ranks(a);
    strbuf_free(&a->yaml);
    run_config_free(&a->config);
    return status;
}

static int start(const struct argp *argp, bool plan, int argc, char **argv, struct cli *cli)
{
    struct train_arguments a = {.cli = cli, .plan = plan};
    a.overrides = calloc((size_t)argc + 1, sizeof *a.overrides);
    a.allow = calloc((size_t)argc + 1, sizeof *a.allow);
    int status;
    if (!a.overrides || !a.allow) {
        struct error err;
        error_memory(&err, (size_t)argc * sizeof *a.overrides, "the command line");
        status = cli_fail(cli, &err);
    } else {
        status = cli_parse(cli, argp, argc, argv, &a);
        if (status == 0)
            status = run(&a);
    }
    free(a.overrides);
    free(a.allow);
    return status;
}

int cmd_train(int argc, char **argv, struct cli *cli)
{
    return start(&train_argp, false, argc, argv, cli);
}

int cmd_plan(int argc, char **argv, struct cli *cli)
{
    return start(&plan_argp, true, argc, argv, cli);
}
