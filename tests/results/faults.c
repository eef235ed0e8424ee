/* Faults below file operations: preloaded, it counts them, and makes one of them fail or crash. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OFF, COUNT, CRASH, FAIL, SHORT };
static int mode = OFF, at = -1, count = 0, fault = EIO;

void faults_arm(int new_mode, int new_at, int error) {
    mode = new_mode; at = new_at; fault = error; count = 0;
}
int faults_count(void) { return count; }

#define REAL(name) static __typeof__(&name) real; if (!real) real = dlsym(RTLD_NEXT, #name)

/* 1: fail this operation. A crash is after an operation, so before the next one. */
static int now(void) {
    if (mode == OFF) return 0;
    int number = count++;
    if (number != at) return 0;
    if (mode == CRASH) _exit(99);
    if (mode == FAIL) { errno = fault; return 1; }
    return mode == SHORT;
}

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    if (fd > 2 && now()) return mode == SHORT ? real(fd, data, size > 1 ? size / 2 : size) : -1;
    return real(fd, data, size);
}
int fsync(int fd) { REAL(fsync); return now() && mode == FAIL ? -1 : real(fd); }
int rename(const char *a, const char *b) { REAL(rename); return now() && mode == FAIL ? -1 : real(a, b); }
int renameat2(int f, const char *a, int t, const char *b, unsigned flags) {
    REAL(renameat2); return now() && mode == FAIL ? -1 : real(f, a, t, b, flags);
}
int mkdir(const char *a, mode_t m) { REAL(mkdir); return now() && mode == FAIL ? -1 : real(a, m); }
int unlink(const char *a) { REAL(unlink); return now() && mode == FAIL ? -1 : real(a); }
int unlinkat(int f, const char *a, int flags) { REAL(unlinkat); return now() && mode == FAIL ? -1 : real(f, a, flags); }
int rmdir(const char *a) { REAL(rmdir); return now() && mode == FAIL ? -1 : real(a); }
int chmod(const char *a, mode_t m) { REAL(chmod); return now() && mode == FAIL ? -1 : real(a, m); }
static int creates(int flags) { return mode != OFF && (flags & O_CREAT) && now() && mode == FAIL; }
#define OPEN(name) \
int name(const char *path, int flags, ...) { \
    REAL(name); va_list list; va_start(list, flags); mode_t m = va_arg(list, mode_t); va_end(list); \
    return creates(flags) ? -1 : real(path, flags, m); }
OPEN(open)
OPEN(open64)
