/* The calls of the C library that libfaults.so can let fail, each with the error that it would have when
 * memory, space, descriptors or processes run out or a device fails. See faults.c.
 *
 * Not here: what cannot fail as it is used (close of a reading descriptor, munmap, pthread_mutex_init of a
 * plain mutex), and what goes to standard error, where a failure could not be told. */
#include "faults.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* ---- memory ---- */

void *malloc(size_t size)
{
    return fault_due("malloc", ENOMEM, CALLER) ? NULL : NEXT(malloc)(size);
}

void *calloc(size_t n, size_t size)
{
    return fault_due("calloc", ENOMEM, CALLER) ? NULL : NEXT(calloc)(n, size);
}

void *realloc(void *old, size_t size)
{
    return fault_due("realloc", ENOMEM, CALLER) ? NULL : NEXT(realloc)(old, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return fault_due("aligned_alloc", ENOMEM, CALLER) ? NULL : NEXT(aligned_alloc)(alignment, size);
}

int posix_memalign(void **out, size_t alignment, size_t size)
{
    return fault_due("posix_memalign", ENOMEM, CALLER) ? ENOMEM : NEXT(posix_memalign)(out, alignment, size);
}

char *strdup(const char *text)
{
    return fault_due("strdup", ENOMEM, CALLER) ? NULL : NEXT(strdup)(text);
}

char *strndup(const char *text, size_t size)
{
    return fault_due("strndup", ENOMEM, CALLER) ? NULL : NEXT(strndup)(text, size);
}

int vasprintf(char **out, const char *format, va_list arguments)
{
    return fault_due("vasprintf", ENOMEM, CALLER) ? -1 : NEXT(vasprintf)(out, format, arguments);
}

int asprintf(char **out, const char *format, ...)
{
    if (fault_due("asprintf", ENOMEM, CALLER))
        return -1;
    va_list arguments;
    va_start(arguments, format);
    int n = NEXT(vasprintf)(out, format, arguments);
    va_end(arguments);
    return n;
}

/* Where the C library's headers check sizes (_FORTIFY_SOURCE), asprintf has this name. */
/* NOLINTBEGIN(bugprone-reserved-identifier) */
int __vasprintf_chk(char **out, int flag, const char *format, va_list arguments);
int __asprintf_chk(char **out, int flag, const char *format, ...);
int __asprintf_chk(char **out, int flag, const char *format, ...)
{
    if (fault_due("asprintf", ENOMEM, CALLER))
        return -1;
    va_list arguments;
    va_start(arguments, format);
    int n = NEXT(__vasprintf_chk)(out, flag, format, arguments);
    va_end(arguments);
    return n;
}
/* NOLINTEND(bugprone-reserved-identifier) */

void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset)
{
    return fault_due("mmap", ENOMEM, CALLER) ? MAP_FAILED
                                             : NEXT(mmap)(address, size, protection, flags, fd, offset);
}

int mprotect(void *address, size_t size, int protection)
{
    return fault_due("mprotect", ENOMEM, CALLER) ? -1 : NEXT(mprotect)(address, size, protection);
}

int madvise(void *address, size_t size, int advice)
{
    return fault_due("madvise", ENOMEM, CALLER) ? -1 : NEXT(madvise)(address, size, advice);
}

int memfd_create(const char *name, unsigned int flags)
{
    return fault_due("memfd_create", EMFILE, CALLER) ? -1 : NEXT(memfd_create)(name, flags);
}

/* ---- processes and threads ---- */

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *context)
{
    return fault_due("pthread_create", EAGAIN, CALLER)
               ? EAGAIN
               : NEXT(pthread_create)(thread, attributes, run, context);
}

int sched_setaffinity(pid_t pid, size_t size, const cpu_set_t *set)
{
    return fault_due("sched_setaffinity", EINVAL, CALLER) ? -1 : NEXT(sched_setaffinity)(pid, size, set);
}

int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set)
{
    return fault_due("sched_getaffinity", EINVAL, CALLER) ? -1 : NEXT(sched_getaffinity)(pid, size, set);
}

int pipe2(int ends[2], int flags)
{
    return fault_due("pipe2", EMFILE, CALLER) ? -1 : NEXT(pipe2)(ends, flags);
}

int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                const posix_spawnattr_t *attributes, char *const arguments[], char *const environment[])
{
    return fault_due("posix_spawn", EAGAIN, CALLER)
               ? EAGAIN
               : NEXT(posix_spawn)(pid, path, actions, attributes, arguments, environment);
}

