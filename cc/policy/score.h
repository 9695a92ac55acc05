// Score: what an update sets as the version of its rows, and so which rows leave first under Replacement::kScore.

#ifndef CC_POLICY_SCORE_H_
#define CC_POLICY_SCORE_H_

namespace multitier {

enum class Score {
  kStep,       // the global step of the update, or the table's own count of updates
  kTime,       // microseconds of the wall clock; never decreases in a table
  kCustom,     // a number that the program sets
  kFrequency,  // the row's frequency is its score; the version is as of kStep
};

}  // namespace multitier

#endif  // CC_POLICY_SCORE_H_
