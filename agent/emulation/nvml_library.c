/* A library that answers as NVML does, from a file of state that agent/emulation/emulated_gpus.py writes.
 *
 * It is loaded in place of the vendor's (its name inside is libnvidia-ml.so.1), so that the code that reads
 * NVML is the same. Each call reads the file anew: TENBIN_EMULATED_GPUS names the folder, its file is "state":
 *
 *     gpu UUID BUS MINOR TOTAL USED UTIL MEMORY_UTIL POWER LIMIT LIMIT_MIN LIMIT_MAX ENERGY CLOCK MIG NAME
 *     mig GPU UUID TOTAL USED GPU_INSTANCE COMPUTE_INSTANCE NAME
 *     process GPU PID BYTES UTIL GPU_INSTANCE COMPUTE_INSTANCE
 *
 * Bytes, percent, mW, mJ, MHz; GPU is a number from 0 on; an instance of 4294967295 is none. A power limit that
 * was set is in the file "limit-UUID". Without the variable it is as if there were no library. Return codes are
 * those that an H200 was seen to give (driver 580.159.04).
 */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9, LIBRARY_NOT_FOUND = 12, UNKNOWN = 999 };
enum { MOST_GPUS = 64, MOST_PROCESSES = 4096, NAME = 96 };
#define NO_INSTANCE 0xFFFFFFFFu

typedef unsigned long long u64;
typedef struct { uint32_t gpu, instance, compute; u64 total, used; char uuid[NAME], name[NAME]; } Part;
typedef struct {
    u64 total, used, energy;
    uint32_t minor, util, memory_util, power, limit, limit_min, limit_max, clock, mig;
    char uuid[NAME], bus[NAME], name[NAME];
} Gpu;
typedef struct { uint32_t gpu, pid, util, instance, compute; u64 bytes; } Process;
typedef struct {
    uint32_t gpus, parts, processes;
    Gpu gpu[MOST_GPUS];
    Part part[MOST_GPUS];
    Process process[MOST_PROCESSES];
} State;
/* What callers hold: an address in one of these two tables. */
static char gpu_handles[MOST_GPUS], part_handles[MOST_GPUS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int users;

static int read_state(State *state) {
    const char *folder = getenv("TENBIN_EMULATED_GPUS");
    char path[4096], line[1024];
    memset(state, 0, offsetof(State, gpu));
    if (!folder) return LIBRARY_NOT_FOUND;
    if (snprintf(path, sizeof path, "%s/state", folder) >= (int)sizeof path) return DRIVER_NOT_LOADED;
    FILE *file = fopen(path, "re");
    if (!file) return DRIVER_NOT_LOADED;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (state->gpus < MOST_GPUS) {
            Gpu *g = &state->gpu[state->gpus];
            state->gpus += sscanf(line, "gpu %95s %95s %u %llu %llu %u %u %u %u %u %u %llu %u %u %95[^\n]", g->uuid, g->bus,
                                  &g->minor, &g->total, &g->used, &g->util, &g->memory_util, &g->power, &g->limit,
                                  &g->limit_min, &g->limit_max, &g->energy, &g->clock, &g->mig, g->name) == 15;
        }
        if (state->parts < MOST_GPUS) {
            Part *p = &state->part[state->parts];
            state->parts += sscanf(line, "mig %u %95s %llu %llu %u %u %95[^\n]", &p->gpu, p->uuid, &p->total, &p->used,
                                   &p->instance, &p->compute, p->name) == 7;
        }
        if (state->processes < MOST_PROCESSES) {
            Process *p = &state->process[state->processes];
            state->processes += sscanf(line, "process %u %u %llu %u %u %u", &p->gpu, &p->pid, &p->bytes, &p->util,
                                       &p->instance, &p->compute) == 6;
        }
    }
    fclose(file);
    for (uint32_t i = 0; i < state->gpus; i++) {
        snprintf(path, sizeof path, "%s/limit-%s", folder, state->gpu[i].uuid);
        if (!(file = fopen(path, "re"))) continue;
        if (fscanf(file, "%u", &state->gpu[i].limit) != 1) state->gpu[i].limit = state->gpu[i].limit_max;
        fclose(file);
    }
    return SUCCESS;
}

