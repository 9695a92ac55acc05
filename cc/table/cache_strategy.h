// CacheStrategy: which rows leave a tier first.

#ifndef CC_TABLE_CACHE_STRATEGY_H_
#define CC_TABLE_CACHE_STRATEGY_H_

namespace multitier {

enum class CacheStrategy {
  kDefault = 0,
  kLru = 1,  // the least recently used: recency = (operation, last occurrence in its batch)
  kLfu = 2,  // the lowest frequency, of those the least recently used
};

}  // namespace multitier

#endif  // CC_TABLE_CACHE_STRATEGY_H_
