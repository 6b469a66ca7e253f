/* Simulated NVIDIA GPUs and NVSwitches, and the PCIe ports above them, as PCI devices of an unmodified QEMU.
 *
 * Copyright (C) 2026 the authors of rigwright
 * SPDX-License-Identifier: GPL-2.0-or-later
 *
 * This one file has a licence of its own (LICENSE in this folder), because it includes QEMU's headers and runs in QEMU's process.
 * lab/vm/device/build.py compiles it on the user's machine against the headers of exactly the installed QEMU; LD_PRELOAD loads it:
 * QEMU exports its functions for its own modules. Written for QEMU 7.2 and 10.0.
 *
 *   rigwright-root-port            QEMU's pcie-root-port with any link generation
 *   rigwright-switch-upstream      the upstream port of a PCIe switch, PEX 8747 by its ids
 *   rigwright-switch-downstream    a downstream port of it, with ACS
 *   rigwright-gpu                  a GPU or NVSwitch: configuration space, base address registers, the chip's identity
 *
 * A GPU identifies itself to a driver (NV_PMC_BOOT_0 and _42) and answers 0 at every other register, so a driver finds it and
 * fails to start it. These properties of a GPU may be set at any time, by QMP's qom-set: `lost` (all ones from configuration
 * space and memory), `boot0` (0: the chip does not identify itself), `generation-now` and `width-now` (the link's state).
 */
#include "qemu/osdep.h"
#include "hw/pci/msi.h"
#include "hw/pci/pci.h"
#include "hw/pci/pci_bridge.h"
#include "hw/pci/pcie.h"
#include "hw/pci/pcie_port.h"
#include "hw/qdev-properties.h"
#include "migration/vmstate.h"
#include "qapi/error.h"
#include "qapi/qapi-commands-control.h"
#include "qapi/visitor.h"
#include "qemu/module.h"
#include "qemu/units.h"
#if QEMU_AT_LEAST(10, 0)
#include "hw/pci/pci_device.h"
#endif

#define CAP_PM 0x60
#define CAP_MSI 0x68
#define CAP_EXPRESS 0x78
#define CAP_VIRTUAL_CHANNEL 0x100
#define CAP_POWER_BUDGET 0x128
#define CAP_AER 0x420
#define CAP_VENDOR 0x600
#define CAP_SECONDARY 0x900
#define CAP_SERIAL 0xb00
#define CAP_ACS 0x150 /* of a switch's downstream port, behind QEMU's AER */

#define VENDOR_PLX 0x10b5
#define DEVICE_PEX8747 0x8747

#define NV_PMC_BOOT_0 0x000
#define NV_PMC_BOOT_42 0xa00

#define GENERATION_MAX 6u
#define WIDTH_MAX 32u

#ifndef DEFINE_PROP_END_OF_LIST /* 10.0 counts the elements instead */
#define DEFINE_PROP_END_OF_LIST()
#define PROPERTIES static const Property
#else
#define PROPERTIES static Property
#endif

#if QEMU_AT_LEAST(9, 2)
#define RESET_OF(dc) ((dc)->legacy_reset)
#else
#define RESET_OF(dc) ((dc)->reset)
#endif

typedef struct Gpu {
    PCIDevice pci;
    MemoryRegion registers, framebuffer, instance, io;
    uint32_t vendor, device, sub_vendor, sub_device, class_id, revision;
    uint64_t registers_size, bar1_size, bar3_size, serial;
    uint32_t io_size, generation, width;
    uint32_t boot0, generation_now, width_now; /* 0 in the last two: the maximum */
    bool lost;
} Gpu;

typedef struct Upstream {
    PCIEPort port;
    uint32_t generation, width;
} Upstream;

/* Ends QEMU when it is not the one that this file was compiled for: the layout of its structures may differ. */
static void check_version(void)
{
    static bool checked;
    VersionInfo *running;

    if (checked) {
        return;
    }
    running = qmp_query_version(&error_abort);
    if (strcmp(running->package, BUILT_FOR) != 0) {
        fprintf(stderr, "rigwright-gpu: compiled for QEMU '%s', this is '%s'\n", BUILT_FOR, running->package);
        exit(1);
    }
    qapi_free_VersionInfo(running);
    checked = true;
}