/* ---- files ---- */

static mode_t mode_of(int flags, va_list arguments)
{
    return flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY)) ? va_arg(arguments, mode_t) : 0;
}

int open(const char *path, int flags, ...)
{
    if (fault_due("open", EMFILE, CALLER))
        return -1;
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = mode_of(flags, arguments);
    va_end(arguments);
    return NEXT(open)(path, flags, mode);
}

int openat(int directory, const char *path, int flags, ...)
{
    if (fault_due("openat", EMFILE, CALLER))
        return -1;
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = mode_of(flags, arguments);
    va_end(arguments);
    return NEXT(openat)(directory, path, flags, mode);
}

ssize_t read(int fd, void *out, size_t size)
{
    return fault_due("read", EIO, CALLER) ? -1 : NEXT(read)(fd, out, size);
}

ssize_t pread(int fd, void *out, size_t size, off_t offset)
{
    return fault_due("pread", EIO, CALLER) ? -1 : NEXT(pread)(fd, out, size, offset);
}

ssize_t write(int fd, const void *data, size_t size)
{
    return fault_due("write", ENOSPC, CALLER) ? -1 : NEXT(write)(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    return fault_due("pwrite", ENOSPC, CALLER) ? -1 : NEXT(pwrite)(fd, data, size, offset);
}

int close(int fd)
{
    int status = NEXT(close)(fd);
    return fault_due("close", EIO, CALLER) ? -1 : status;
}

int fsync(int fd)
{
    return fault_due("fsync", EIO, CALLER) ? -1 : NEXT(fsync)(fd);
}

int fdatasync(int fd)
{
    return fault_due("fdatasync", EIO, CALLER) ? -1 : NEXT(fdatasync)(fd);
}

int ftruncate(int fd, off_t size)
{
    return fault_due("ftruncate", EIO, CALLER) ? -1 : NEXT(ftruncate)(fd, size);
}

int fallocate(int fd, int mode, off_t offset, off_t size)
{
    return fault_due("fallocate", ENOSPC, CALLER) ? -1 : NEXT(fallocate)(fd, mode, offset, size);
}

off_t lseek(int fd, off_t offset, int whence)
{
    return fault_due("lseek", EIO, CALLER) ? -1 : NEXT(lseek)(fd, offset, whence);
}

int flock(int fd, int operation)
{
    return fault_due("flock", ENOLCK, CALLER) ? -1 : NEXT(flock)(fd, operation);
}

int stat(const char *path, struct stat *out)
{
    return fault_due("stat", EIO, CALLER) ? -1 : NEXT(stat)(path, out);
}

int lstat(const char *path, struct stat *out)
{
    return fault_due("lstat", EIO, CALLER) ? -1 : NEXT(lstat)(path, out);
}

int fstat(int fd, struct stat *out)
{
    return fault_due("fstat", EIO, CALLER) ? -1 : NEXT(fstat)(fd, out);
}

int statvfs(const char *path, struct statvfs *out)
{
    return fault_due("statvfs", EIO, CALLER) ? -1 : NEXT(statvfs)(path, out);
}

int access(const char *path, int mode)
{
    return fault_due("access", EIO, CALLER) ? -1 : NEXT(access)(path, mode);
}

int faccessat(int directory, const char *path, int mode, int flags)
{
    return fault_due("faccessat", EIO, CALLER) ? -1 : NEXT(faccessat)(directory, path, mode, flags);
}

/* ---- names and directories ---- */

int rename(const char *from, const char *to)
{
    return fault_due("rename", ENOSPC, CALLER) ? -1 : NEXT(rename)(from, to);
}

int renameat2(int from_directory, const char *from, int to_directory, const char *to, unsigned int flags)
{
    return fault_due("renameat2", ENOSPC, CALLER)
               ? -1
               : NEXT(renameat2)(from_directory, from, to_directory, to, flags);
}

int link(const char *from, const char *to)
{
    return fault_due("link", ENOSPC, CALLER) ? -1 : NEXT(link)(from, to);
}

int symlink(const char *target, const char *path)
{
    return fault_due("symlink", ENOSPC, CALLER) ? -1 : NEXT(symlink)(target, path);
}

int unlink(const char *path)
{
    return fault_due("unlink", EIO, CALLER) ? -1 : NEXT(unlink)(path);
}

int unlinkat(int directory, const char *path, int flags)
{
    return fault_due("unlinkat", EIO, CALLER) ? -1 : NEXT(unlinkat)(directory, path, flags);
}

int mkdir(const char *path, mode_t mode)
{
    return fault_due("mkdir", ENOSPC, CALLER) ? -1 : NEXT(mkdir)(path, mode);
}

char *mkdtemp(char *path)
{
    return fault_due("mkdtemp", ENOSPC, CALLER) ? NULL : NEXT(mkdtemp)(path);
}

char *realpath(const char *path, char *resolved)
{
    return fault_due("realpath", ENOMEM, CALLER) ? NULL : NEXT(realpath)(path, resolved);
}

DIR *opendir(const char *path)
{
    return fault_due("opendir", EMFILE, CALLER) ? NULL : NEXT(opendir)(path);
}

DIR *fdopendir(int fd)
{
    return fault_due("fdopendir", ENOMEM, CALLER) ? NULL : NEXT(fdopendir)(fd);
}

struct dirent *readdir(DIR *directory)
{
    return fault_due("readdir", EIO, CALLER) ? NULL : NEXT(readdir)(directory);
}

int glob(const char *pattern, int flags, int (*problem)(const char *, int), glob_t *found)
{
    return fault_due("glob", ENOMEM, CALLER) ? GLOB_NOSPACE : NEXT(glob)(pattern, flags, problem, found);
}

/* ---- streams ---- */

/* As fault_due, for a stream, which remembers that it has failed. */
static int stream_due(const char *function, int problem, const void *caller, FILE *stream)
{
    if (stream == stderr || !fault_due(function, problem, caller))
        return 0;
    if (stream)
        stream->_flags |= _IO_ERR_SEEN;
    return 1;
}

FILE *fopen(const char *path, const char *mode)
{
    return fault_due("fopen", EMFILE, CALLER) ? NULL : NEXT(fopen)(path, mode);
}

FILE *fdopen(int fd, const char *mode)
{
    return fault_due("fdopen", ENOMEM, CALLER) ? NULL : NEXT(fdopen)(fd, mode);
}

int fclose(FILE *stream)
{
    int status = NEXT(fclose)(stream);
    return fault_due("fclose", ENOSPC, CALLER) ? EOF : status;
}

/* With nothing to write it cannot fail. */
int fflush(FILE *stream)
{
    if (!stream || __fpending(stream) == 0)
        return NEXT(fflush)(stream);
    return stream_due("fflush", ENOSPC, CALLER, stream) ? EOF : NEXT(fflush)(stream);
}

size_t fread(void *out, size_t size, size_t n, FILE *stream)
{
    return stream_due("fread", EIO, CALLER, stream) ? 0 : NEXT(fread)(out, size, n, stream);
}

/* What getline and getdelim become. */
ssize_t __getdelim(char **line, size_t *size, int delimiter, FILE *stream)
{
    return stream_due("getdelim", ENOMEM, CALLER, stream) ? -1
                                                          : NEXT(__getdelim)(line, size, delimiter, stream);
}

ssize_t getline(char **line, size_t *size, FILE *stream)
{
    return stream_due("getline", ENOMEM, CALLER, stream) ? -1 : NEXT(getline)(line, size, stream);
}

size_t fwrite(const void *data, size_t size, size_t n, FILE *stream)
{
    return stream_due("fwrite", ENOSPC, CALLER, stream) ? 0 : NEXT(fwrite)(data, size, n, stream);
}

int fputs(const char *text, FILE *stream)
{
    return stream_due("fputs", ENOSPC, CALLER, stream) ? EOF : NEXT(fputs)(text, stream);
}

int fputc(int character, FILE *stream)
{
    return stream_due("fputc", ENOSPC, CALLER, stream) ? EOF : NEXT(fputc)(character, stream);
}

int(putc)(int character, FILE *stream)
{
    return stream_due("putc", ENOSPC, CALLER, stream) ? EOF : NEXT(fputc)(character, stream);
}

int vfprintf(FILE *stream, const char *format, va_list arguments)
{
    return stream_due("vfprintf", ENOSPC, CALLER, stream) ? -1 : NEXT(vfprintf)(stream, format, arguments);
}

int fprintf(FILE *stream, const char *format, ...)
{
    if (stream_due("fprintf", ENOSPC, CALLER, stream))
        return -1;
    va_list arguments;
    va_start(arguments, format);
    int n = NEXT(vfprintf)(stream, format, arguments);
    va_end(arguments);
    return n;
}
