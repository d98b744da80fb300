/* Counts, kills at, fails at or records the I/O calls of a process: LD_PRELOAD=io_shim.so TFB_IO_CONTROL=FILE.
 *
 * FILE holds a struct control that whoever attacks maps, too (flash_bench.py has the same layout). A call counts when
 * its class is in `classes` and its path or descriptor is below one of `prefixes`, or is a pipe. Call number `at` is
 * what `mode` says happens to: the process `pid` is killed before it, or it fails with `error`. RECORD appends what
 * changes files to the file `log`.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <dirent.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OFF, COUNT, KILL, FAIL, RECORD };
enum { CHANGING = 1, READING = 2, PIPES = 4 };
enum { PREFIXES = 4, PATH_BYTES = 512 };

struct control {
    int32_t mode, classes, error, pid;
    int64_t at, count;
    char hit[PATH_BYTES]; /* the call `at`, once it was reached */
    char log[PATH_BYTES];
    char prefixes[PREFIXES][PATH_BYTES];
};

static struct control *control;
static int spared; /* this process serves the attack: its calls do not count */

void tfb_io_spare(int yes) { spared = yes; }

__attribute__((constructor)) static void start(void)
{
    const char *path = getenv("TFB_IO_CONTROL");
    int fd = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR) : -1;
    if (fd < 0) return;
    void *memory = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (memory != MAP_FAILED) control = memory;
}

/* The absolute path that `name`, relative to `dirfd`, means; of `dirfd` itself where `name` is NULL. */
static void absolute(int dirfd, const char *name, char *path)
{
    char link[64];
    size_t length = 0;
    path[0] = 0;
    if (!name || name[0] != '/') {
        if (dirfd == AT_FDCWD) {
            if (!getcwd(path, PATH_BYTES)) path[0] = 0;
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", dirfd);
            long got = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_BYTES - 1);
            path[got < 0 ? 0 : got] = 0;
        }
        length = strlen(path);
    }
    if (name) snprintf(path + length, PATH_BYTES - length, "%s%s", length ? "/" : "", name);
}

static int below_prefix(const char *path)
{
    for (int i = 0; i < PREFIXES; ++i) {
        size_t length = strlen(control->prefixes[i]);
        if (length && strncmp(path, control->prefixes[i], length) == 0) return 1;
    }
    return 0;
}

/* Whether the call must fail; errno is set then. Does not come back where the process is killed. */
static int struck(int class, const char *call, const char *path)
{
    if (!control || spared || control->mode == OFF || control->mode == RECORD) return 0;
    if (!(control->classes & class)) return 0;
    if (class != PIPES && !below_prefix(path)) return 0;
    if (__atomic_fetch_add(&control->count, 1, __ATOMIC_SEQ_CST) != control->at || control->mode == COUNT) return 0;
    snprintf(control->hit, sizeof control->hit, "%s %s", call, path);
    if (control->mode == KILL) {
        kill(control->pid ? control->pid : getpid(), SIGKILL);
        kill(getpid(), SIGKILL);
    }
    errno = control->error;
    return 1;
}

static int struck_at(int class, const char *call, int dirfd, const char *name)
{
    char path[PATH_BYTES];
    if (!control || control->mode == OFF || control->mode == RECORD) return 0;
    absolute(dirfd, name, path);
    return struck(class, call, path);
}

static int struck_fd(int class, const char *call, int fd)
{
    struct stat facts;
    if (!control || control->mode == OFF || control->mode == RECORD) return 0;
    if (syscall(SYS_fstat, fd, &facts)) return 0;
    if (S_ISFIFO(facts.st_mode) || S_ISSOCK(facts.st_mode)) return struck(PIPES, call, "a pipe");
    return struck_at(class, call, fd, NULL);
}

struct record {
    char what[8];
    uint64_t inode;
    int64_t offset;
    uint32_t first_bytes, second_bytes;
};

