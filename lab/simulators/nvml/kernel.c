/* What the kernel says, for a machine with a real one. These keys of board.conf name files of it; without them the state
 * files alone say what is loaded and present:
 *   driver.version_file=/proc/driver/nvidia/version  the version of the loaded module; no file: none is loaded
 *   driver.module=/sys/module/nvidia                 its inode is another one after each loading
 *   bus.devices=/sys/bus/pci/devices                 a GPU without a driver there is absent; one whose configuration
 *                                                    space reads as ones is lost */
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim.h"

/* The first word of the file that is a version: `NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  Thu ...` */
static const char *version_in(const char *path)
{
    static _Thread_local char word[64];
    FILE *file = fopen(path, "re");
    int found = 0;
    while (file && !found && fscanf(file, "%63s", word) == 1)
        found = isdigit((unsigned char)word[0]) && strchr(word, '.') && word[strspn(word, "0123456789.")] == 0;
    if (file)
        fclose(file);
    return found ? word : NULL;
}

const char *driver_loaded(void)
{
    const char *path = conf_str("driver.version_file");
    const char *loaded = path ? version_in(path) : conf_str("driver.loaded");
    return loaded && strcmp(loaded, "none") ? loaded : NULL;
}

long driver_instance(void)
{
    const char *path = conf_str("driver.module");
    struct stat found;
    if (!path)
        return conf_int("driver.instance", 0);
    return stat(path, &found) ? 0 : (long)found.st_ino;
}

/* The path of a file of the GPU's device; NULL when the kernel is not asked. */
static const char *device_file(int gpu, const char *name)
{
    static _Thread_local char path[512];
    const char *devices = conf_str("bus.devices");
    struct pci_place place = gpu_place(gpu);
    if (!devices)
        return NULL;
    snprintf(path, sizeof path, "%s/%04x:%02x:%02x.%x/%s", devices, place.domain, place.bus, place.device,
             place.function, name);
    return path;
}

int gpu_driven(int gpu)
{
    const char *driver = device_file(gpu, "driver");
    return !driver || !access(driver, F_OK);
}

int gpu_off_the_bus(int gpu)
{
    const char *path = device_file(gpu, "config");
    unsigned char vendor[2] = {0, 0};
    if (gpu_without_power(gpu))
        return 1;
    FILE *file = path ? fopen(path, "re") : NULL;
    if (!file)
        return path != NULL;
    size_t size = fread(vendor, 1, sizeof vendor, file);
    fclose(file);
    return size != sizeof vendor || (vendor[0] == 0xff && vendor[1] == 0xff);
}
