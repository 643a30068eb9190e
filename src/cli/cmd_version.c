/* tercet version. */
#include "cli/cli.h"

#include "comm/comm.h"
#include "formats/json.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <archive.h>
#include <dnnl.h>
#include <gnu/libc-version.h>
#include <pcre2.h>
#include <protobuf-c/protobuf-c.h>
#include <stdio.h>
#include <sys/utsname.h>
#include <utf8proc.h>
#include <xxhash.h>
#include <yaml.h>

enum { LIBRARIES = 9, VERSION_SIZE = 64 };

struct library {
    const char *name;
    char version[VERSION_SIZE]; /* of the one that is loaded, not of its headers */
};

struct version {
    const char *compiler, *build, *sanitize;
    char system[256];
    bool mpi, pcre2_jit;
    struct library libraries[LIBRARIES];
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
    uint32_t jit = 0;
    v->pcre2_jit = pcre2_config(PCRE2_CONFIG_JIT, &jit) >= 0 && jit == 1;

    int i = 0;
    const dnnl_version_t *dnnl = dnnl_version();
    v->libraries[i].name = "oneDNN";
    snprintf(v->libraries[i++].version, VERSION_SIZE, "%d.%d.%d", dnnl->major, dnnl->minor, dnnl->patch);
    v->libraries[i].name = "PCRE2";
    if (pcre2_config(PCRE2_CONFIG_VERSION, NULL) > VERSION_SIZE ||
        pcre2_config(PCRE2_CONFIG_VERSION, v->libraries[i].version) < 0)
        snprintf(v->libraries[i].version, VERSION_SIZE, "unknown");
    i++;
    v->libraries[i].name = "jansson";
    snprintf(v->libraries[i++].version, VERSION_SIZE, "%s", jansson_version_str());
    v->libraries[i].name = "libyaml";
    snprintf(v->libraries[i++].version, VERSION_SIZE, "%s", yaml_get_version_string());
    v->libraries[i].name = "libarchive";
    int archive = archive_version_number();
    snprintf(v->libraries[i++].version, VERSION_SIZE, "%d.%d.%d", archive / 1000000, archive / 1000 % 1000,
             archive % 1000);
    v->libraries[i].name = "utf8proc";
    snprintf(v->libraries[i++].version, VERSION_SIZE, "%s", utf8proc_version());
    v->libraries[i].name = "protobuf-c";
    snprintf(v->libraries[i++].version, VERSION_SIZE, "%s", protobuf_c_version());
    v->libraries[i].name = "xxHash";
    unsigned xxhash = XXH_versionNumber();
    snprintf(v->libraries[i++].version, VERSION_SIZE, "%u.%u.%u", xxhash / 10000, xxhash / 100 % 100,
             xxhash % 100);
    v->libraries[i].name = "glibc";
    snprintf(v->libraries[i++].version, VERSION_SIZE, "%s", gnu_get_libc_version());
}

static void put_version(struct strbuf *out, const struct version *v)
{
    strbuf_puts(out, "tercet " TERCET_VERSION "\n\n");
    cli_put_field(out, "compiler", "%s", v->compiler);
    cli_put_field(out, "build", "%s", v->build);
    cli_put_field(out, "sanitizers", "%s", v->sanitize[0] ? v->sanitize : "none");
    cli_put_field(out, "MPI", "%s", v->mpi ? "yes" : "no");
    cli_put_field(out, "system", "%s", v->system);
    strbuf_puts(out, "\n");
    for (int i = 0; i < LIBRARIES; i++)
        cli_put_field(out, v->libraries[i].name, "%s", v->libraries[i].version);
    if (!v->pcre2_jit)
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
    json_write_string(&w, "system", v->system);
    json_write_object(&w, "libraries");
    for (int i = 0; i < LIBRARIES; i++)
        json_write_string(&w, v->libraries[i].name, v->libraries[i].version);
    json_write_end(&w);
    json_write_bool(&w, "pcre2_jit", v->pcre2_jit);
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