/* Append what was done, if it was done (`result` 0 or more) below a prefix. */
static void note(const char *what, int64_t result, int fd, int64_t offset, const char *path, const void *data, size_t bytes)
{
    int saved = errno;
    struct stat facts = {0};
    struct record record = {{0}, 0, offset, 0, (uint32_t)bytes};
    char place[PATH_BYTES];
    if (control && control->mode == RECORD && result >= 0) {
        if (fd >= 0 && syscall(SYS_fstat, fd, &facts) == 0) record.inode = facts.st_ino;
        if (!path) {
            absolute(fd, NULL, place);
            path = place;
        }
        if (below_prefix(path) && (fd < 0 || S_ISREG(facts.st_mode) || S_ISDIR(facts.st_mode))) {
            strncpy(record.what, what, sizeof record.what);
            record.first_bytes = (uint32_t)strlen(path);
            int log = (int)syscall(SYS_openat, AT_FDCWD, control->log, O_WRONLY | O_APPEND | O_CREAT, 0600);
            struct iovec parts[] = {{&record, sizeof record}, {(void *)path, strlen(path)}, {(void *)data, bytes}};
            syscall(SYS_writev, log, parts, 3);
            syscall(SYS_close, log);
        }
    }
    errno = saved;
}

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

/* ------------------------------------------------------------------------------------------------ open and read */

static int opened(const char *call, int dirfd, const char *name, int flags, mode_t mode)
{
    char path[PATH_BYTES];
    struct stat facts;
    int changing = flags & (O_CREAT | O_TRUNC);
    if (struck_at(changing ? CHANGING : READING, call, dirfd, name)) return -1;
    int old = changing ? syscall(SYS_newfstatat, dirfd, name, &facts, 0) == 0 : 1;
    int fd = (int)syscall(SYS_openat, dirfd, name, flags, mode);
    absolute(dirfd, name, path);
    if (fd >= 0 && !old) note("create", 0, fd, 0, path, NULL, 0);
    if (fd >= 0 && old && (flags & O_TRUNC)) note("cut", 0, fd, 0, path, NULL, 0);
    return fd;
}

#define MODE mode_t mode = 0; if (flags & (O_CREAT | O_TMPFILE)) { va_list list; va_start(list, flags); mode = va_arg(list, mode_t); va_end(list); }

