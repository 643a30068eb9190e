/* peak FILE COMMAND…: runs the command and writes to FILE the most memory that it and its processes held at
 * one time, in bytes: what is anonymous, and what they share (memory files), each page counted once. Looks
 * every ten milliseconds, so a peak that is shorter may be missed. Ends as the command ends. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The process belongs to the group. */
static int in_group(const char *pid, pid_t group)
{
    char path[300], text[1024];
    snprintf(path, sizeof path, "/proc/%s/stat", pid);
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = '\0';
    const char *name_end = strrchr(text, ')');
    char state;
    int parent, its_group;
    return name_end && sscanf(name_end + 1, " %c %d %d", &state, &parent, &its_group) == 3 &&
           its_group == group;
}

static long long held_by(const char *pid)
{
    char path[300], line[256];
    long long total = 0, kb;
    snprintf(path, sizeof path, "/proc/%s/smaps_rollup", pid);
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "Pss_Anon: %lld", &kb) == 1 || sscanf(line, "Pss_Shmem: %lld", &kb) == 1)
            total += kb * 1024;
    fclose(f);
    return total;
}

static long long held_by_group(pid_t group)
{
    long long total = 0;
    DIR *all = opendir("/proc");
    for (struct dirent *d; all && (d = readdir(all)) != NULL;)
        if (d->d_name[0] >= '1' && d->d_name[0] <= '9' && in_group(d->d_name, group))
            total += held_by(d->d_name);
    if (all)
        closedir(all);
    return total;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: peak FILE COMMAND...\n");
        return 2;
    }
    pid_t child = fork();
    if (child == 0) {
        setpgid(0, 0);
        execvp(argv[2], argv + 2);
        fprintf(stderr, "peak: %s: %s\n", argv[2], strerror(errno));
        _exit(127);
    }
    if (child < 0) {
        fprintf(stderr, "peak: cannot fork: %s\n", strerror(errno));
        return 2;
    }
    setpgid(child, child);
    long long most = 0;
    int status = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
        long long held = held_by_group(child);
        most = held > most ? held : most;
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    FILE *f = fopen(argv[1], "we");
    int wrong = !f || fprintf(f, "%lld\n", most) < 0;
    if (f && fclose(f) != 0)
        wrong = 1;
    if (wrong) {
        fprintf(stderr, "peak: %s: %s\n", argv[1], strerror(errno));
        return 2;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
