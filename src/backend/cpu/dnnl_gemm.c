/* Products by oneDNN, through its C API of version 2 or 3 (they differ in how a memory descriptor is
 * held and how a primitive descriptor is made; the wrappers at the top hide that).
 *
 * oneDNN runs on OpenMP as a rule, with as many threads as the calling thread's setting says at the time a
 * primitive is made and at the time it runs: gemm_thread_start() sets one. The function is looked up at
 * run time, so that this file needs no OpenMP itself and works with a sequential oneDNN too. */
#include "backend/cpu/gemm.h"

#include "base/file.h"

#include <dlfcn.h>
#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_LENGTH = 11, ARGUMENTS = 5, FIRST_SLOTS = 256 };

/* What one thread hands to the primitive; the memory objects are re-pointed for each run. */
struct thread_arguments {
    dnnl_memory_t a, b, bias, c, scratch;
    dnnl_stream_t stream; /* of the library */
};

struct gemm {
    struct gemm_spec spec;
    int64_t key[KEY_LENGTH];
    dnnl_primitive_desc_t description;
    dnnl_primitive_t primitive; /* NULL until built */
    size_t scratch;
    int threads;
    struct thread_arguments *arguments; /* by thread */
};

struct gemm_library {
    dnnl_engine_t engine;
    dnnl_stream_t *streams; /* by thread */
    int threads;
    enum isa isa;
    bool bf16, amx;
    struct gemm **slots; /* open addressing, a power of two */
    size_t slot_count, used;
};

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t descriptor;
typedef const_dnnl_memory_desc_t descriptor_view;

static dnnl_status_t descriptor_make(descriptor *d, int64_t rows, int64_t columns, dnnl_data_type_t type,
                                     int64_t row_stride, int64_t column_stride)
{
    dnnl_dims_t dims = {rows, columns}, strides = {row_stride, column_stride};
    return dnnl_memory_desc_create_with_strides(d, 2, dims, type, strides);
}

static void descriptor_drop(descriptor *d)
{
    if (*d)
        dnnl_memory_desc_destroy(*d);
}

static descriptor_view descriptor_look(const descriptor *d)
{
    return *d;
}

static dnnl_status_t matmul_describe(dnnl_primitive_desc_t *out, dnnl_engine_t engine, const descriptor *a,
                                     const descriptor *b, const descriptor *bias, const descriptor *c,
                                     const_dnnl_primitive_attr_t attr)
{
    return dnnl_matmul_primitive_desc_create(out, engine, *a, *b, bias ? *bias : NULL, *c, attr);
}
#else
typedef dnnl_memory_desc_t descriptor;
typedef const dnnl_memory_desc_t *descriptor_view;

static dnnl_status_t descriptor_make(descriptor *d, int64_t rows, int64_t columns, dnnl_data_type_t type,
                                     int64_t row_stride, int64_t column_stride)
{
    dnnl_dims_t dims = {rows, columns}, strides = {row_stride, column_stride};
    return dnnl_memory_desc_init_by_strides(d, 2, dims, type, strides);
}

static void descriptor_drop(descriptor *d)
{
    (void)d;
}

static descriptor_view descriptor_look(const descriptor *d)
{
    return d;
}

static dnnl_status_t matmul_describe(dnnl_primitive_desc_t *out, dnnl_engine_t engine, const descriptor *a,
                                     const descriptor *b, const descriptor *bias, const descriptor *c,
                                     const_dnnl_primitive_attr_t attr)
{
    dnnl_matmul_desc_t d;
    dnnl_status_t status = dnnl_matmul_desc_init(&d, a, b, bias, c);
    return status != dnnl_success ? status : dnnl_primitive_desc_create(out, &d, attr, engine, NULL);
}
#endif

static int failed(struct error *err, dnnl_status_t status, const char *doing)
{
    return error_set(err, ERROR_RUN, "oneDNN", NULL, "cannot %s (status %d)", doing, (int)status);
}

static void (*find_thread_setter(void))(int)
{
    void (*set)(int) = NULL;
    void *symbol = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    memcpy(&set, &symbol, sizeof set);
    return set;
}

void gemm_thread_start(void)
{
    void (*set)(int) = find_thread_setter();
    if (set)
        set(1);
}

static int check_runtime(struct error *err)
{
    unsigned runtime = dnnl_version()->cpu_runtime;
    if (runtime == DNNL_RUNTIME_SEQ || (runtime == DNNL_RUNTIME_OMP && find_thread_setter()))
        return 0;
    return error_set(
        err, ERROR_RUN, "oneDNN", "install a oneDNN built for OpenMP or without threads",
        "this library brings threads that cannot be held to one, so results would depend on them");
}

