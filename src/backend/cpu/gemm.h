/* Single matrix products of one thread: C[m,n] = A[m,k] B[k,n] (+ bias[n]), fp32 or bf16 in, fp32 sums.
 *
 *     struct gemm_library *library;
 *     gemm_library_create(&library, "auto", threads, err);
 *     struct gemm *g;
 *     gemm_find(library, &spec, &g, err);            // describes it, once for each spec
 *     size_t scratch = gemm_scratch(g);              // bytes, per thread
 *     gemm_build(library, g, err);                   // makes the code and what threads need
 *     gemm_run(g, thread, a, b, NULL, c, scratch);   // any thread, allocates nothing of ours
 *
 * The cache of specs is not locked: find and build are for one thread at a time. Whatever library
 * stands behind it computes on the calling thread alone, so that bits do not depend on threads. */
#ifndef TERCET_BACKEND_CPU_GEMM_H
#define TERCET_BACKEND_CPU_GEMM_H

#include "base/dtype.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Instruction sets, each holding the ones before it. */
enum isa { ISA_PORTABLE, ISA_AVX2, ISA_AVX512, ISA_AVX512_BF16 };

struct gemm_spec {
    int64_t m, n, k;       /* all >= 1 */
    int64_t lda, ldb, ldc; /* elements from row to row of what is stored: A is stored k by m if transposed */
    bool a_transposed, b_transposed;
    bool bias;          /* of type `in` */
    enum dtype in, out; /* F32 to F32; BF16 to BF16 or F32, where gemm_has_bf16 */
};

struct gemm;
struct gemm_library;

/* isa: NULL, "auto" or a cap by name; the cap holds for the whole process and can be set only before
 * the first product. Refuses a library whose threads cannot be held to one. */
int gemm_library_create(struct gemm_library **out, const char *isa, int threads, struct error *err);
void gemm_library_free(struct gemm_library *library); /* NULL is allowed */
enum isa gemm_isa(const struct gemm_library *library);
bool gemm_has_bf16(const struct gemm_library *library);
/* The library uses AMX, which our own kernels do not know, for bf16. */
bool gemm_has_amx(const struct gemm_library *library);
const char *gemm_isa_name(enum isa isa);
/* Name and version of the library in use: "oneDNN 2.6.3". */
void gemm_library_version(char *out, size_t size);

/* To be called in each thread that runs products, the one that builds them included. */
void gemm_thread_start(void);

int gemm_find(struct gemm_library *library, const struct gemm_spec *spec, struct gemm **out,
              struct error *err);
size_t gemm_scratch(const struct gemm *g);
int gemm_build(struct gemm_library *library, struct gemm *g, struct error *err);
/* scratch: 64-byte aligned, gemm_scratch() bytes, of this thread. bias NULL where the spec has none. */
int gemm_run(struct gemm *g, int thread, const void *a, const void *b, const void *bias, void *c,
             void *scratch);

#endif
