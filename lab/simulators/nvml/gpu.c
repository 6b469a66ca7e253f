/* One GPU's values (looked up in state, nvram, board and model) and the settings a driver keeps for it. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"

int gpu_count(void)
{
    long count = conf_int("gpus", 0);
    return count < 0 ? 0 : count > MAX_GPUS ? MAX_GPUS : (int)count;
}

static const char *look_up(int gpu, const char *key)
{
    char name[160];
    snprintf(name, sizeof name, "gpu%d.%s", gpu, key);
    const char *value = conf_str(name);
    if (value)
        return value;
    snprintf(name, sizeof name, "gpu%d.model", gpu);
    const char *model = conf_str(name);
    if (!model)
        return NULL;
    snprintf(name, sizeof name, "model.%s.%s", model, key);
    return conf_str(name);
}

const char *gpu_str(int gpu, const char *format, ...)
{
    char key[128];
    va_list args;
    va_start(args, format);
    vsnprintf(key, sizeof key, format, args);
    va_end(args);
    return look_up(gpu, key);
}

long gpu_int(int gpu, long absent, const char *format, ...)
{
    char key[128];
    va_list args;
    va_start(args, format);
    vsnprintf(key, sizeof key, format, args);
    va_end(args);
    const char *value = look_up(gpu, key);
    return value ? strtol(value, NULL, 0) : absent;
}

int gpu_arch(int gpu)
{
    return (int)gpu_int(gpu, VOLTA, "arch");
}

unsigned give_text(int gpu, const char *key, char *out, unsigned size)
{
    const char *value = look_up(gpu, key);
    if (!out)
        return INVALID_ARGUMENT;
    if (!value)
        return NOT_SUPPORTED;
    if (strlen(value) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return OK;
}

unsigned give_int(int gpu, const char *key, unsigned *out)
{
    const char *value = look_up(gpu, key);
    if (!out)
        return INVALID_ARGUMENT;
    if (!value)
        return NOT_SUPPORTED;
    *out = (unsigned)strtol(value, NULL, 0);
    return OK;
}

void gpu_put(int gpu, enum store store, const char *key, const char *format, ...)
{
    char name[128], value[512];
    va_list args;
    va_start(args, format);
    vsnprintf(value, sizeof value, format, args);
    va_end(args);
    snprintf(name, sizeof name, "gpu%d.%s", gpu, key);
    edit_put(store, name, value);
}

/* Settings live in gpuN.set.*. They end with the driver (driver.instance changes), and, unless persistence is on, with
 * the last client: gpuN.set.epoch is the period of clients in which they were made. */

static int made_by_this_driver(int gpu)
{
    return gpu_int(gpu, 0, "set.instance") == driver_instance();
}

static int settings_alive(int gpu)
{
    return made_by_this_driver(gpu) &&
           (gpu_int(gpu, 0, "set.persistence") || gpu_int(gpu, -1, "set.epoch") == clients_epoch());
}

const char *setting_str(int gpu, const char *name)
{
    if (!strcmp(name, "persistence") ? !made_by_this_driver(gpu) : !settings_alive(gpu))
        return NULL;
    return gpu_str(gpu, "set.%s", name);
}

long setting_int(int gpu, const char *name, long absent)
{
    const char *value = setting_str(gpu, name);
    return value ? strtol(value, NULL, 0) : absent;
}

void settings_reset(int gpu)
{
    char prefix[32];
    snprintf(prefix, sizeof prefix, "gpu%d.set.", gpu);
    edit_drop_prefix(VOLATILE, prefix);
}

int setting_begin(int gpu)
{
    if (geteuid())
        return NO_PERMISSION;
    int code = edit_begin();
    if (code)
        return code;
    if (!settings_alive(gpu))
        settings_reset(gpu);
    gpu_put(gpu, VOLATILE, "set.epoch", "%ld", clients_epoch());
    gpu_put(gpu, VOLATILE, "set.instance", "%ld", driver_instance());
    return OK;
}

void setting_put(int gpu, const char *name, unsigned value)
{
    if (gpu_int(gpu, 0, "fault.deaf"))
        return;
    char key[64];
    snprintf(key, sizeof key, "set.%s", name);
    char text[16] = "";
    if (value)
        snprintf(text, sizeof text, "%u", value);
    gpu_put(gpu, VOLATILE, key, "%s", text);
}
