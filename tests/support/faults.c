/* A preloaded library (LD_PRELOAD) that lets one call of one place in the program fail: so a test walks
 * through every allocation, open, read, write, fsync, rename, mmap, fork, thread and MPI call that the
 * program makes. The functions themselves are in faults_calls.c and faults_mpi.c; here is which call is to
 * fail.
 *
 *     FAULT_PROGRAM  only a process of this program (the end of its path) is looked at
 *     FAULT_LIST     a file to which a line "PROCESS FUNCTION PLACE COUNT" is appended at the first,
 *                    second, fourth, eighth … call of each place
 *     FAULT_AT       "PROCESS FUNCTION PLACE COUNT", as listed: this call fails, once
 *     FAULT_DONE     a file that is made when it has failed
 *
 * A place is where a call returns to, and where its callers return to, DEPTH in all: MODULE+OFFSET,+OFFSET…
 * MODULE is the program (further on it is left out), or a library that allocates on its behalf and reports it
 * when it cannot (`libraries` below); calls made by other libraries are left alone. An offset is the address
 * within the module, the same in every run; `addr2line -fie PROGRAM OFFSET` names it.
 *
 * PROCESS is rank0, rank1 … for what the program has forked, and under an MPI launcher; else main. Programs
 * that the program starts are left alone.
 *
 * Calls that a process makes before main are not counted. It works under AddressSanitizer too: calls arrive
 * here first and go on to the sanitizer (verify_asan_link_order=0). */
#include "faults.h"

#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *const libraries[] = {"libjansson", "libyaml",       "libpcre2",   "libarchive",
                                        "libxxhash",  "libprotobuf-c", "libutf8proc"};

enum { MODULES = 16, PLACES = 65536, DEPTH = 4, FRAMES = 64 };

struct module {
    char name[64];
    uintptr_t base, first, end;
};

/* A preloaded library has no place for its state but variables of the file. */
static struct module modules[MODULES];
static int module_count;
static atomic_int armed;
static char process[16] = "main";
static int ranks; /* forked so far */
static char list_path[PATH_MAX], done_path[PATH_MAX];
static char wanted_process[16], wanted_function[64], wanted_place[400];
static long wanted_count;
/* The place in question. */
struct place {
    uintptr_t address[DEPTH];
    int depth;
};

/* Places called so far, by a hash of the addresses and the function. */
static struct {
    _Atomic uint64_t key;
    atomic_long count;
} places[PLACES];

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The program comes first, without a name. */
static int add_module(struct dl_phdr_info *info, size_t size, void *context)
{
    const char *program = context, *name = module_count == 0 ? program : last_part(info->dlpi_name);
    int kept = module_count == 0;
    (void)size;
    for (size_t i = 0; i < sizeof libraries / sizeof libraries[0]; i++)
        kept = kept || strncmp(name, libraries[i], strlen(libraries[i])) == 0;
    for (int i = 0; kept && i < info->dlpi_phnum && module_count < MODULES; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X))
            continue;
        struct module *m = &modules[module_count++];
        snprintf(m->name, sizeof m->name, "%.60s", name);
        m->base = info->dlpi_addr;
        m->first = info->dlpi_addr + part->p_vaddr;
        m->end = m->first + part->p_memsz;
    }
    return 0;
}

static void copy_variable(const char *name, char *out, size_t size)
{
    const char *value = getenv(name);
    snprintf(out, size, "%s", value ? value : "");
}

__attribute__((constructor)) static void start(void)
{
    char program[PATH_MAX], at[PATH_MAX];
    const char *only = getenv("FAULT_PROGRAM");
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = '\0';
    size_t length = strlen(program), end = only ? strlen(only) : 0;
    if (end > length || (only && strcmp(program + length - end, only) != 0))
        return;
    dl_iterate_phdr(add_module, (void *)(uintptr_t)last_part(program));
    copy_variable("FAULT_LIST", list_path, sizeof list_path);
    copy_variable("FAULT_DONE", done_path, sizeof done_path);
    copy_variable("FAULT_AT", at, sizeof at);
    if (sscanf(at, "%15s %63s %399s %ld", wanted_process, wanted_function, wanted_place, &wanted_count) != 4)
        wanted_count = 0;
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (!rank)
        rank = getenv("PMI_RANK");
    if (rank)
        snprintf(process, sizeof process, "rank%.8s", rank);
    unsetenv("LD_PRELOAD");
    void *frames[1];
    (void)backtrace(frames, 1); /* the first call loads a library */
    atomic_store(&armed, 1);
}

