/* The state files: read again when they change, written whole and renamed under one lock. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim.h"

#ifndef SIM_DIR
#define SIM_DIR "/run/lab/hw"
#endif

struct line {
    char *key, *value;
    int order; /* of its line in the file */
};

struct table {
    struct line *lines; /* sorted by key once read; the later of two equal keys has replaced the earlier */
    int count, room, changed;
    struct stat seen;
};

static const char *const file_of[STORES] = {"volatile/state", "nvram/nvram", "board.conf"};
static struct table tables[STORES];
static int lock_fd = -1;

const char *sim_path(const char *name)
{
    static _Thread_local char path[2][512];
    static _Thread_local int turn;
    const char *dir = secure_getenv("NVMLSIM_DIR");
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", dir ? dir : SIM_DIR, name);
    return path[turn];
}

static void forget(struct table *table)
{
    for (int i = 0; i < table->count; i++)
        free(table->lines[i].key);
    table->count = 0;
}

static void append(struct table *table, const char *key, const char *value)
{
    size_t key_size = strlen(key) + 1, value_size = strlen(value) + 1;
    if (table->count == table->room) {
        table->room = table->room ? 2 * table->room : 256;
        table->lines = realloc(table->lines, table->room * sizeof *table->lines);
    }
    char *text = malloc(key_size + value_size);
    memcpy(text, key, key_size);
    memcpy(text + key_size, value, value_size);
    table->lines[table->count] = (struct line){text, text + key_size, table->count};
    table->count++;
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct line *)a)->key, ((const struct line *)b)->key);
}

static int by_key_and_order(const void *a, const void *b)
{
    int keys = by_key(a, b);
    return keys ? keys : ((const struct line *)a)->order - ((const struct line *)b)->order;
}

static void sort(struct table *table)
{
    int kept = 0;
    qsort(table->lines, table->count, sizeof *table->lines, by_key_and_order);
    for (int i = 0; i < table->count; i++) {
        if (i + 1 < table->count && !strcmp(table->lines[i].key, table->lines[i + 1].key))
            free(table->lines[i].key);
        else
            table->lines[kept++] = table->lines[i];
    }
    table->count = kept;
    for (int i = 0; i < kept; i++)
        table->lines[i].order = i;
}

static void parse(struct table *table, FILE *file)
{
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, file) > 0) {
        char *equals = strchr(line, '=');
        line[strcspn(line, "\r\n")] = 0;
        if (!equals || line[0] == '#')
            continue;
        *equals = 0;
        append(table, line, equals + 1);
    }
    free(line);
}

static void reload(enum store store)
{
    struct table *table = &tables[store];
    FILE *file = fopen(sim_path(file_of[store]), "re");
    forget(table);
    memset(&table->seen, 0, sizeof table->seen);
    if (!file)
        return;
    fstat(fileno(file), &table->seen);
    parse(table, file);
    fclose(file);
    sort(table);
}

void conf_reload(void)
{
    for (int store = 0; store < STORES; store++) {
        struct stat now = {0};
        const struct stat *seen = &tables[store].seen;
        if (stat(sim_path(file_of[store]), &now))
            memset(&now, 0, sizeof now);
        if (now.st_ino != seen->st_ino || now.st_size != seen->st_size || now.st_mtim.tv_sec != seen->st_mtim.tv_sec ||
            now.st_mtim.tv_nsec != seen->st_mtim.tv_nsec)
            reload(store);
    }
}

static struct line *find(struct table *table, const char *key)
{
    struct line wanted = {(char *)key, NULL, 0};
    if (!table->count)
        return NULL;
    return bsearch(&wanted, table->lines, table->count, sizeof wanted, by_key);
}

const char *conf_str(const char *key)
{
    for (int store = 0; store < STORES; store++) {
        struct line *line = find(&tables[store], key);
        if (line)
            return line->value[0] ? line->value : NULL;
    }
    return NULL;
}

long conf_int(const char *key, long absent)
{
    const char *value = conf_str(key);
    return value ? strtol(value, NULL, 0) : absent;
}

int edit_begin(void)
{
    mkdir(sim_path("volatile"), 0755);
    mkdir(sim_path("nvram"), 0755);
    lock_fd = open(sim_path("volatile/state.lock"), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (lock_fd < 0)
        return errno == EACCES ? NO_PERMISSION : UNKNOWN_ERROR;
    while (flock(lock_fd, LOCK_EX) && errno == EINTR)
        ;
    reload(VOLATILE);
    reload(NVRAM);
    return OK;
}

void edit_put(enum store store, const char *key, const char *value)
{
    struct table *table = &tables[store];
    struct line *line = find(table, key);
    if (line ? !strcmp(line->value, value) : !value[0])
        return;
    append(table, key, value);
    sort(table);
    if (!value[0]) {
        line = find(table, key);
        free(line->key);
        memmove(line, line + 1, (table->lines + table->count - line - 1) * sizeof *line);
        table->count--;
    }
    table->changed = 1;
}

void edit_drop_prefix(enum store store, const char *prefix)
{
    struct table *table = &tables[store];
    int kept = 0;
    for (int i = 0; i < table->count; i++) {
        if (strncmp(table->lines[i].key, prefix, strlen(prefix)))
            table->lines[kept++] = table->lines[i];
        else
            free(table->lines[i].key);
    }
    table->changed |= kept != table->count;
    table->count = kept;
    for (int i = 0; i < kept; i++)
        table->lines[i].order = i; /* a line that is appended next is a later one */
}

static int write_out(enum store store)
{
    struct table *table = &tables[store];
    char target[512], fresh[540];
    snprintf(target, sizeof target, "%s", sim_path(file_of[store]));
    snprintf(fresh, sizeof fresh, "%s.%d", target, (int)getpid());
    FILE *file = fopen(fresh, "we");
    if (!file)
        return errno == EACCES ? NO_PERMISSION : UNKNOWN_ERROR;
    for (int i = 0; i < table->count; i++)
        fprintf(file, "%s=%s\n", table->lines[i].key, table->lines[i].value);
    fchmod(fileno(file), 0644);
    if (fclose(file) || rename(fresh, target)) {
        unlink(fresh);
        return UNKNOWN_ERROR;
    }
    return OK;
}

int edit_commit(void)
{
    int code = OK;
    for (int store = VOLATILE; store <= NVRAM; store++) {
        if (tables[store].changed && !code)
            code = write_out(store);
        tables[store].changed = 0;
        reload(store);
    }
    close(lock_fd);
    lock_fd = -1;
    return code;
}