static bool isa_holds(dnnl_cpu_isa_t isa, dnnl_cpu_isa_t part)
{
    return ((unsigned)isa & (unsigned)part) == (unsigned)part;
}

static const struct {
    const char *name;
    enum isa isa;
    dnnl_cpu_isa_t cap;
} caps[] = {
    {"portable", ISA_PORTABLE, dnnl_cpu_isa_sse41},
    {"avx2", ISA_AVX2, dnnl_cpu_isa_avx2},
    {"avx512", ISA_AVX512, dnnl_cpu_isa_avx512_core},
    {"avx512_bf16", ISA_AVX512_BF16, dnnl_cpu_isa_avx512_core_bf16},
};

/* Sets the cap, if any, and finds what is left. */
static int choose_isa(struct gemm_library *library, const char *name, struct error *err)
{
    int chosen = -1, count = (int)(sizeof caps / sizeof caps[0]);
    bool any = !name || strcmp(name, "auto") == 0;
    for (int i = 0; i < count && !any; i++)
        if (strcmp(name, caps[i].name) == 0)
            chosen = i;
    if (!any && chosen < 0)
        return error_set(err, ERROR_INPUT, "backend.isa", "use auto, portable, avx2, avx512 or avx512_bf16",
                         "there is no instruction set \"%s\"", name);
    if (chosen >= 0)
        (void)dnnl_set_max_cpu_isa(caps[chosen].cap); /* judged by its effect, below */
    dnnl_cpu_isa_t effective = dnnl_get_effective_cpu_isa();
    if (chosen >= 0 && ((unsigned)effective & ~(unsigned)caps[chosen].cap) != 0)
        return error_set(err, ERROR_RUN, "backend.isa", "set it for the whole process, at its start",
                         "instructions beyond \"%s\" are in use already", name);
    library->isa = ISA_PORTABLE;
    for (int i = 1; i < count; i++)
        if (isa_holds(effective, caps[i].cap))
            library->isa = caps[i].isa;
    /* AVX-512 without bf16 instructions would emulate them, with results that depend on the rows. */
    library->bf16 = library->isa >= ISA_AVX512_BF16;
    library->amx = isa_holds(effective, dnnl_cpu_isa_avx512_core_amx);
    return 0;
}

int gemm_library_create(struct gemm_library **out, const char *isa, int threads, struct error *err)
{
    *out = NULL;
    struct gemm_library *library = calloc(1, sizeof *library);
    if (!library)
        return error_memory(err, sizeof *library, "matrix products");
    library->threads = threads;
    library->slot_count = FIRST_SLOTS;
    library->slots = calloc(library->slot_count, sizeof(struct gemm *));
    library->streams = calloc((size_t)threads, sizeof(dnnl_stream_t));
    if (!library->slots || !library->streams) {
        gemm_library_free(library);
        return error_memory(err, FIRST_SLOTS * sizeof(struct gemm *), "matrix products");
    }
    if (check_runtime(err) != 0 || choose_isa(library, isa, err) != 0) {
        gemm_library_free(library);
        return -1;
    }
    gemm_thread_start();
    dnnl_status_t status = dnnl_engine_create(&library->engine, dnnl_cpu, 0);
    for (int i = 0; i < threads && status == dnnl_success; i++)
        status = dnnl_stream_create(&library->streams[i], library->engine, dnnl_stream_default_flags);
    if (status != dnnl_success) {
        gemm_library_free(library);
        return failed(err, status, "start");
    }
    *out = library;
    return 0;
}

static void memory_drop(dnnl_memory_t memory)
{
    if (memory)
        dnnl_memory_destroy(memory);
}

static void drop_arguments(struct gemm *g)
{
    for (int i = 0; g->arguments && i < g->threads; i++) {
        memory_drop(g->arguments[i].a);
        memory_drop(g->arguments[i].b);
        memory_drop(g->arguments[i].bias);
        memory_drop(g->arguments[i].c);
        memory_drop(g->arguments[i].scratch);
        g->arguments[i] = (struct thread_arguments){0};
    }
}

static void gemm_free(struct gemm *g)
{
    drop_arguments(g);
    free(g->arguments);
    if (g->primitive)
        dnnl_primitive_destroy(g->primitive);
    if (g->description)
        dnnl_primitive_desc_destroy(g->description);
    free(g);
}

