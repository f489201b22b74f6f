/* A module that changes locks: whenever a key has the event that its first argument names, it runs the command that follows,
 * in the server's own callback, on every key that begins with k. The command TRIM is its own: it keeps the name of the key and
 * trims it, and overwrites where its bytes were. */
#include <stdarg.h>
#include <string.h>

typedef struct RedisModuleCtx RedisModuleCtx;
typedef struct RedisModuleString RedisModuleString;

static const char *(*StringPtrLen)(const RedisModuleString *, size_t *);
static void *(*Call)(RedisModuleCtx *, const char *, const char *, ...);
static void (*FreeCallReply)(void *);
static void (*RetainString)(RedisModuleCtx *, RedisModuleString *);
static void (*TrimStringAllocation)(RedisModuleString *);
static void *(*Alloc)(size_t);
static char event_of[32], command[32], argument[32];

static void trim(RedisModuleString *key) {
    RetainString(NULL, key);
    TrimStringAllocation(key);
    for (int i = 0; i < 256; i++) memset(Alloc(i), 'z', i);
}

static int on_event(RedisModuleCtx *ctx, int type, const char *event, RedisModuleString *key) {
    static const char *const keys[] = {"k1", "k2", "k3", "k"};
    static int is_busy;
    (void)type;
    if (is_busy || strcmp(event, event_of) != 0 || StringPtrLen(key, NULL)[0] != 'k') return 0;
    if (strcmp(command, "TRIM") == 0) {
        trim(key);
        return 0;
    }
    is_busy = 1;
    for (int i = 0; i < 4; i++) {
        void *reply = argument[0] ? Call(ctx, command, "!cc", keys[i], argument) : Call(ctx, command, "!c", keys[i]);
        if (reply) FreeCallReply(reply);
    }
    void *reply = argument[0] ? Call(ctx, command, "!sc", key, argument) : Call(ctx, command, "!s", key);
    if (reply) FreeCallReply(reply);
    is_busy = 0;
    return 0;
}

int RedisModule_OnLoad(RedisModuleCtx *ctx, RedisModuleString **argv, int argc) {
    int (*GetApi)(const char *, void *) = *(int (**)(const char *, void *))ctx;
    void (*SetModuleAttribs)(RedisModuleCtx *, const char *, int, int);
    int (*SubscribeToKeyspaceEvents)(RedisModuleCtx *, int, int (*)(RedisModuleCtx *, int, const char *, RedisModuleString *));
    int (*SetModuleOptions)(RedisModuleCtx *, int);
    if (argc < 2) return 1;
    GetApi("RedisModule_SetModuleAttribs", &SetModuleAttribs);
    GetApi("RedisModule_SubscribeToKeyspaceEvents", &SubscribeToKeyspaceEvents);
    GetApi("RedisModule_SetModuleOptions", &SetModuleOptions);
    GetApi("RedisModule_StringPtrLen", &StringPtrLen);
    GetApi("RedisModule_Call", &Call);
    GetApi("RedisModule_FreeCallReply", &FreeCallReply);
    GetApi("RedisModule_RetainString", &RetainString);
    GetApi("RedisModule_TrimStringAllocation", &TrimStringAllocation);
    GetApi("RedisModule_Alloc", &Alloc);
    SetModuleAttribs(ctx, "foreign", 1, 1);
    strncpy(event_of, StringPtrLen(argv[0], NULL), sizeof event_of - 1);
    strncpy(command, StringPtrLen(argv[1], NULL), sizeof command - 1);
    if (argc > 2) strncpy(argument, StringPtrLen(argv[2], NULL), sizeof argument - 1);
    /* Generic, hash, expired and evicted events. */
    return SubscribeToKeyspaceEvents(ctx, (1 << 2) | (1 << 6) | (1 << 8) | (1 << 9), on_event);
}
