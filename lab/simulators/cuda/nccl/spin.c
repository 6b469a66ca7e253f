/* The thread that is busy while collectives hang in the interrupt fault: seen as nv_queue in top. */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "nccl.h"

static atomic_int spinning;

/* Two thirds of a core are enough to be seen, and leave the machine that simulates usable. */
static void *spin(void *unused)
{
    struct timespec nap = {0, 5000000}, now;
    while (atomic_load(&spinning)) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        for (long until = now.tv_nsec / 10000000; now.tv_nsec / 10000000 == until;)
            clock_gettime(CLOCK_MONOTONIC, &now);
        nanosleep(&nap, NULL);
    }
    return unused;
}

void spin_thread(int on)
{
    pthread_t thread;
    if (atomic_exchange(&spinning, on) || !on)
        return;
    if (!pthread_create(&thread, NULL, spin, NULL)) {
        pthread_setname_np(thread, "nv_queue");
        pthread_detach(thread);
    }
}
