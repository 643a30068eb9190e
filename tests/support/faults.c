/* A preloaded library (LD_PRELOAD) that lets one call of one place in the program fail: so a test walks
 * through every allocation, open, read, write, fsync, rename, mmap, fork, thread and MPI call that the
 * program makes. The functions themselves are in faults_calls.c and faults_mpi.c; here is which call is to
 * fail.
 *
 *     FAULT_PROGRAM  only a process of this program (the end of its path) is looked at
 *     FAULT_LIST     a file to which a line "PROCESS FUNCTION MODULE+OFFSET COUNT" is appended at the first,
 *                    second, fourth, eighth … call of each place
 *     FAULT_AT       "PROCESS FUNCTION MODULE+OFFSET COUNT", as listed: this call fails, once
 *     FAULT_DONE     a file that is made when it has failed
 *
 * A place is what a call returns to: MODULE is the program, or a library that allocates on its behalf and
 * reports it when it cannot (`libraries` below); calls made by other libraries are left alone. The offset is
 * the address within the module, the same in every run; `addr2line -fie PROGRAM OFFSET` names it.
 * PROCESS is rank0, rank1 … for what the program has forked, and under an MPI launcher; else main.
 * Programs that the program starts are left alone.
 *
 * Calls that a process makes before main are not counted. It works under AddressSanitizer too: calls arrive
 * here first and go on to the sanitizer (verify_asan_link_order=0). */
#include "faults.h"

#include <errno.h>
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

enum { MODULES = 16, PLACES = 8192 };

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
static char wanted_process[16], wanted_function[64], wanted_place[128];
static long wanted_count;
/* Places called so far, by a hash: the key is the address and the function. */
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
    if (sscanf(at, "%15s %63s %127s %ld", wanted_process, wanted_function, wanted_place, &wanted_count) != 4)
        wanted_count = 0;
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (!rank)
        rank = getenv("PMI_RANK");
    if (rank)
        snprintf(process, sizeof process, "rank%.8s", rank);
    unsetenv("LD_PRELOAD");
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

/* How often this place has called the function, this time included. */
static long count_call(const char *function, uintptr_t caller)
{
    unsigned char mixed = 0;
    for (const char *at = function; *at; at++)
        mixed = (unsigned char)(31 * mixed + (unsigned char)*at);
    uint64_t key = (uint64_t)caller << 8 | mixed;
    for (uint64_t i = key * 0x9e3779b97f4a7c15u >> 40;; i++) {
        uint64_t found = 0;
        if (atomic_compare_exchange_strong(&places[i % PLACES].key, &found, key) || found == key)
            return atomic_fetch_add(&places[i % PLACES].count, 1) + 1;
    }
}

static int fault_here(const char *function, const void *caller)
{
    uintptr_t address = (uintptr_t)caller;
    const struct module *m = NULL;
    for (int i = 0; !m && i < module_count; i++)
        if (address >= modules[i].first && address < modules[i].end)
            m = &modules[i];
    if (!m)
        return 0;
    long count = count_call(function, address);
    int listed = list_path[0] && (count & (count - 1)) == 0, wanted = count == wanted_count;
    if (!listed && !wanted)
        return 0;
    char place[128], line[256];
    snprintf(place, sizeof place, "%s+0x%lx", m->name, (unsigned long)(address - m->base));
    snprintf(line, sizeof line, "%s %s %s %ld\n", process, function, place, count);
    if (listed)
        append(list_path, line);
    if (!wanted || strcmp(process, wanted_process) != 0 || strcmp(function, wanted_function) != 0 ||
        strcmp(place, wanted_place) != 0)
        return 0;
    append(done_path, line);
    return 1;
}

int fault_due(const char *function, int problem, const void *caller)
{
    if (atomic_load_explicit(&armed, memory_order_relaxed) == 0)
        return 0;
    int before = errno, due = fault_here(function, caller);
    errno = due ? problem : before;
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
