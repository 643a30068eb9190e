/* A preloaded library (LD_PRELOAD) that ends a process, or lets a call fail, at the N-th of the calls that
 * change files under a path: so a test walks through every write, fsync and rename of a save in turn.
 *
 *     KILLER_PATH   calls count that concern a path that begins with this text (absolute, resolved)
 *     KILLER_THREAD "main": those of a process's first thread alone; "other": those of all others; unset: all
 *     KILLER_AT     the number of the call, from 1; 0 or unset: calls are only counted
 *     KILLER_DO     "kill" (the default): SIGKILL before the call, a write being done by half before;
 *                   or an errno value: this call fails with it, and every later one of any thread that needs
 *                   space or the device too (write, fsync, rename, mkdir, symlink); removing goes on working;
 *                   or a path (absolute): the call waits until there is such a file, then goes on
 *     KILLER_LOG    a file to which "PID N CALL PATH" is appended for each call counted
 *
 * With KILLER_THREAD the order of calls is the same in every run.
 *
 * Each process counts for itself; a fork takes the count along. Calls go to the kernel directly, so this
 * works below the sanitizers' own interceptors. Variables of the file are the one place that a preloaded
 * library has for the count, and for whether the device has failed. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static atomic_long calls;
static atomic_int failing;

/* The path of an open file or directory; false where it has none. */
static int path_of(int fd, char out[PATH_MAX])
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, out, PATH_MAX - 1);
    if (n <= 0)
        return 0;
    out[n] = '\0';
    return out[0] == '/';
}

static void log_call(long number, const char *call, const char *path)
{
    const char *name = getenv("KILLER_LOG");
    char line[PATH_MAX + 64];
    if (!name)
        return;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    int n = snprintf(line, sizeof line, "%ld %ld %s %s\n", (long)getpid(), number, call, path);
    if (fd < 0)
        return;
    if (n > 0)
        (void)syscall(SYS_write, fd, line, (size_t)n);
    syscall(SYS_close, fd);
}

enum verdict { GO_ON, DIE, FAIL };

/* Calls of this thread are wanted. */
static int counts(void)
{
    const char *thread = getenv("KILLER_THREAD");
    int main_thread = syscall(SYS_gettid) == getpid();
    return !thread || main_thread == (strcmp(thread, "main") == 0);
}

static void wait_for(const char *file)
{
    const struct timespec pause = {.tv_nsec = 2000000};
    while (syscall(SYS_faccessat, AT_FDCWD, file, F_OK) != 0)
        nanosleep(&pause, NULL);
}

/* Counts a call; FAIL has set errno. */
static enum verdict judge(const char *call, const char *path, int needs_device)
{
    const char *prefix = getenv("KILLER_PATH"), *at_text = getenv("KILLER_AT"), *what = getenv("KILLER_DO");
    if (!prefix || !path || strncmp(path, prefix, strlen(prefix)) != 0)
        return GO_ON;
    if (atomic_load(&failing) && needs_device) {
        errno = (int)strtol(what, NULL, 10);
        return FAIL;
    }
    if (!counts())
        return GO_ON;
    long number = atomic_fetch_add(&calls, 1) + 1, at = at_text ? strtol(at_text, NULL, 10) : 0;
    log_call(number, call, path);
    if (at <= 0 || number != at)
        return GO_ON;
    if (!what || strcmp(what, "kill") == 0)
        return DIE;
    if (what[0] == '/') {
        wait_for(what);
        return GO_ON;
    }
    atomic_store(&failing, 1);
    errno = (int)strtol(what, NULL, 10);
    return FAIL;
}

static void die(void)
{
    syscall(SYS_kill, getpid(), SIGKILL);
}

ssize_t write(int fd, const void *data, size_t n)
{
    char path[PATH_MAX];
    enum verdict v = path_of(fd, path) ? judge("write", path, 1) : GO_ON;
    if (v == FAIL)
        return -1;
    if (v == DIE) {
        (void)syscall(SYS_write, fd, data, n / 2);
        die();
    }
    return (ssize_t)syscall(SYS_write, fd, data, n);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset)
{
    char path[PATH_MAX];
    enum verdict v = path_of(fd, path) ? judge("pwrite", path, 1) : GO_ON;
    if (v == FAIL)
        return -1;
    if (v == DIE) {
        (void)syscall(SYS_pwrite64, fd, data, n / 2, offset);
        die();
    }
    return (ssize_t)syscall(SYS_pwrite64, fd, data, n, offset);
}

/* For calls that have no half: 1 when the call is to fail. */
static int stopped(const char *call, const char *path, int needs_device)
{
    enum verdict v = judge(call, path, needs_device);
    if (v == DIE)
        die();
    return v == FAIL;
}

int fsync(int fd)
{
    char path[PATH_MAX];
    if (path_of(fd, path) && stopped("fsync", path, 1))
        return -1;
    return (int)syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    char path[PATH_MAX];
    if (path_of(fd, path) && stopped("fdatasync", path, 1))
        return -1;
    return (int)syscall(SYS_fdatasync, fd);
}

int ftruncate(int fd, off_t length)
{
    char path[PATH_MAX];
    if (path_of(fd, path) && stopped("ftruncate", path, 1))
        return -1;
    return (int)syscall(SYS_ftruncate, fd, length);
}

int rename(const char *from, const char *to)
{
    if (stopped("rename", to, 1))
        return -1;
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat2(int from_directory, const char *from, int to_directory, const char *to, unsigned int flags)
{
    if (stopped("renameat2", to, 1))
        return -1;
    return (int)syscall(SYS_renameat2, from_directory, from, to_directory, to, flags);
}

int mkdir(const char *path, mode_t mode)
{
    if (stopped("mkdir", path, 1))
        return -1;
    return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int symlink(const char *target, const char *path)
{
    if (stopped("symlink", path, 1))
        return -1;
    return (int)syscall(SYS_symlinkat, target, AT_FDCWD, path);
}

int unlink(const char *path)
{
    if (stopped("unlink", path, 0))
        return -1;
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int unlinkat(int directory, const char *name, int flags)
{
    char path[2 * PATH_MAX];
    if (name[0] == '/' || directory == AT_FDCWD)
        snprintf(path, sizeof path, "%s", name);
    else if (path_of(directory, path))
        snprintf(path + strlen(path), PATH_MAX, "/%s", name);
    else
        path[0] = '\0';
    if (stopped("unlinkat", path, 0))
        return -1;
    return (int)syscall(SYS_unlinkat, directory, name, flags);
}