void fault_forked(void)
{
    snprintf(process, sizeof process, "rank%d", ranks);
    memset(places, 0, sizeof places);
}

/* Straight to the kernel: nothing of this must be counted. */
static void append(const char *path, const char *text)
{
    if (path[0] == '\0')
        return;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0)
        return;
    (void)syscall(SYS_write, fd, text, strlen(text));
    syscall(SYS_close, fd);
}

static const struct module *module_of(uintptr_t address)
{
    for (int i = 0; i < module_count; i++)
        if (address >= modules[i].first && address < modules[i].end)
            return &modules[i];
    return NULL;
}

/* False for a call that does not concern us. */
static int find_place(uintptr_t caller, struct place *out)
{
    *out = (struct place){.address = {caller}, .depth = 1};
    if (!module_of(caller))
        return 0;
    void *frames[FRAMES];
    int n = backtrace(frames, FRAMES), i = 0;
    while (i < n && (uintptr_t)frames[i] != caller)
        i++;
    for (i++; i < n && out->depth < DEPTH; i++)
        if (module_of((uintptr_t)frames[i]))
            out->address[out->depth++] = (uintptr_t)frames[i];
    return 1;
}

/* How often this place has called the function, this time included. */
static long count_call(const char *function, const struct place *place)
{
    uint64_t key = 1;
    for (const char *at = function; *at; at++)
        key = (key ^ (unsigned char)*at) * 0x9e3779b97f4a7c15u;
    for (int i = 0; i < place->depth; i++)
        key = (key ^ key >> 29 ^ place->address[i]) * 0x9e3779b97f4a7c15u;
    key |= key == 0;
    for (uint64_t i = key >> 40;; i++) {
        uint64_t found = 0;
        if (atomic_compare_exchange_strong(&places[i % PLACES].key, &found, key) || found == key)
            return atomic_fetch_add(&places[i % PLACES].count, 1) + 1;
    }
}

static void name_place(const struct place *place, char *out, size_t size)
{
    size_t used = 0;
    for (int i = 0; i < place->depth && used < size; i++) {
        const struct module *m = module_of(place->address[i]);
        int n = snprintf(out + used, size - used, "%s%s+0x%lx", i > 0 ? "," : "",
                         i > 0 && m == modules ? "" : m->name, (unsigned long)(place->address[i] - m->base));
        used += n > 0 ? (size_t)n : size;
    }
}

static int fault_here(const char *function, const void *caller)
{
    struct place place;
    if (!find_place((uintptr_t)caller, &place))
        return 0;
    long count = count_call(function, &place);
    int listed = list_path[0] && (count & (count - 1)) == 0, wanted = count == wanted_count;
    if (!listed && !wanted)
        return 0;
    char name[400], line[600];
    name_place(&place, name, sizeof name);
    snprintf(line, sizeof line, "%s %s %s %ld\n", process, function, name, count);
    if (listed)
        append(list_path, line);
    if (!wanted || strcmp(process, wanted_process) != 0 || strcmp(function, wanted_function) != 0 ||
        strcmp(name, wanted_place) != 0)
        return 0;
    append(done_path, line);
    return 1;
}

int fault_due(const char *function, int problem, const void *caller)
{
    /* backtrace may call what is counted. (This model of access needs no function, which a sanitizer that is
     * not yet ready would intercept.) */
    static _Thread_local int inside __attribute__((tls_model("initial-exec")));
    if (atomic_load_explicit(&armed, memory_order_relaxed) == 0 || inside)
        return 0;
    inside = 1;
    int before = errno, due = fault_here(function, caller);
    errno = due ? problem : before;
    inside = 0;
    return due;
}

pid_t fork(void)
{
    if (fault_due("fork", EAGAIN, CALLER))
        return -1;
    pid_t pid = NEXT(fork)();
    if (pid == 0)
        fault_forked();
    else if (pid > 0)
        ranks++;
    return pid;
}
