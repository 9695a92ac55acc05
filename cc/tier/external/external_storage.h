/* External storage: the functions of a storage that a user writes, as the last tier of tables. Plain C, for shared libraries.
 *
 *   multitier_storage        a kind of storage, registered by name in the process. It opens a store for each table
 *   store                    the rows of one table: what `open` returns. The table has one row of a key at most
 *
 * The rows that find, insert and keys know are those of the tier. Rows that are hot are in the tiers above as well, or there
 * alone, until the table is flushed or closed. The version and the frequency of a row are not in the store: the table keeps
 * them in memory. A key that `keys` lists starts with those of a row that was never trained: -1 and 0.
 *
 * A row is the bytes of its columns: the value, then the states of the optimizer. Each column begins at a multiple of 16 bytes;
 * the bytes between two columns have no meaning. All rows of a call have the same columns. After a column was added, rows that
 * were inserted before keep the columns that they had.
 *
 * Results. 0: done. Anything else: failed, and the text in `error`, [MULTITIER_ERROR_BYTES], says why. Then the operation of
 * the table fails with this text, and the table is as it was. insert takes all rows or none.
 *
 * Threads. Any thread may call any function at any time, also several at once. For one key, insert and erase come one after the
 * other. No function may use the table whose store it is. A function may delete tables, as Python does when it collects
 * garbage: another thread closes them, and the function does not wait for it.
 *
 * A library exports `const multitier_storage* multitier_storage_get(void)`; tf_multitier.external_storage.load registers it. */

#ifndef CC_TIER_EXTERNAL_EXTERNAL_STORAGE_H_
#define CC_TIER_EXTERNAL_EXTERNAL_STORAGE_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MULTITIER_STORAGE_VERSION 1
#define MULTITIER_ERROR_BYTES 2048

enum multitier_dtype { MULTITIER_FLOAT32 = 0, MULTITIER_BFLOAT16 = 1, MULTITIER_FLOAT16 = 2 };

typedef struct multitier_column {
  const char* name;
  int32_t dtype;   /* of enum multitier_dtype */
  int32_t dim;     /* elements */
  uint64_t offset; /* bytes from the start of the row */
} multitier_column;

typedef struct multitier_row_layout {
  uint64_t row_bytes; /* of a row, and from one row to the next */
  uint64_t num_columns;
  const multitier_column* columns;
} multitier_row_layout;

typedef struct multitier_storage {
  int32_t version; /* MULTITIER_STORAGE_VERSION */
  void* context;   /* for open and unlocked */
  /* Opens the store of a table of this name. NULL: failed. */
  void* (*open)(void* context, const char* table, char* error);
  /* found: [n], 1 or 0. rows: [n, row_bytes], zeros: receives the rows of the keys that are found. */
  int (*find)(void* store, const int64_t* keys, uint64_t n, const multitier_row_layout* layout, uint8_t* found, uint8_t* rows,
              char* error);
  /* Stores a row for each key, in place of the one that it has. rows: [n, row_bytes]. */
  int (*insert)(void* store, const int64_t* keys, uint64_t n, const multitier_row_layout* layout, const uint8_t* rows,
                char* error);
  /* Forgets keys, of which some may have no row. */
  int (*erase)(void* store, const int64_t* keys, uint64_t n, char* error);
  /* Lists every key that has a row, once, by calls of add(list, keys, n). Called once, after open. NULL: none has a row. */
  int (*keys)(void* store, void (*add)(void* list, const int64_t* keys, uint64_t n), void* list, char* error);
  /* After it returns 0, all rows that were inserted before survive a crash, if those of the store do. NULL: nothing to do. */
  int (*flush)(void* store, char* error);
  void (*close)(void* store);
  /* Calls work(argument) once, without any lock that a function above needs in another thread. NULL: there is none. */
  void (*unlocked)(void* context, void (*work)(void* argument), void* argument);
} multitier_storage;

#if defined(__GNUC__)
#define MULTITIER_PUBLIC __attribute__((visibility("default")))
#else
#define MULTITIER_PUBLIC
#endif

/* Registers a copy of `storage` by this name in the library that exports this function: _tf_multitier_ops.so has tables of
 * TensorFlow, _engine.so those of tf_multitier.engine. Replaces an older one of the name, which tables that have it keep. */
MULTITIER_PUBLIC int multitier_register_storage(const char* name, const multitier_storage* storage, char* error);
/* After it returns, no function of the storage runs or will run: operations that need it fail. */
MULTITIER_PUBLIC void multitier_end_storage(const char* name);

#ifdef __cplusplus
}
#endif

#endif /* CC_TIER_EXTERNAL_EXTERNAL_STORAGE_H_ */
