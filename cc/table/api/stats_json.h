// TableStats as a JSON object, for the op and the Python module.

#ifndef CC_TABLE_API_STATS_JSON_H_
#define CC_TABLE_API_STATS_JSON_H_

#include <string>

#include "cc/table/api/embedding_table.h"

namespace multitier {

// Members are named as the fields; "tiers" is an array; "sticky_error" is a string, empty where there is none.
std::string StatsToJson(EmbeddingTable* table);

}  // namespace multitier

#endif  // CC_TABLE_API_STATS_JSON_H_
