/* What QEMU's configure script finds on Linux on x86-64, as far as QEMU's header files that gpu.c includes ask for it. */
#define CONFIG_ATOMIC64 1
#define CONFIG_EVENTFD 1
#define CONFIG_INT128 1
#define CONFIG_IOVEC 1
#define CONFIG_LINUX 1
#define CONFIG_LINUX_MAGIC_H 1
#define CONFIG_MADVISE 1
#define CONFIG_POSIX 1
#define CONFIG_PREADV 1
#define CONFIG_SIGNALFD 1
#define CONFIG_TCG 1
#define HAVE_STRCHRNUL 1
#define HAVE_STRUCT_STAT_ST_ATIM 1
#define HOST_X86_64 1
