/* Remembers what a power loss would leave of a directory: preloaded into a process, it copies each file of
 * $LEAF_POWER_DIR when the file was synced, and writes down the names when the directory was synced.
 *
 *   $LEAF_POWER_SHADOW/content/<inode>   what the file held at its last sync
 *   $LEAF_POWER_SHADOW/names             "<inode> <name>" for each entry at the directory's last sync
 *
 * Both are replaced by a rename, so that a kill in between leaves what was there before. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

static void fail(const char *what) {
    perror(what);
    abort();
}

static void keep_content(int file, ino_t inode, const char *shadow) {
    char new[PATH_MAX], kept[PATH_MAX], own[64], buffer[65536];
    snprintf(new, sizeof new, "%s/new", shadow);
    snprintf(kept, sizeof kept, "%s/content/%lu", shadow, (unsigned long)inode);
    int to = open(new, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (to < 0) fail("power_loss: open");
    /* Read through the caller's descriptor: to close a second one would end SQLite's locks on the file. */
    int from = file;
    if (pread(file, buffer, 1, 0) < 0 && errno == EBADF) {
        snprintf(own, sizeof own, "/proc/self/fd/%d", file);
        from = open(own, O_RDONLY | O_CLOEXEC);
    }
    off_t at = 0;
    ssize_t length;
    while ((length = pread(from, buffer, sizeof buffer, at)) > 0) {
        if (write(to, buffer, length) != length) fail("power_loss: write");
        at += length;
    }
    if (length < 0) fail("power_loss: read");
    if (from != file) close(from);
    close(to);
    if (rename(new, kept) != 0) fail("power_loss: rename");
}

static void keep_names(const char *directory, const char *shadow) {
    char new[PATH_MAX], kept[PATH_MAX];
    snprintf(new, sizeof new, "%s/new", shadow);
    snprintf(kept, sizeof kept, "%s/names", shadow);
    DIR *entries = opendir(directory);
    FILE *to = fopen(new, "we");
    if (!entries || !to) fail("power_loss: open");
    for (struct dirent *entry; (entry = readdir(entries));)
        if (entry->d_type == DT_REG) fprintf(to, "%lu %s\n", (unsigned long)entry->d_ino, entry->d_name);
    closedir(entries);
    fclose(to);
    if (rename(new, kept) != 0) fail("power_loss: rename");
}

static int synced(int file, int result) {
    const char *directory = getenv("LEAF_POWER_DIR"), *shadow = getenv("LEAF_POWER_SHADOW");
    char link[64], path[PATH_MAX];
    struct stat is;
    if (result != 0 || !directory || !shadow || fstat(file, &is) != 0) return result;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return result;
    path[length] = 0;
    size_t prefix = strlen(directory);
    if (strncmp(path, directory, prefix) != 0) return result;
    pthread_mutex_lock(&one_at_a_time);
    if (S_ISDIR(is.st_mode) && path[prefix] == 0) keep_names(directory, shadow);
    else if (S_ISREG(is.st_mode) && path[prefix] == '/') keep_content(file, is.st_ino, shadow);
    pthread_mutex_unlock(&one_at_a_time);
    return result;
}

int fsync(int file) {
    static int (*next)(int);
    if (!next) next = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    return synced(file, next(file));
}

int fdatasync(int file) {
    static int (*next)(int);
    if (!next) next = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    return synced(file, next(file));
}
