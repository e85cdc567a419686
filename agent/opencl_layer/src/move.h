/* Moving all objects of the program to another device, as a transaction. */
#pragma once
#include <map>
#include <string>

#include "objects.h"

namespace tenbin {

struct Trouble {
    std::string what;
    bool passes = false; /* by itself: the move is postponed */
};

/* A step of a move: what fails here is put back. Builds for tests let a step fail by request. */
void step(cl_int error, const char *what);
extern int steps, fail_at; /* steps of this move so far; the one that fails (tests) */

/* A part of a buffer or an image that is copied at once. */
struct Piece {
    size_t origin[3], region[3], bytes;
};
std::vector<Piece> pieces_of(const Memory &memory);
size_t bytes_of(const Memory &memory);

/* Contents of the program's memory while it is parked: in memory, or in a file without a name. */
class Store {
  public:
    virtual ~Store() = default;
    virtual char *space(size_t bytes) = 0; /* where the next piece is to be put */
    virtual void put(size_t bytes) = 0;    /* it is there */
    virtual void written() = 0;            /* all pieces are there */
    virtual void rewind() = 0;
    virtual const char *take(size_t bytes) = 0; /* the next piece */
    virtual const char *place() const = 0;
};
std::unique_ptr<Store> store_in_memory(size_t bytes);
std::unique_ptr<Store> store_in_folder(const std::string &folder, size_t bytes);

/* Queues of the layer for the copies of a move, one a context. */
class CopyQueues {
    std::map<const Context *, cl_command_queue> queues;

  public:
    CopyQueues() = default;
    ~CopyQueues();
    CopyQueues(const CopyQueues &) = delete;
    CopyQueues &operator=(const CopyQueues &) = delete;
    cl_command_queue of(const Context *context, cl_context real, cl_device_id device);
};

void save_contents(Store &store, CopyQueues &queues);
void load_from_device(Memory &memory, cl_command_queue from, cl_command_queue to);
void load_from_store(Memory &memory, Store &store, cl_command_queue to);

/* Contexts and programs made on another device while the program runs. */
class Prepared {
    std::map<Context *, cl_context> contexts;
    std::map<RecipePointer, cl_program> programs;

  public:
    const size_t candidate;
    explicit Prepared(size_t where);
    ~Prepared(); /* with the gate open */
    Prepared(const Prepared &) = delete;
    Prepared &operator=(const Prepared &) = delete;
    void make();
    cl_context take(Context *context);
    cl_program take(const RecipePointer &recipe);
};

/* The driver's objects that a move has replaced. */
struct Replaced {
    std::vector<std::pair<Kind, void *>> list;
    void release();
};

/* With the gate closed, in this order; all but `commit` may throw Trouble, and `undo` then puts all back. */
void drain();
void make_next(Prepared &prepared, CopyQueues &from, CopyQueues &to, Store *store);
void undo();
void record_events();
void keep_mappings(CopyQueues &from); /* pointers that the program has into memory that is left */
Replaced commit(size_t candidate);
Replaced detach();

/* Requests (transaction.cpp); each throws Trouble. */
void move_to(const std::string &key, double patience_s);
void park(const std::string &folder, double patience_s); /* "": in memory */
void resume(const std::string &key);                      /* "": where it was */
void stop_moves(); /* the process ends */
std::string status_json();
bool is_parked();
bool is_exiting();

/* Keep moves away meanwhile; throws Trouble if the program cannot be moved, or not to the device of this key. */
std::unique_lock<std::mutex> keep_moves_away(const std::string &key, size_t *candidate);

/* Try before move (trial.cpp): the answer in JSON; throws Trouble. */
using Progress = std::function<void(const std::string &)>; /* throws Trouble if nobody asks any more */
std::string try_on(const std::string &key, double watch_s, size_t asked_mib, const Progress &progress);

} // namespace tenbin
