/* tercet version. */
#include "cli/cli.h"

#include "cli/libraries.h"
#include "comm/comm.h"
#include "formats/json.h"

#include <stdio.h>
#include <sys/utsname.h>

struct version {
    const char *compiler, *build, *sanitize;
    char system[256];
    bool mpi;
    char mpi_library[128];
    struct libraries libraries;
};

static void collect(struct version *v)
{
#ifdef __clang__
    v->compiler = "clang " __clang_version__;
#else
    v->compiler = "gcc " __VERSION__;
#endif
    v->build = TERCET_BUILD_TYPE;
    v->sanitize = TERCET_SANITIZE;
    struct utsname system;
    if (uname(&system) == 0)
        snprintf(v->system, sizeof v->system, "%s %.100s %.100s", system.sysname, system.release,
                 system.machine);
    v->mpi = comm_has_mpi();
    comm_mpi_library(v->mpi_library, sizeof v->mpi_library);
    libraries_collect(&v->libraries);
}

static void put_version(struct strbuf *out, const struct version *v)
{
    strbuf_puts(out, "tercet " TERCET_VERSION "\n\n");
    cli_put_field(out, "compiler", "%s", v->compiler);
    cli_put_field(out, "build", "%s", v->build);
    cli_put_field(out, "sanitizers", "%s", v->sanitize[0] ? v->sanitize : "none");
    cli_put_field(out, "MPI", "%s%s%s", v->mpi ? "yes" : "no", v->mpi_library[0] ? ", " : "", v->mpi_library);
    cli_put_field(out, "system", "%s", v->system);
    strbuf_puts(out, "\n");
    for (int i = 0; i < LIBRARIES; i++)
        cli_put_field(out, v->libraries.items[i].name, "%s", v->libraries.items[i].version);
    if (!v->libraries.pcre2_jit)
        strbuf_puts(out, "\nThis PCRE2 has no JIT: tokenizing is slower.\n");
}

static void write_version(struct strbuf *out, const struct version *v)
{
    struct json_writer w;
    json_writer_start(&w, out, 0);
    json_write_object(&w, NULL);
    json_write_string(&w, "version", TERCET_VERSION);
    json_write_string(&w, "compiler", v->compiler);
    json_write_string(&w, "build", v->build);
    json_write_string(&w, "sanitizers", v->sanitize[0] ? v->sanitize : NULL);
    json_write_bool(&w, "mpi", v->mpi);
    json_write_string(&w, "mpi_library", v->mpi_library[0] ? v->mpi_library : NULL);
    json_write_string(&w, "system", v->system);
    json_write_object(&w, "libraries");
    for (int i = 0; i < LIBRARIES; i++)
        json_write_string(&w, v->libraries.items[i].name, v->libraries.items[i].version);
    json_write_end(&w);
    json_write_bool(&w, "pcre2_jit", v->libraries.pcre2_jit);
    json_write_end(&w);
}

static error_t parse_version(int key, char *value, struct argp_state *state)
{
    bool *json = state->input;
    if (key == CLI_JSON)
        *json = true;
    else if (key == ARGP_KEY_ARG)
        argp_error(state, "nothing is expected here, not \"%s\"", value);
    else
        return ARGP_ERR_UNKNOWN;
    return 0;
}

int cmd_version(int argc, char **argv, struct cli *cli)
{
    static const struct argp_option options[] = {{"json", CLI_JSON, NULL, 0, "Print one JSON object", 0},
                                                 {0}};
    static const struct argp argp = {options,
                                     parse_version,
                                     NULL,
                                     "Example:\n  tercet version --json\n\n"
                                     "Prints the version of Tercet, how it was built, and the versions of "
                                     "the libraries that it runs with.",
                                     NULL,
                                     NULL,
                                     NULL};
    bool json = false;
    int status = cli_parse(cli, &argp, argc, argv, &json);
    if (status != 0)
        return status;
    struct version version = {0};
    struct strbuf text = {0};
    collect(&version);
    (json ? write_version : put_version)(&text, &version);
    return cli_print(cli, &text);
}