/* ---- links ---------------------------------------------------------------------------------------------------- */

static void set_link_maximum(PCIDevice *d, uint32_t generation, uint32_t width)
{
    uint8_t *cap = d->config + d->exp.exp_cap;
    uint32_t old = pci_get_long(cap + PCI_EXP_LNKCAP) & ~(uint32_t)(PCI_EXP_LNKCAP_SLS | PCI_EXP_LNKCAP_MLW);

    pci_set_long(cap + PCI_EXP_LNKCAP, old | generation | width << PCI_EXP_LNK_MLW_SHIFT);
    pci_set_long(cap + PCI_EXP_LNKCAP2, ((1u << generation) - 1) << 1);
    pci_set_word(cap + PCI_EXP_LNKCTL2, generation);
}

static void set_link_now(PCIDevice *d, uint32_t generation, uint32_t width)
{
    pci_set_word(d->config + d->exp.exp_cap + PCI_EXP_LNKSTA,
                 generation | width << PCI_EXP_LNK_MLW_SHIFT | PCI_EXP_LNKSTA_SLC);
}

static void gpu_set_link_now(Gpu *g)
{
    set_link_now(&g->pci, g->generation_now ?: g->generation, g->width_now ?: g->width);
}

static bool is_link(uint32_t generation, uint32_t width, Error **errp)
{
    if (generation < 1 || generation > GENERATION_MAX || width < 1 || width > WIDTH_MAX) {
        error_setg(errp, "link of generation %u with %u lanes; 1 to %u, 1 to %u lanes", generation, width, GENERATION_MAX,
                   WIDTH_MAX);
        return false;
    }
    return true;
}

/* ---- GPU ------------------------------------------------------------------------------------------------------ */

static uint64_t ones(unsigned size)
{
    return size >= 8 ? UINT64_MAX : (1ULL << 8 * size) - 1;
}

static uint64_t registers_read(void *opaque, hwaddr at, unsigned size)
{
    Gpu *g = opaque;

    if (g->lost) {
        return ones(size);
    }
    switch (at) {
    case NV_PMC_BOOT_0:
        return g->boot0;
    case NV_PMC_BOOT_42: /* the chip as in BOOT_0; the revision is at another place */
        return (g->boot0 & 0x3ff00000) | (g->boot0 & 0xff) << 12;
    default:
        return 0;
    }
}

static uint64_t memory_read(void *opaque, hwaddr at, unsigned size)
{
    return ((Gpu *)opaque)->lost ? ones(size) : 0;
}

static void ignore_write(void *opaque, hwaddr at, uint64_t value, unsigned size)
{
}

static const MemoryRegionOps registers_ops = {
    .read = registers_read,
    .write = ignore_write,
    .endianness = DEVICE_LITTLE_ENDIAN,
    .valid = {.min_access_size = 1, .max_access_size = 8},
    .impl = {.min_access_size = 4, .max_access_size = 4},
};

static const MemoryRegionOps memory_ops = {
    .read = memory_read,
    .write = ignore_write,
    .endianness = DEVICE_LITTLE_ENDIAN,
    .valid = {.min_access_size = 1, .max_access_size = 8},
    .impl = {.min_access_size = 1, .max_access_size = 8},
};

static uint32_t gpu_config_read(PCIDevice *d, uint32_t at, int size)
{
    return ((Gpu *)d)->lost ? (uint32_t)ones(size) : pci_default_read_config(d, at, size);
}

static void gpu_config_write(PCIDevice *d, uint32_t at, uint32_t value, int size)
{
    if (!((Gpu *)d)->lost) {
        pci_default_write_config(d, at, value, size);
        pcie_aer_write_config(d, at, value, size);
    }
}

static bool is_size(uint64_t size, uint64_t maximum)
{
    return !size || (size >= 16 && size <= maximum && is_power_of_2(size));
}

