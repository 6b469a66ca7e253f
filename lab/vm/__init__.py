"""Virtual machines of the lab: a kernel, GRUB, initramfs and disk of their own, under QEMU."""
