/* nvmlDeviceGetFieldValues: values by number, each with its own code. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sim.h"
#include "structs.h"

unsigned nvlink_field(int gpu, unsigned field, unsigned link, struct field_value *out);

static unsigned power_field(int gpu, struct field_value *out)
{
    static const char *const limits[] = {"power.min_mw", "power.max_mw", "power.default_mw"};
    out->value_type = VALUE_UINT;
    if (out->scope)
        return NOT_SUPPORTED; /* the module and the memory have no meters of their own here */
    switch (out->field) {
    case 185:
    case 186:
        if (out->field == 185 && gpu_arch(gpu) < AMPERE)
            return NOT_SUPPORTED;
        out->value.ui = out->field == 185 ? gpu_now(gpu).average_mw : gpu_now(gpu).power_mw;
        return OK;
    case 187:
    case 188:
    case 189:
        return give_int(gpu, limits[out->field - 187], &out->value.ui);
    case 190:
    case 192:
        out->value.ui = power_limit_mw(gpu);
        return gpu_str(gpu, "power.default_mw") ? OK : NOT_SUPPORTED;
    }
    return NOT_SUPPORTED;
}

static unsigned number(struct field_value *out, long value)
{
    out->value_type = VALUE_UINT;
    out->value.ui = (uint32_t)value;
    return OK;
}

/* From Ada on: how far the limits are from the temperature at which the GPU slows down, in degrees. */
static unsigned limit_margin(int gpu, struct field_value *out)
{
    static const char *const keys[] = {"temp.shutdown", "temp.slowdown", "temp.memory_max", "temp.gpu_max"};
    const char *key = keys[out->field - 193];
    if (!gpu_int(gpu, 0, "tlimit") || !gpu_str(gpu, "%s", key))
        return NOT_SUPPORTED;
    out->value_type = VALUE_INT;
    out->value.i = (int32_t)(gpu_int(gpu, 0, "temp.gpu_max") - gpu_int(gpu, 0, "%s", key));
    return OK;
}

/* The number of the step that the GPU asks for: recovery_action has it in nvidia-smi's words. */
static long recovery_action(int gpu)
{
    static const char *const steps[] = {"None", "Reset", "Reboot", "Drain P2P", "Drain and Reset"};
    const char *step = gpu_str(gpu, "recovery_action");
    for (size_t i = 0; step && i < sizeof steps / sizeof *steps; i++)
        if (!strcmp(step, steps[i]))
            return (long)i;
    return 0;
}

/* nvidia-smi of 470 asks for none of the fields from 161 on, that of 535 for many. Assumed: the library of 470 does not know them. */
static int knows(unsigned field)
{
    return field < 161 || atoi(LIBRARY_VERSION) > 470;
}

static unsigned one_field(int gpu, struct field_value *out)
{
    unsigned field = out->field;
    if (!knows(field))
        return INVALID_ARGUMENT;
    if (field >= 185 && field <= 192)
        return power_field(gpu, out);
    if ((field >= 161 && field <= 166) || field == 146)
        return nvlink_field(gpu, field, out->scope, out);
    if ((field >= 84 && field <= 89) || (field >= 132 && field <= 137))
        return nvlink_field(gpu, 164, field < 90 ? field - 84 : field - 126, out);
    switch (field) {
    case 82:
        return gpu_int(gpu, 0, "memory_sensor") ? number(out, gpu_now(gpu).memory_temp_c) : NOT_SUPPORTED;
    case 90:
        return nvlink_field(gpu, 164, 0, out);
    case 91:
        return link_count(gpu) ? number(out, link_count(gpu)) : NOT_SUPPORTED;
    case 94:
        return number(out, gpu_int(gpu, 0, "pcie.replays"));
    case 95:
        return number(out, 0);
    case 147:
        return link_count(gpu) ? number(out, has_nvswitches() && fabric_runs() ? link_count(gpu) : 0) : NOT_SUPPORTED;
    case 193:
    case 194:
    case 195:
    case 196:
        return limit_margin(gpu, out);
    case 226:
        return number(out, recovery_action(gpu) == 1 || recovery_action(gpu) == 2);
    case 227:
        return number(out, recovery_action(gpu) == 4);
    case 230:
        return number(out, recovery_action(gpu));
    }
    return NOT_SUPPORTED;
}

NVML(nvmlDeviceGetFieldValues)(int gpu, int count, struct field_value *values)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (count < 1 || !values)
        return INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) {
        values[i].timestamp_us = now.tv_sec * 1000000 + now.tv_nsec / 1000;
        values[i].latency_us = 0;
        values[i].code = one_field(gpu, &values[i]);
    }
    return OK;
}

/* Samples: the present value, once. */
NVML(nvmlDeviceGetSamples)
(int gpu, unsigned kind, unsigned long long since_us, unsigned *type, unsigned *count, struct sample *out)
{
    struct moment now = gpu_now(gpu);
    struct timespec clock;
    (void)since_us;
    clock_gettime(CLOCK_REALTIME, &clock);
    *type = VALUE_UINT;
    *count = 1;
    if (!out)
        return OK;
    out->timestamp_us = (uint64_t)clock.tv_sec * 1000000;
    switch (kind) {
    case 0:
        out->value.ui = now.power_mw;
        return OK;
    case 1:
        out->value.ui = now.util;
        return OK;
    case 2:
        out->value.ui = now.memory_util;
        return OK;
    case 5:
        out->value.ui = now.graphics_mhz;
        return OK;
    case 6:
        out->value.ui = now.memory_mhz;
        return OK;
    }
    return NOT_SUPPORTED;
}

NVML(nvmlDeviceGetViolationStatus)(int gpu, unsigned policy, struct violation_time *out)
{
    (void)gpu;
    *out = (struct violation_time){0, 0};
    return policy > 11 ? INVALID_ARGUMENT : OK;
}