/* Begin a function: read the state into a block of its own, which END frees. */
#define BEGIN                                                                                                              \
    int code = UNKNOWN;                                                                                                    \
    State *state = malloc(sizeof *state);                                                                                  \
    if (!state) return code;                                                                                               \
    pthread_mutex_lock(&lock);                                                                                             \
    code = users ? read_state(state) : UNINITIALIZED;                                                                      \
    pthread_mutex_unlock(&lock);                                                                                           \
    Gpu *gpu = NULL;                                                                                                       \
    Part *part = NULL;                                                                                                     \
    (void)gpu, (void)part;                                                                                                 \
    if (code == SUCCESS) {
#define END                                                                                                                \
    }                                                                                                                      \
    free(state);                                                                                                           \
    return code;
#define DEVICE                                                                                                             \
    if (device >= gpu_handles && device < gpu_handles + state->gpus) gpu = &state->gpu[device - gpu_handles];              \
    if (device >= part_handles && device < part_handles + state->parts) part = &state->part[device - part_handles];        \
    if (!gpu && !part) code = INVALID_ARGUMENT;
/* A function that tells one figure of a whole GPU; a part of one has none. */
#define FIGURE(function, type, value)                                                                                      \
    int function(char *device, type *out) {                                                                                \
        BEGIN DEVICE if (gpu) *out = (value);                                                                              \
        else if (part) code = NOT_SUPPORTED;                                                                               \
        END                                                                                                                \
    }

int nvmlInitWithFlags(unsigned flags) {
    State *state = malloc(sizeof *state);
    (void)flags;
    if (!state) return UNKNOWN;
    pthread_mutex_lock(&lock);
    int code = read_state(state);
    users += code == SUCCESS;
    pthread_mutex_unlock(&lock);
    free(state);
    return code;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    int code = users ? SUCCESS : UNINITIALIZED;
    users -= users > 0;
    pthread_mutex_unlock(&lock);
    return code;
}
const char *nvmlErrorString(int code) {
    switch (code) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case LIBRARY_NOT_FOUND: return "NVML Shared Library Not Found";
    default: return "Unknown Error";
    }
}

static int write_text(const char *text, char *out, unsigned length) {
    return snprintf(out, length, "%s", text) < (int)length ? SUCCESS : INSUFFICIENT_SIZE;
}
int nvmlSystemGetDriverVersion(char *out, unsigned length) { return write_text("emulated", out, length); }
int nvmlSystemGetNVMLVersion(char *out, unsigned length) { return write_text("emulated", out, length); }

