/* Finds the driver as the real libraries do: libcuda.so.1, by name, when the first call is made. */
#include <dlfcn.h>

#include "loader.h"

const struct engine *engine(int *code)
{
    static const struct engine *found;
    const void *table = NULL;
    int (*export_table)(const void **, const void *);
    if (!found) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
        *(void **)&export_table = library ? dlsym(library, "cuGetExportTable") : NULL;
        if (!export_table || export_table(&table, ENGINE_TABLE) || !table) {
            *code = INSUFFICIENT_DRIVER;
            return NULL;
        }
        found = table;
    }
    *code = found->initialise();
    return *code ? NULL : found;
}
