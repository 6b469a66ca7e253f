/* Power draw, limits, temperature, fans and utilisation. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"
#include "structs.h"

/* From Ampere on but for the A100 it is the average of a second (nvml.h); older ones show each moment. */
static int averages(int gpu)
{
    const char *capability = gpu_str(gpu, "compute_capability");
    return gpu_arch(gpu) >= AMPERE && !(capability && !strcmp(capability, "8.0"));
}

NVML(nvmlDeviceGetPowerUsage)(int gpu, unsigned *out)
{
    struct moment now = gpu_now(gpu);
    *out = averages(gpu) ? now.average_mw : now.power_mw;
    return OK;
}

NVML(nvmlDeviceGetPowerManagementMode)(int gpu, unsigned *out)
{
    *out = gpu_str(gpu, "power.default_mw") != NULL;
    return OK;
}

NVML(nvmlDeviceGetPowerManagementDefaultLimit)(int gpu, unsigned *out)
{
    return give_int(gpu, "power.default_mw", out);
}

NVML(nvmlDeviceGetPowerManagementLimitConstraints)(int gpu, unsigned *min, unsigned *max)
{
    unsigned code = give_int(gpu, "power.min_mw", min);
    return code ? code : give_int(gpu, "power.max_mw", max);
}

NVML(nvmlDeviceGetPowerManagementLimit)(int gpu, unsigned *out)
{
    if (!gpu_str(gpu, "power.default_mw"))
        return NOT_SUPPORTED;
    *out = power_limit_mw(gpu);
    return OK;
}

NVML(nvmlDeviceGetEnforcedPowerLimit)(int gpu, unsigned *out)
{
    return sim_nvmlDeviceGetPowerManagementLimit(gpu, out);
}

NVML(nvmlDeviceSetPowerManagementLimit)(int gpu, unsigned limit_mw)
{
    unsigned min, max;
    unsigned code = sim_nvmlDeviceGetPowerManagementLimitConstraints(gpu, &min, &max);
    if (code)
        return code;
    if (geteuid())
        return NO_PERMISSION;
    if (limit_mw < min || limit_mw > max)
        return INVALID_ARGUMENT;
    if ((code = (unsigned)setting_begin(gpu)))
        return code;
    setting_put(gpu, "power_limit_mw", limit_mw);
    return (unsigned)edit_commit();
}

NVML(nvmlDeviceSetPowerManagementLimit_v2)(int gpu, const struct power_value_v2 *wanted)
{
    if (wanted->version != VERSION_TAG(power_value_v2, 2))
        return ARGUMENT_VERSION_MISMATCH;
    return wanted->scope ? NOT_SUPPORTED : sim_nvmlDeviceSetPowerManagementLimit(gpu, wanted->power_mw);
}

NVML(nvmlDeviceGetTotalEnergyConsumption)(int gpu, unsigned long long *out)
{
    *out = (unsigned long long)gpu_int(gpu, (long)gpu_now(gpu).energy_mj, "energy_mj");
    return gpu_arch(gpu) >= VOLTA ? OK : NOT_SUPPORTED;
}

NVML(nvmlDeviceGetTemperature)(int gpu, unsigned sensor, unsigned *out)
{
    if (sensor)
        return INVALID_ARGUMENT;
    *out = gpu_now(gpu).temp_c;
    return OK;
}

NVML(nvmlDeviceGetTemperatureThreshold)(int gpu, unsigned kind, unsigned *out)
{
    static const char *const keys[] = {"temp.shutdown",   "temp.slowdown",   "temp.memory_max", "temp.gpu_max",
                                       "temp.target_min", "temp.target_now", "temp.target_max"};
    return kind < sizeof keys / sizeof *keys ? give_int(gpu, keys[kind], out) : NOT_SUPPORTED;
}

NVML(nvmlDeviceGetNumFans)(int gpu, unsigned *out)
{
    *out = (unsigned)gpu_int(gpu, 0, "fans");
    return OK;
}

NVML(nvmlDeviceGetFanSpeed)(int gpu, unsigned *out)
{
    if (!gpu_int(gpu, 0, "fans"))
        return NOT_SUPPORTED;
    *out = gpu_now(gpu).fan_percent;
    return OK;
}

NVML(nvmlDeviceGetFanSpeed_v2)(int gpu, unsigned fan, unsigned *out)
{
    return (long)fan < gpu_int(gpu, 0, "fans") ? sim_nvmlDeviceGetFanSpeed(gpu, out) : INVALID_ARGUMENT;
}

/* All fans of a GPU turn alike here. 0 gives the choice back to the GPU. */
static unsigned set_fans(int gpu, unsigned fan, unsigned percent)
{
    if (!gpu_int(gpu, 0, "fans"))
        return NOT_SUPPORTED;
    if (geteuid())
        return NO_PERMISSION;
    if ((long)fan >= gpu_int(gpu, 0, "fans") || percent > 100)
        return INVALID_ARGUMENT;
    unsigned code = (unsigned)setting_begin(gpu);
    if (code)
        return code;
    setting_put(gpu, "fan_percent", percent);
    return (unsigned)edit_commit();
}

NVML(nvmlDeviceSetFanSpeed_v2)(int gpu, unsigned fan, unsigned percent)
{
    return percent < 30 ? INVALID_ARGUMENT : set_fans(gpu, fan, percent);
}

NVML(nvmlDeviceSetDefaultFanSpeed_v2)(int gpu, unsigned fan)
{
    return set_fans(gpu, fan, 0);
}

NVML(nvmlDeviceGetUtilizationRates)(int gpu, struct utilization *out)
{
    struct moment now = gpu_now(gpu);
    *out = (struct utilization){now.util, now.memory_util};
    return OK;
}

static unsigned idle_engine(unsigned *percent, unsigned *period_us)
{
    *percent = 0;
    *period_us = 167000;
    return OK;
}

NVML(nvmlDeviceGetEncoderUtilization)(int gpu, unsigned *percent, unsigned *period_us)
{
    (void)gpu;
    return idle_engine(percent, period_us);
}

NVML(nvmlDeviceGetDecoderUtilization)(int gpu, unsigned *percent, unsigned *period_us)
{
    (void)gpu;
    return idle_engine(percent, period_us);
}

NVML(nvmlDeviceGetJpgUtilization)(int gpu, unsigned *percent, unsigned *period_us)
{
    (void)gpu;
    return idle_engine(percent, period_us);
}

NVML(nvmlDeviceGetOfaUtilization)(int gpu, unsigned *percent, unsigned *period_us)
{
    (void)gpu;
    return idle_engine(percent, period_us);
}

NVML(nvmlDeviceGetEncoderStats)(int gpu, unsigned *running, unsigned *fps, unsigned *latency)
{
    (void)gpu;
    *running = *fps = *latency = 0;
    return OK;
}

NVML(nvmlDeviceGetFBCStats)(int gpu, struct fbc_stats *out)
{
    (void)gpu;
    *out = (struct fbc_stats){0, 0, 0};
    return OK;
}
