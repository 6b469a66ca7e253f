/* NCCL_DEBUG: to standard output, or where NCCL_DEBUG_FILE says. */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "net.h"

enum level { NONE, VERSION, WARN, INFO };

static FILE *out;
static enum level level;
static _Thread_local char error[512];
static _Thread_local int speaker;

static enum level wanted(void)
{
    static const char *const names[] = {"NONE", "VERSION", "WARN", "INFO", "ABORT", "TRACE"};
    const char *value = getenv("NCCL_DEBUG");
    for (int i = 0; value && i < 6; i++)
        if (!strcasecmp(value, names[i]))
            return i > INFO ? INFO : (enum level)i;
    return NONE;
}

/* %h and %p in the name stand for host and process. */
static FILE *named_file(const char *pattern)
{
    char name[1024], host[256] = "";
    size_t size = 0;
    gethostname(host, sizeof host - 1);
    for (const char *at = pattern; *at && size < sizeof name - 300; at++) {
        if (at[0] != '%' || (at[1] != 'h' && at[1] != 'p')) {
            name[size++] = *at;
            continue;
        }
        at++;
        size += (size_t)(*at == 'h' ? snprintf(name + size, 256, "%s", host) : snprintf(name + size, 16, "%d", getpid()));
    }
    name[size] = 0;
    FILE *file = fopen(name, "we");
    return file ? file : stdout;
}

void log_as(int rank)
{
    speaker = rank;
}

static void head(int device, const char *kind, int dated)
{
    char host[256] = "", when[32] = "";
    gethostname(host, sizeof host - 1);
    host[strcspn(host, ".")] = 0;
    if (dated) {
        time_t now = time(NULL);
        struct tm local;
        strftime(when, sizeof when, "[%Y-%m-%d %H:%M:%S] ", localtime_r(&now, &local));
    }
    fprintf(out, "%s%s:%d:%d [%d] %s", when, host, getpid(), getpid() + (speaker < 0 ? 0 : 8 + speaker), device, kind);
}

void info(int device, const char *format, ...)
{
    va_list args;
    if (level < INFO)
        return;
    head(device, "NCCL INFO ", 0);
    va_start(args, format);
    vfprintf(out, format, args);
    va_end(args);
    fputc('\n', out);
    fflush(out);
}

void warn(int device, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(error, sizeof error, format, args);
    va_end(args);
    if (level < WARN)
        return;
    fputc('\n', out);
    head(device, "", nccl_is(22700)); /* newer ones date their warnings */
    fprintf(out, "NCCL WARN %s\n", error);
    fflush(out);
}

const char *last_error(void)
{
    return error;
}

/* Once per process, by whoever initialises first. */
void log_open(int device)
{
    static const char *const shown[] = {"NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_SOCKET_IFNAME",
                                        "NCCL_IB_DISABLE", "NCCL_IGNORE_DISABLED_P2P", "NCCL_CUMEM_ENABLE"};
    int code, version = nccl_version();
    const struct engine *cuda = engine(&code);
    const char *file = getenv("NCCL_DEBUG_FILE");
    char name[32];
    struct in_addr at;
    if (out)
        return;
    net_interface(name, sizeof name, &at.s_addr);
    level = wanted();
    out = file && level > VERSION ? named_file(file) : stdout;
    log_as(-1);
    info(device, "Bootstrap : Using %s:%s<0>", name, inet_ntoa(at));
    if (cuda)
        info(device, "cudaDriverVersion %d", cuda->cuda_version());
    if (level >= VERSION) {
        fprintf(out, "NCCL version %d.%d.%d+cuda%s\n", version / 10000, version / 100 % 100, version % 100, NCCL_CUDA);
        fflush(out);
    }
    info(device, "NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.");
    info(device, "NET/IB : No device found.");
    info(device, "NET/Socket : Using [0]%s:%s<0>", name, inet_ntoa(at));
    info(device, "Using network Socket");
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
        if (getenv(shown[i]))
            info(device, strstr(shown[i], "LEVEL") ? "%s set by environment to %s" : "%s set by environment to %s.",
                 shown[i], getenv(shown[i]));
}