static void add_bar(Gpu *g, int number, MemoryRegion *region, const MemoryRegionOps *ops, const char *name, uint64_t size,
                    uint8_t type)
{
    if (size) {
        memory_region_init_io(region, OBJECT(g), ops, g, name, size);
        pci_register_bar(&g->pci, number, type, region);
    }
}

static void gpu_identity(Gpu *g)
{
    uint8_t *config = g->pci.config;

    pci_config_set_vendor_id(config, g->vendor);
    pci_config_set_device_id(config, g->device);
    pci_config_set_revision(config, g->revision);
    pci_config_set_class(config, g->class_id >> 8);
    pci_config_set_prog_interface(config, g->class_id & 0xff);
    pci_set_word(config + PCI_SUBSYSTEM_VENDOR_ID, g->sub_vendor);
    pci_set_word(config + PCI_SUBSYSTEM_ID, g->sub_device);
    pci_config_set_interrupt_pin(config, 1);
}

static bool gpu_capabilities(Gpu *g, Error **errp)
{
    PCIDevice *d = &g->pci;
    bool is_display = g->class_id >> 8 == PCI_CLASS_DISPLAY_VGA;
    int pm = pci_add_capability(d, PCI_CAP_ID_PM, CAP_PM, PCI_PM_SIZEOF, errp);

    if (pm < 0 || msi_init(d, CAP_MSI, 1, true, false, errp) < 0 ||
        pcie_cap_init(d, CAP_EXPRESS, is_display ? PCI_EXP_TYPE_LEG_END : PCI_EXP_TYPE_ENDPOINT, 0, errp) < 0) {
        return false;
    }
    pci_set_word(d->config + pm + PCI_PM_PMC, 3);
    pci_set_word(d->config + pm + PCI_PM_CTRL, PCI_PM_CTRL_NO_SOFT_RESET);
    pci_set_word(d->wmask + pm + PCI_PM_CTRL, PCI_PM_CTRL_STATE_MASK);
    pcie_cap_deverr_init(d);
    pcie_cap_lnkctl_init(d);
    pci_set_long(d->config + CAP_EXPRESS + PCI_EXP_LNKCAP, 0); /* no power saving states of the link */
    set_link_maximum(d, g->generation, g->width);
    gpu_set_link_now(g);
    pcie_add_capability(d, PCI_EXT_CAP_ID_VC, 1, CAP_VIRTUAL_CHANNEL, 0x1c);
    pcie_add_capability(d, PCI_EXT_CAP_ID_PWR, 1, CAP_POWER_BUDGET, 0x10);
    if (pcie_aer_init(d, PCI_ERR_VER, CAP_AER, PCI_ERR_SIZEOF, errp) < 0) {
        return false;
    }
    pcie_add_capability(d, PCI_EXT_CAP_ID_VNDR, 1, CAP_VENDOR, 0x24);
    pci_set_long(d->config + CAP_VENDOR + 4, 0x02410001);
    pcie_add_capability(d, PCI_EXT_CAP_ID_SECPCI, 1, CAP_SECONDARY, 0x2c);
    if (g->serial) {
        pcie_dev_ser_num_init(d, CAP_SERIAL, g->serial);
    }
    return true;
}

static void gpu_realize(PCIDevice *d, Error **errp)
{
    Gpu *g = (Gpu *)d;

    if (!is_link(g->generation, g->width, errp)) {
        return;
    }
    if (!is_size(g->registers_size, 64 * MiB) || !is_size(g->bar1_size, 256 * GiB) || !is_size(g->bar3_size, GiB) ||
        !is_size(g->io_size, 256)) {
        error_setg(errp, "the size of a base address register is not a power of two, or too large");
        return;
    }
    gpu_identity(g);
    add_bar(g, 0, &g->registers, &registers_ops, "registers", g->registers_size, PCI_BASE_ADDRESS_SPACE_MEMORY);
    add_bar(g, 1, &g->framebuffer, &memory_ops, "framebuffer", g->bar1_size,
            PCI_BASE_ADDRESS_MEM_TYPE_64 | PCI_BASE_ADDRESS_MEM_PREFETCH);
    add_bar(g, 3, &g->instance, &memory_ops, "instance", g->bar3_size,
            PCI_BASE_ADDRESS_MEM_TYPE_64 | PCI_BASE_ADDRESS_MEM_PREFETCH);
    add_bar(g, 5, &g->io, &memory_ops, "io", g->io_size, PCI_BASE_ADDRESS_SPACE_IO);
    if (!gpu_capabilities(g, errp)) {
        msi_uninit(d);
    }
}