int nvmlDeviceGetCount_v2(unsigned *out) { BEGIN *out = state->gpus; END }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, char **out) {
    BEGIN if (index < state->gpus) *out = gpu_handles + index;
    else code = INVALID_ARGUMENT;
    END
}
int nvmlDeviceGetHandleByUUID(const char *uuid, char **out) {
    BEGIN code = NOT_FOUND;
    for (uint32_t i = 0; i < state->gpus; i++)
        if (!strcmp(state->gpu[i].uuid, uuid)) *out = gpu_handles + i, code = SUCCESS;
    for (uint32_t i = 0; i < state->parts; i++)
        if (!strcmp(state->part[i].uuid, uuid)) *out = part_handles + i, code = SUCCESS;
    END
}
int nvmlDeviceGetUUID(char *device, char *out, unsigned length) {
    BEGIN DEVICE if (!code) code = write_text(gpu ? gpu->uuid : part->uuid, out, length);
    END
}
int nvmlDeviceGetName(char *device, char *out, unsigned length) {
    BEGIN DEVICE if (!code) code = write_text(gpu ? gpu->name : part->name, out, length);
    END
}
FIGURE(nvmlDeviceGetMinorNumber, uint32_t, gpu->minor)
FIGURE(nvmlDeviceGetPowerUsage, uint32_t, gpu->power)
FIGURE(nvmlDeviceGetPowerManagementLimit, uint32_t, gpu->limit)
FIGURE(nvmlDeviceGetEnforcedPowerLimit, uint32_t, gpu->limit)
FIGURE(nvmlDeviceGetPowerManagementDefaultLimit, uint32_t, gpu->limit_max)
FIGURE(nvmlDeviceGetTotalEnergyConsumption, u64, gpu->energy)
FIGURE(nvmlDeviceGetMaxMigDeviceCount, uint32_t, gpu->mig ? 7 : 0)
int nvmlDeviceGetPowerManagementLimitConstraints(char *device, uint32_t *low, uint32_t *high) {
    BEGIN DEVICE if (gpu) *low = gpu->limit_min, *high = gpu->limit_max;
    else if (part) code = NOT_SUPPORTED;
    END
}
int nvmlDeviceSetPowerManagementLimit(char *device, uint32_t limit) {
    char path[4096];
    BEGIN DEVICE if (part) code = NOT_SUPPORTED;
    if (!code && (limit < gpu->limit_min || limit > gpu->limit_max)) code = INVALID_ARGUMENT;
    if (!code) {
        snprintf(path, sizeof path, "%s/limit-%s", getenv("TENBIN_EMULATED_GPUS"), gpu->uuid);
        FILE *file = fopen(path, "we");
        if (!file || fprintf(file, "%u\n", limit) < 0) code = UNKNOWN;
        if (file && fclose(file)) code = UNKNOWN;
    }
    END
}
int nvmlDeviceGetClockInfo(char *device, unsigned kind, uint32_t *out) {
    (void)kind;
    BEGIN DEVICE if (gpu) *out = gpu->clock;
    else if (part) code = NOT_SUPPORTED;
    END
}
int nvmlDeviceGetMigMode(char *device, uint32_t *now, uint32_t *pending) {
    BEGIN DEVICE if (gpu) *now = *pending = gpu->mig;
    else if (part) code = INVALID_ARGUMENT;
    END
}
int nvmlDeviceGetMigDeviceHandleByIndex(char *device, unsigned index, char **out) {
    BEGIN DEVICE if (!code) code = gpu && gpu->mig ? NOT_FOUND : INVALID_ARGUMENT;
    for (uint32_t i = 0, seen = 0; code == NOT_FOUND && i < state->parts; i++)
        if (state->part[i].gpu == gpu - state->gpu && seen++ == index) *out = part_handles + i, code = SUCCESS;
    END
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(char *device, char **out) {
    BEGIN DEVICE if (part) *out = gpu_handles + part->gpu;
    else code = INVALID_ARGUMENT;
    END
}
int nvmlDeviceGetGpuInstanceId(char *device, uint32_t *out) {
    BEGIN DEVICE if (part) *out = part->instance;
    else code = INVALID_ARGUMENT;
    END
}
/* Of four GPUs, which share a NUMA node, two and two are linked by NVLink below one PCI switch. */
enum { SINGLE_SWITCH = 10, SAME_NODE = 40, SYSTEM = 50, P2P_NVLINK = 2, P2P_OK = 0, P2P_NOT_SUPPORTED = 5 };
static int pair(char *device, char *other, unsigned *ancestor) {
    BEGIN DEVICE ptrdiff_t a = device - gpu_handles, b = other - gpu_handles;
    if (!gpu || b < 0 || b >= (ptrdiff_t)state->gpus) code = INVALID_ARGUMENT;
    else *ancestor = a / 2 == b / 2 ? SINGLE_SWITCH : a / 4 == b / 4 ? SAME_NODE : SYSTEM;
    END
}
int nvmlDeviceGetTopologyCommonAncestor(char *device, char *other, unsigned *out) { return pair(device, other, out); }
int nvmlDeviceGetP2PStatus(char *device, char *other, unsigned capability, unsigned *out) {
    unsigned ancestor = SYSTEM;
    int code = pair(device, other, &ancestor);
    *out = ancestor == SINGLE_SWITCH && capability == P2P_NVLINK ? P2P_OK : P2P_NOT_SUPPORTED;
    return code;
}
int nvmlDeviceGetNumaNodeId(char *device, uint32_t *out) {
    (void)device, (void)out;
    return NOT_SUPPORTED;
}

typedef struct { u64 total, free, used; } Memory;
int nvmlDeviceGetMemoryInfo(char *device, Memory *out) {
    BEGIN DEVICE if (!code) {
        out->total = gpu ? gpu->total : part->total;
        out->used = gpu ? gpu->used : part->used;
        out->free = out->total - out->used;
    }
    END
}
typedef struct { uint32_t gpu, memory; } Rates;
int nvmlDeviceGetUtilizationRates(char *device, Rates *out) {
    BEGIN DEVICE if (gpu) out->gpu = gpu->util, out->memory = gpu->memory_util;
    else if (part) code = NOT_SUPPORTED;
    END
}
typedef struct { char legacy[16]; uint32_t domain, bus, device, id, subsystem; char text[32]; } Pci;
int nvmlDeviceGetPciInfo_v3(char *device, Pci *out) {
    BEGIN DEVICE if (!code) {
        const char *bus = (gpu ? gpu : &state->gpu[part->gpu])->bus;
        memset(out, 0, sizeof *out);
        write_text(bus, out->text, sizeof out->text);
        write_text(strlen(bus) > 4 ? bus + 4 : bus, out->legacy, sizeof out->legacy);
        sscanf(bus, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    }
    END
}

/* The processes of a GPU or of a part of one; with too small an array, how many there are. */
typedef struct { uint32_t pid; u64 bytes; uint32_t instance, compute; } Holder;
int nvmlDeviceGetComputeRunningProcesses_v3(char *device, uint32_t *count, Holder *out) {
    BEGIN DEVICE uint32_t room = *count, number = 0;
    for (uint32_t i = 0; !code && i < state->processes; i++) {
        Process *p = &state->process[i];
        if (gpu ? p->gpu != (uint32_t)(gpu - state->gpu) : p->gpu != part->gpu || p->instance != part->instance) continue;
        if (out && number < room) out[number] = (Holder){p->pid, p->bytes, p->instance, p->compute};
        number++;
    }
    if (!code) *count = number, code = number > room || (number && !out) ? INSUFFICIENT_SIZE : SUCCESS;
    END
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(char *device, uint32_t *count, Holder *out) {
    (void)out;
    BEGIN DEVICE if (!code) *count = 0;
    END
}
/* As NVML does, it leaves out processes that did nothing, and finds nothing where all are so. */
typedef struct { uint32_t pid; u64 time; uint32_t sm, memory, encoder, decoder; } Sample;
int nvmlDeviceGetProcessUtilization(char *device, Sample *out, uint32_t *count, u64 since) {
    BEGIN DEVICE uint32_t room = *count, number = 0;
    if (part) code = NOT_SUPPORTED;
    for (uint32_t i = 0; !code && i < state->processes; i++) {
        Process *p = &state->process[i];
        if (p->gpu != (uint32_t)(gpu - state->gpu) || !p->util) continue;
        if (out && number < room) out[number] = (Sample){p->pid, since + 1, p->util, 0, 0, 0};
        number++;
    }
    if (!code) *count = number, code = !number ? NOT_FOUND : number > room || !out ? INSUFFICIENT_SIZE : SUCCESS;
    END
}
