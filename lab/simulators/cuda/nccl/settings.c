/* Which NCCL this is, and what NCCL_* variables say: the environment, then ~/.nccl.conf, then /etc/nccl.conf. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl.h"

static int parsed(const char *text)
{
    int major = 0, minor = 0, patch = 0;
    return sscanf(text, "%d.%d.%d", &major, &minor, &patch) == 3 ? major * 10000 + minor * 100 + patch : 0;
}

int nccl_version(void)
{
    int code, version = 0;
    const struct engine *cuda = engine(&code);
    const char *set = cuda ? cuda->setting("nccl.version") : NULL;
    if (set)
        version = parsed(set);
    return version ? version : parsed(NCCL_VERSION);
}

int nccl_is(int version)
{
    return nccl_version() >= version;
}

static void read_file(const char *path)
{
    FILE *file = fopen(path, "re");
    char line[1024];
    while (file && fgets(line, sizeof line, file)) {
        char *name = line + strspn(line, " \t"), *equals = strchr(name, '=');
        line[strcspn(line, "\r\n")] = 0;
        if (!equals || *name == '#')
            continue;
        *equals = 0;
        for (char *end = equals; end > name && isspace((unsigned char)end[-1]);)
            *--end = 0;
        setenv(name, equals + 1 + strspn(equals + 1, " \t"), 0);
    }
    if (file)
        fclose(file);
}

void read_settings(void)
{
    static int read;
    char path[512];
    const char *home = getenv("HOME"), *own = getenv("NCCL_CONF_FILE");
    if (read++)
        return;
    if (own)
        read_file(own);
    snprintf(path, sizeof path, "%s/.nccl.conf", home ? home : "");
    read_file(path);
    read_file("/etc/nccl.conf");
}

long setting(const char *name, long absent)
{
    char variable[64];
    snprintf(variable, sizeof variable, "NCCL_%s", name);
    const char *value = getenv(variable);
    return value && *value ? strtol(value, NULL, 0) : absent;
}
