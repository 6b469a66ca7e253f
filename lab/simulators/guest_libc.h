/* Included before every source of the libraries that hosts load. They are compiled on this machine, whose C library may be newer than the hosts'.
 * From glibc 2.38 on, _GNU_SOURCE makes strtol, sscanf and their like __isoc23_ functions, which older ones lack. */
#include <features.h>
#ifdef __GLIBC_USE_C2X_STRTOL /* until 2.40 */
#undef __GLIBC_USE_C2X_STRTOL
#define __GLIBC_USE_C2X_STRTOL 0
#endif
#ifdef __GLIBC_USE_C23_STRTOL
#undef __GLIBC_USE_C23_STRTOL
#define __GLIBC_USE_C23_STRTOL 0
#endif