static void gpu_exit(PCIDevice *d)
{
    pcie_aer_exit(d);
    pcie_cap_exit(d);
    msi_uninit(d);
}

static void gpu_reset(DeviceState *dev)
{
    PCIDevice *d = PCI_DEVICE(dev);

    pcie_cap_deverr_reset(d);
    pcie_cap_lnkctl_reset(d);
    msi_reset(d);
    gpu_set_link_now((Gpu *)d);
}

static bool get_lost(Object *o, Error **errp)
{
    return ((Gpu *)o)->lost;
}

static void set_lost(Object *o, bool on, Error **errp)
{
    ((Gpu *)o)->lost = on;
}

/* A 32-bit property that may be set at any time; `opaque` is its offset in Gpu. */
static void get_word(Object *o, Visitor *v, const char *name, void *opaque, Error **errp)
{
    visit_type_uint32(v, name, (uint32_t *)((char *)o + (uintptr_t)opaque), errp);
}

static void set_word(Object *o, Visitor *v, const char *name, void *opaque, Error **errp)
{
    Gpu *g = (Gpu *)o;
    uint32_t value, *word = (uint32_t *)((char *)o + (uintptr_t)opaque);
    uint32_t maximum = word == &g->generation_now ? GENERATION_MAX : word == &g->width_now ? WIDTH_MAX : UINT32_MAX;

    if (!visit_type_uint32(v, name, &value, errp)) {
        return;
    }
    if (value > maximum) {
        error_setg(errp, "%s: %u; 0 to %u", name, value, maximum);
        return;
    }
    *word = value;
    if (DEVICE(o)->realized) {
        gpu_set_link_now(g);
    }
}

PROPERTIES gpu_properties[] = {
    DEFINE_PROP_UINT32("vendor-id", Gpu, vendor, 0x10de),
    DEFINE_PROP_UINT32("device-id", Gpu, device, 0x1db1),
    DEFINE_PROP_UINT32("sub-vendor-id", Gpu, sub_vendor, 0x10de),
    DEFINE_PROP_UINT32("sub-device-id", Gpu, sub_device, 0x1212),
    DEFINE_PROP_UINT32("class", Gpu, class_id, 0x030200),
    DEFINE_PROP_UINT32("revision", Gpu, revision, 0xa1),
    DEFINE_PROP_SIZE("registers-size", Gpu, registers_size, 16 * MiB),
    DEFINE_PROP_SIZE("bar1-size", Gpu, bar1_size, 256 * MiB),
    DEFINE_PROP_SIZE("bar3-size", Gpu, bar3_size, 32 * MiB),
    DEFINE_PROP_UINT32("io-size", Gpu, io_size, 0),
    DEFINE_PROP_UINT32("generation", Gpu, generation, 3),
    DEFINE_PROP_UINT32("width", Gpu, width, 16),
    DEFINE_PROP_UINT64("serial", Gpu, serial, 0),
    DEFINE_PROP_END_OF_LIST()
};

/* What a recorded machine must have again: without it a resumed guest finds base address registers without addresses. */
static const VMStateDescription gpu_vmstate = {
    .name = "rigwright-gpu",
    .version_id = 1,
    .minimum_version_id = 1,
    .fields = (VMStateField[]) {
        VMSTATE_PCI_DEVICE(pci, Gpu),
        VMSTATE_STRUCT(pci.exp.aer_log, Gpu, 0, vmstate_pcie_aer_log, PCIEAERLog),
        VMSTATE_UINT32(boot0, Gpu),
        VMSTATE_UINT32(generation_now, Gpu),
        VMSTATE_UINT32(width_now, Gpu),
        VMSTATE_BOOL(lost, Gpu),
        VMSTATE_END_OF_LIST()
    },
};