void gemm_library_free(struct gemm_library *library)
{
    if (!library)
        return;
    for (size_t i = 0; library->slots && i < library->slot_count; i++)
        if (library->slots[i])
            gemm_free(library->slots[i]);
    free(library->slots);
    for (int i = 0; library->streams && i < library->threads; i++)
        if (library->streams[i])
            dnnl_stream_destroy(library->streams[i]);
    free(library->streams);
    if (library->engine)
        dnnl_engine_destroy(library->engine);
    free(library);
}

enum isa gemm_isa(const struct gemm_library *library)
{
    return library->isa;
}

bool gemm_has_bf16(const struct gemm_library *library)
{
    return library->bf16;
}

bool gemm_has_amx(const struct gemm_library *library)
{
    return library->amx;
}

const char *gemm_isa_name(enum isa isa)
{
    return caps[isa].name;
}

void gemm_library_version(char *out, size_t size)
{
    const dnnl_version_t *version = dnnl_version();
    snprintf(out, size, "oneDNN %d.%d.%d", version->major, version->minor, version->patch);
}

static void make_key(const struct gemm_spec *s, int64_t key[KEY_LENGTH])
{
    key[0] = s->m;
    key[1] = s->n;
    key[2] = s->k;
    key[3] = s->lda;
    key[4] = s->ldb;
    key[5] = s->ldc;
    key[6] = s->a_transposed;
    key[7] = s->b_transposed;
    key[8] = s->bias;
    key[9] = (int64_t)s->in;
    key[10] = (int64_t)s->out;
}

static struct gemm **find_slot(struct gemm **slots, size_t slot_count, const int64_t key[KEY_LENGTH])
{
    size_t at = (size_t)hash_bytes(key, KEY_LENGTH * sizeof key[0], 0) & (slot_count - 1);
    while (slots[at] && memcmp(slots[at]->key, key, sizeof slots[at]->key) != 0)
        at = (at + 1) & (slot_count - 1);
    return &slots[at];
}

static int grow(struct gemm_library *library, struct error *err)
{
    size_t count = library->slot_count * 2;
    struct gemm **slots = calloc(count, sizeof *slots);
    if (!slots)
        return error_memory(err, count * sizeof *slots, "matrix products");
    for (size_t i = 0; i < library->slot_count; i++)
        if (library->slots[i])
            *find_slot(slots, count, library->slots[i]->key) = library->slots[i];
    free(library->slots);
    library->slots = slots;
    library->slot_count = count;
    return 0;
}

static dnnl_data_type_t data_type(enum dtype type)
{
    return type == DTYPE_BF16 ? dnnl_bf16 : dnnl_f32;
}

struct descriptors {
    descriptor a, b, bias, c;
};

static dnnl_status_t describe_memory(const struct gemm_spec *s, struct descriptors *d)
{
    dnnl_data_type_t in = data_type(s->in), out = data_type(s->out);
    memset(d, 0, sizeof *d);
    dnnl_status_t status = s->a_transposed ? descriptor_make(&d->a, s->m, s->k, in, 1, s->lda)
                                           : descriptor_make(&d->a, s->m, s->k, in, s->lda, 1);
    if (status == dnnl_success)
        status = s->b_transposed ? descriptor_make(&d->b, s->k, s->n, in, 1, s->ldb)
                                 : descriptor_make(&d->b, s->k, s->n, in, s->ldb, 1);
    if (status == dnnl_success && s->bias)
        status = descriptor_make(&d->bias, 1, s->n, in, s->n, 1);
    if (status == dnnl_success)
        status = descriptor_make(&d->c, s->m, s->n, out, s->ldc, 1);
    return status;
}

static void drop_descriptors(struct descriptors *d)
{
    descriptor_drop(&d->a);
    descriptor_drop(&d->b);
    descriptor_drop(&d->bias);
    descriptor_drop(&d->c);
}

static dnnl_status_t describe(struct gemm_library *library, struct gemm *g)
{
    struct descriptors d;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t status = describe_memory(&g->spec, &d);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_create(&attr);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (status == dnnl_success) /* an environment variable could relax fp32 to bf16 */
        status = dnnl_primitive_attr_set_fpmath_mode(attr, dnnl_fpmath_mode_strict);
    if (status == dnnl_success)
        status = matmul_describe(&g->description, library->engine, &d.a, &d.b, g->spec.bias ? &d.bias : NULL,
                                 &d.c, attr);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    drop_descriptors(&d);
    if (status == dnnl_success) {
        descriptor_view scratch = dnnl_primitive_desc_query_md(g->description, dnnl_query_scratchpad_md, 0);
        g->scratch = scratch ? dnnl_memory_desc_get_size(scratch) : 0;
    }
    return status;
}