int open(const char *name, int flags, ...) { MODE return opened("open", AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { MODE return opened("open", AT_FDCWD, name, flags, mode); }
int openat(int dirfd, const char *name, int flags, ...) { MODE return opened("openat", dirfd, name, flags, mode); }
int openat64(int dirfd, const char *name, int flags, ...) { MODE return opened("openat", dirfd, name, flags, mode); }

ssize_t read(int fd, void *data, size_t bytes)
{
    return struck_fd(READING, "read", fd) ? -1 : syscall(SYS_read, fd, data, bytes);
}
ssize_t preadv64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags)
{
    REAL(preadv64v2);
    return struck_fd(READING, "preadv", fd) ? -1 : real(fd, parts, count, offset, flags);
}
int stat64(const char *name, struct stat64 *facts)
{
    return struck_at(READING, "stat", AT_FDCWD, name) ? -1 : (int)syscall(SYS_newfstatat, AT_FDCWD, name, facts, 0);
}
int lstat64(const char *name, struct stat64 *facts)
{
    if (struck_at(READING, "lstat", AT_FDCWD, name)) return -1;
    return (int)syscall(SYS_newfstatat, AT_FDCWD, name, facts, AT_SYMLINK_NOFOLLOW);
}
int fstatat64(int dirfd, const char *name, struct stat64 *facts, int flags)
{
    return struck_at(READING, "fstatat", dirfd, name) ? -1 : (int)syscall(SYS_newfstatat, dirfd, name, facts, flags);
}
int statvfs64(const char *name, struct statvfs64 *facts)
{
    REAL(statvfs64);
    return struck_at(READING, "statvfs", AT_FDCWD, name) ? -1 : real(name, facts);
}
ssize_t readlink(const char *name, char *target, size_t bytes)
{
    if (struck_at(READING, "readlink", AT_FDCWD, name)) return -1;
    return syscall(SYS_readlinkat, AT_FDCWD, name, target, bytes);
}
DIR *opendir(const char *name)
{
    REAL(opendir);
    return struck_at(READING, "opendir", AT_FDCWD, name) ? NULL : real(name);
}
struct dirent64 *readdir64(DIR *folder)
{
    REAL(readdir64);
    return struck_fd(READING, "readdir", dirfd(folder)) ? NULL : real(folder);
}

/* ------------------------------------------------------------------------------------------------------- change */

ssize_t write(int fd, const void *data, size_t bytes)
{
    if (struck_fd(CHANGING, "write", fd)) return -1;
    ssize_t done = syscall(SYS_write, fd, data, bytes);
    if (done > 0) note("write", 0, fd, syscall(SYS_lseek, fd, 0, SEEK_CUR) - done, NULL, data, (size_t)done);
    return done;
}
int fsync(int fd)
{
    int done = struck_fd(CHANGING, "fsync", fd) ? -1 : (int)syscall(SYS_fsync, fd);
    note("fsync", done, fd, 0, NULL, NULL, 0);
    return done;
}
int ftruncate64(int fd, off64_t bytes)
{
    int done = struck_fd(CHANGING, "ftruncate", fd) ? -1 : (int)syscall(SYS_ftruncate, fd, bytes);
    note("cut", done, fd, bytes, NULL, NULL, 0);
    return done;
}
static int renamed(int from_fd, const char *from, int to_fd, const char *to)
{
    char old[PATH_BYTES], new[PATH_BYTES];
    absolute(from_fd, from, old);
    absolute(to_fd, to, new);
    int done = struck(CHANGING, "rename", new) ? -1 : (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, 0);
    note("rename", done, -1, 0, new, old, strlen(old));
    return done;
}
int rename(const char *from, const char *to) { return renamed(AT_FDCWD, from, AT_FDCWD, to); }
int renameat(int a, const char *from, int b, const char *to) { return renamed(a, from, b, to); }

static int unlinked(int dirfd, const char *name, int flags)
{
    char path[PATH_BYTES];
    absolute(dirfd, name, path);
    int done = struck(CHANGING, flags ? "rmdir" : "unlink", path) ? -1 : (int)syscall(SYS_unlinkat, dirfd, name, flags);
    note("unlink", done, -1, 0, path, NULL, 0);
    return done;
}
int unlink(const char *name) { return unlinked(AT_FDCWD, name, 0); }
int unlinkat(int dirfd, const char *name, int flags) { return unlinked(dirfd, name, flags); }
int rmdir(const char *name) { return unlinked(AT_FDCWD, name, AT_REMOVEDIR); }

static int made(int dirfd, const char *name, mode_t mode)
{
    char path[PATH_BYTES];
    absolute(dirfd, name, path);
    int done = struck(CHANGING, "mkdir", path) ? -1 : (int)syscall(SYS_mkdirat, dirfd, name, mode);
    note("mkdir", done, -1, 0, path, NULL, 0);
    return done;
}
int mkdir(const char *name, mode_t mode) { return made(AT_FDCWD, name, mode); }
int mkdirat(int dirfd, const char *name, mode_t mode) { return made(dirfd, name, mode); }

int symlink(const char *target, const char *name)
{
    char path[PATH_BYTES];
    absolute(AT_FDCWD, name, path);
    int done = struck(CHANGING, "symlink", path) ? -1 : (int)syscall(SYS_symlinkat, target, AT_FDCWD, name);
    note("symlink", done, -1, 0, path, target, strlen(target));
    return done;
}
int utimensat(int dirfd, const char *name, const struct timespec *times, int flags)
{
    if (struck_at(CHANGING, "utimensat", dirfd, name)) return -1;
    return (int)syscall(SYS_utimensat, dirfd, name, times, flags);
}