static void gpu_class(ObjectClass *klass, void *data)
{
    static const struct {
        const char *name;
        size_t offset;
    } words[] = {
        {"boot0", offsetof(Gpu, boot0)},
        {"generation-now", offsetof(Gpu, generation_now)},
        {"width-now", offsetof(Gpu, width_now)},
    };
    PCIDeviceClass *k = PCI_DEVICE_CLASS(klass);
    DeviceClass *dc = DEVICE_CLASS(klass);

    check_version();
    k->realize = gpu_realize;
    k->exit = gpu_exit;
    k->config_read = gpu_config_read;
    k->config_write = gpu_config_write;
    k->class_id = PCI_CLASS_DISPLAY_3D;
    RESET_OF(dc) = gpu_reset;
    dc->vmsd = &gpu_vmstate;
    dc->desc = "simulated NVIDIA GPU";
    set_bit(DEVICE_CATEGORY_DISPLAY, dc->categories);
    device_class_set_props(dc, gpu_properties);
    object_class_property_add_bool(klass, "lost", get_lost, set_lost);
    for (size_t i = 0; i < ARRAY_SIZE(words); i++) {
        object_class_property_add(klass, words[i].name, "uint32", get_word, set_word, NULL, (void *)words[i].offset);
    }
}

static void gpu_instance(Object *o)
{
    ((Gpu *)o)->boot0 = 0x140000a1; /* GV100 */
}

/* ---- ports ---------------------------------------------------------------------------------------------------- */

static DeviceRealize qemu_root_port_realize;
static void (*qemu_upstream_realize)(PCIDevice *, Error **);
static void (*qemu_downstream_realize)(PCIDevice *, Error **);
static void (*qemu_downstream_reset)(DeviceState *);

/* The link of a root port or downstream port is in QEMU's own structure. Its own property knows only some generations. */
static void get_slot(Object *o, Visitor *v, const char *name, void *is_width, Error **errp)
{
    PCIESlot *slot = PCIE_SLOT(o);
    uint32_t value = is_width ? slot->width : slot->speed;

    visit_type_uint32(v, name, &value, errp);
}

static void set_slot(Object *o, Visitor *v, const char *name, void *is_width, Error **errp)
{
    PCIESlot *slot = PCIE_SLOT(o);
    uint32_t value;

    if (DEVICE(o)->realized) {
        error_setg(errp, "%s can only be set before the machine starts", name);
    } else if (visit_type_uint32(v, name, &value, errp) && is_link(is_width ? 1 : value, is_width ? value : 1, errp)) {
        if (is_width) {
            slot->width = value;
        } else {
            slot->speed = value;
        }
    }
}

static void slot_properties(ObjectClass *klass)
{
    object_class_property_add(klass, "generation", "uint32", get_slot, set_slot, NULL, NULL);
    object_class_property_add(klass, "width", "uint32", get_slot, set_slot, NULL, (void *)1);
}

static void slot_instance(Object *o)
{
    PCIE_SLOT(o)->speed = 3;
    PCIE_SLOT(o)->width = 16;
}

static void root_port_realize(DeviceState *dev, Error **errp)
{
    ERRP_GUARD();

    qemu_root_port_realize(dev, errp);
    if (!*errp) {
        set_link_maximum(PCI_DEVICE(dev), PCIE_SLOT(dev)->speed, PCIE_SLOT(dev)->width);
    }
}

static void root_port_class(ObjectClass *klass, void *data)
{
    DeviceClass *dc = DEVICE_CLASS(klass);

    check_version();
    qemu_root_port_realize = dc->realize;
    dc->realize = root_port_realize;
    dc->desc = "PCIe root port with any link generation";
    slot_properties(klass);
}

static void switch_identity(PCIDeviceClass *k)
{
    k->vendor_id = VENDOR_PLX;
    k->device_id = DEVICE_PEX8747;
    k->revision = 0xca;
}