int gemm_find(struct gemm_library *library, const struct gemm_spec *spec, struct gemm **out,
              struct error *err)
{
    int64_t key[KEY_LENGTH];
    make_key(spec, key);
    struct gemm **slot = find_slot(library->slots, library->slot_count, key);
    if (*slot) {
        *out = *slot;
        return 0;
    }
    if (2 * (library->used + 1) > library->slot_count) {
        if (grow(library, err) != 0)
            return -1;
        slot = find_slot(library->slots, library->slot_count, key);
    }
    struct gemm *g = calloc(1, sizeof *g);
    if (!g)
        return error_memory(err, sizeof *g, "a matrix product");
    g->spec = *spec;
    g->threads = library->threads;
    /* Here, not when it is built: that may be in the middle of a step. */
    g->arguments = calloc((size_t)g->threads, sizeof *g->arguments);
    if (!g->arguments) {
        free(g);
        return error_memory(err, (size_t)library->threads * sizeof *g->arguments, "a matrix product");
    }
    memcpy(g->key, key, sizeof key);
    gemm_thread_start(); /* the description plans scratch for the threads it sees */
    dnnl_status_t status = describe(library, g);
    if (status != dnnl_success) {
        gemm_free(g);
        return failed(err, status, "describe a matrix product");
    }
    *slot = g;
    library->used++;
    *out = g;
    return 0;
}

size_t gemm_scratch(const struct gemm *g)
{
    return g->scratch;
}

static dnnl_status_t make_arguments(struct gemm_library *library, struct gemm *g, const struct descriptors *d)
{
    dnnl_status_t status = dnnl_success;
    dnnl_engine_t engine = library->engine;
    for (int i = 0; i < g->threads && status == dnnl_success; i++) {
        struct thread_arguments *t = &g->arguments[i];
        t->stream = library->streams[i];
        status = dnnl_memory_create(&t->a, descriptor_look(&d->a), engine, DNNL_MEMORY_NONE);
        if (status == dnnl_success)
            status = dnnl_memory_create(&t->b, descriptor_look(&d->b), engine, DNNL_MEMORY_NONE);
        if (status == dnnl_success && g->spec.bias)
            status = dnnl_memory_create(&t->bias, descriptor_look(&d->bias), engine, DNNL_MEMORY_NONE);
        if (status == dnnl_success)
            status = dnnl_memory_create(&t->c, descriptor_look(&d->c), engine, DNNL_MEMORY_NONE);
        if (status == dnnl_success && g->scratch > 0)
            status = dnnl_memory_create(
                &t->scratch, dnnl_primitive_desc_query_md(g->description, dnnl_query_scratchpad_md, 0),
                engine, DNNL_MEMORY_NONE);
    }
    return status;
}

int gemm_build(struct gemm_library *library, struct gemm *g, struct error *err)
{
    if (g->primitive)
        return 0;
    struct descriptors d;
    dnnl_status_t status = describe_memory(&g->spec, &d);
    if (status == dnnl_success)
        status = make_arguments(library, g, &d);
    drop_descriptors(&d);
    gemm_thread_start();
    if (status == dnnl_success)
        status = dnnl_primitive_create(&g->primitive, g->description);
    if (status == dnnl_success)
        return 0;
    drop_arguments(g);
    return failed(err, status, "build a matrix product");
}

/* oneDNN's handles are not const, inputs are not written. */
static dnnl_status_t point(dnnl_memory_t memory, const void *data)
{
    void *handle;
    memcpy(&handle, &data, sizeof handle);
    return dnnl_memory_set_data_handle(memory, handle);
}

int gemm_run(struct gemm *g, int thread, const void *a, const void *b, const void *bias, void *c,
             void *scratch)
{
    struct thread_arguments *t = &g->arguments[thread];
    dnnl_exec_arg_t list[ARGUMENTS] = {{DNNL_ARG_SRC, t->a}, {DNNL_ARG_WEIGHTS, t->b}, {DNNL_ARG_DST, t->c}};
    int count = 3;
    dnnl_status_t status = point(t->a, a);
    if (status == dnnl_success)
        status = point(t->b, b);
    if (status == dnnl_success)
        status = point(t->c, c);
    if (status == dnnl_success && g->spec.bias) {
        list[count++] = (dnnl_exec_arg_t){DNNL_ARG_BIAS, t->bias};
        status = point(t->bias, bias);
    }
    if (status == dnnl_success && g->scratch > 0) {
        list[count++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, t->scratch};
        status = point(t->scratch, scratch);
    }
    if (status == dnnl_success)
        status = dnnl_primitive_execute(g->primitive, t->stream, count, list);
    if (status == dnnl_success)
        status = dnnl_stream_wait(t->stream);
    return status == dnnl_success ? 0 : -1;
}
