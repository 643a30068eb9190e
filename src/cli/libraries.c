#include "cli/libraries.h"

#include "formats/json.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <archive.h>
#include <dnnl.h>
#include <gnu/libc-version.h>
#include <pcre2.h>
#include <protobuf-c/protobuf-c.h>
#include <stdio.h>
#include <utf8proc.h>
#include <xxhash.h>
#include <yaml.h>

void libraries_collect(struct libraries *out)
{
    *out = (struct libraries){0};
    uint32_t jit = 0;
    out->pcre2_jit = pcre2_config(PCRE2_CONFIG_JIT, &jit) >= 0 && jit == 1;
    int i = 0;
    const dnnl_version_t *dnnl = dnnl_version();
    out->items[i].name = "oneDNN";
    snprintf(out->items[i++].version, LIBRARY_VERSION, "%d.%d.%d", dnnl->major, dnnl->minor, dnnl->patch);
    out->items[i].name = "PCRE2";
    if (pcre2_config(PCRE2_CONFIG_VERSION, NULL) > LIBRARY_VERSION ||
        pcre2_config(PCRE2_CONFIG_VERSION, out->items[i].version) < 0)
        snprintf(out->items[i].version, LIBRARY_VERSION, "unknown");
    i++;
    out->items[i].name = "jansson";
    snprintf(out->items[i++].version, LIBRARY_VERSION, "%s", jansson_version_str());
    out->items[i].name = "libyaml";
    snprintf(out->items[i++].version, LIBRARY_VERSION, "%s", yaml_get_version_string());
    out->items[i].name = "libarchive";
    int archive = archive_version_number();
    snprintf(out->items[i++].version, LIBRARY_VERSION, "%d.%d.%d", archive / 1000000, archive / 1000 % 1000,
             archive % 1000);
    out->items[i].name = "utf8proc";
    snprintf(out->items[i++].version, LIBRARY_VERSION, "%s", utf8proc_version());
    out->items[i].name = "protobuf-c";
    snprintf(out->items[i++].version, LIBRARY_VERSION, "%s", protobuf_c_version());
    out->items[i].name = "xxHash";
    unsigned xxhash = XXH_versionNumber();
    snprintf(out->items[i++].version, LIBRARY_VERSION, "%u.%u.%u", xxhash / 10000, xxhash / 100 % 100,
             xxhash % 100);
    out->items[i].name = "glibc";
    snprintf(out->items[i++].version, LIBRARY_VERSION, "%s", gnu_get_libc_version());
}