static void switch_subsystem(PCIDevice *d)
{
    uint8_t *cap = d->config + pci_find_capability(d, PCI_CAP_ID_SSVID);

    pci_set_word(cap + 4, VENDOR_PLX);
    pci_set_word(cap + 6, DEVICE_PEX8747);
}

static void upstream_realize(PCIDevice *d, Error **errp)
{
    ERRP_GUARD();
    Upstream *up = (Upstream *)d;

    if (!is_link(up->generation, up->width, errp)) {
        return;
    }
    qemu_upstream_realize(d, errp);
    if (!*errp) {
        switch_subsystem(d);
        set_link_maximum(d, up->generation, up->width);
        set_link_now(d, up->generation, up->width);
    }
}

PROPERTIES upstream_properties[] = {
    DEFINE_PROP_UINT32("generation", Upstream, generation, 3),
    DEFINE_PROP_UINT32("width", Upstream, width, 16),
    DEFINE_PROP_END_OF_LIST()
};

static void upstream_class(ObjectClass *klass, void *data)
{
    PCIDeviceClass *k = PCI_DEVICE_CLASS(klass);

    check_version();
    switch_identity(k);
    qemu_upstream_realize = k->realize;
    k->realize = upstream_realize;
    DEVICE_CLASS(klass)->desc = "upstream port of a PCIe switch";
    device_class_set_props(DEVICE_CLASS(klass), upstream_properties);
}

static void downstream_realize(PCIDevice *d, Error **errp)
{
    ERRP_GUARD();

    qemu_downstream_realize(d, errp);
    if (!*errp) {
        switch_subsystem(d);
        set_link_maximum(d, PCIE_SLOT(d)->speed, PCIE_SLOT(d)->width);
        pcie_acs_init(d, CAP_ACS);
    }
}

static void downstream_reset(DeviceState *dev)
{
    qemu_downstream_reset(dev);
    pcie_acs_reset(PCI_DEVICE(dev));
}

static void downstream_class(ObjectClass *klass, void *data)
{
    PCIDeviceClass *k = PCI_DEVICE_CLASS(klass);
    DeviceClass *dc = DEVICE_CLASS(klass);

    check_version();
    switch_identity(k);
    qemu_downstream_realize = k->realize;
    k->realize = downstream_realize;
    qemu_downstream_reset = RESET_OF(dc);
    RESET_OF(dc) = downstream_reset;
    dc->desc = "downstream port of a PCIe switch";
    slot_properties(klass);
}

/* ---- registration --------------------------------------------------------------------------------------------- */

static const TypeInfo types[] = {
    {
        .name = "rigwright-gpu",
        .parent = TYPE_PCI_DEVICE,
        .instance_size = sizeof(Gpu),
        .instance_init = gpu_instance,
        .class_init = gpu_class,
        .interfaces = (InterfaceInfo[]) {{INTERFACE_PCIE_DEVICE}, {}},
    },
    {
        .name = "rigwright-root-port",
        .parent = "pcie-root-port",
        .instance_init = slot_instance,
        .class_init = root_port_class,
    },
    {
        .name = "rigwright-switch-upstream",
        .parent = "x3130-upstream",
        .instance_size = sizeof(Upstream),
        .class_init = upstream_class,
    },
    {
        .name = "rigwright-switch-downstream",
        .parent = "xio3130-downstream",
        .instance_init = slot_instance,
        .class_init = downstream_class,
    },
};

static void register_types(void)
{
    for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
        type_register_static(&types[i]);
    }
}

/* A program that starts QEMU loads this library too, and has none of these. */
#pragma weak error_abort
#pragma weak error_fatal
#pragma weak qdev_prop_size
#pragma weak qdev_prop_uint32
#pragma weak qdev_prop_uint64
#pragma weak register_module_init
#pragma weak vmstate_info_bool
#pragma weak vmstate_info_uint32
#pragma weak vmstate_pci_device
#pragma weak vmstate_pcie_aer_log

static void __attribute__((constructor)) start(void)
{
    if (register_module_init) {
        unsetenv("LD_PRELOAD"); /* the programs that QEMU starts must not load it */
        register_module_init(register_types, MODULE_INIT_QOM);
    }
}
