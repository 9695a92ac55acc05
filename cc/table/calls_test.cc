// The calls between the files of cc/table have no cycle: a file can be read, and tested, with those that it calls.
//
// A call is a symbol that one object file uses and another one defines, as nm shows them. Calls through std::function and
// virtual methods are not seen: they are what a part offers to those above it.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace multitier {
namespace {

using Calls = std::map<std::string, std::map<std::string, std::string>>;  // caller -> callee -> a symbol

// Object files, as nm -A -P lists them (the target `symbols`): "libshard.a[shard_rows.o]: symbol type ...".
struct Symbols {
  std::map<std::string, std::string> defined_by;         // symbol -> file
  std::map<std::string, std::set<std::string>> used_by;  // file -> symbols
};

void AddLine(const std::string& line, Symbols* symbols) {
  const size_t open = line.find('['), dot = line.find(".", open), close = line.find("]: ", open);
  if (open == std::string::npos || close == std::string::npos || dot > close) return;
  const std::string file = line.substr(open + 1, dot - open - 1);
  std::istringstream rest(line.substr(close + 3));
  std::string symbol, type;
  rest >> symbol >> type;
  if (type == "U") symbols->used_by[file].insert(symbol);
  if (type.size() == 1 && std::string("TDBR").find(type) != std::string::npos) symbols->defined_by[symbol] = file;
}

Calls CallsOf(const Symbols& symbols) {
  Calls calls;
  for (const auto& [file, used] : symbols.used_by) {
    for (const std::string& symbol : used) {
      const auto definer = symbols.defined_by.find(symbol);
      if (definer != symbols.defined_by.end() && definer->second != file) calls[file][definer->second] = symbol;
    }
  }
  return calls;
}

// Whether `to` can be reached from `from`.
bool Reaches(const Calls& calls, const std::string& from, const std::string& to) {
  std::set<std::string> seen;
  std::vector<std::string> next{from};
  while (!next.empty()) {
    const auto callees = calls.find(next.back());
    next.pop_back();
    if (callees == calls.end()) continue;
    for (const auto& callee : callees->second) {
      if (callee.first == to) return true;
      if (seen.insert(callee.first).second) next.push_back(callee.first);
    }
  }
  return false;
}

// The calls that lead back to their caller, one a line.
std::string CallsInCycles(const Calls& calls) {
  std::string found;
  for (const auto& [caller, callees] : calls) {
    for (const auto& [callee, symbol] : callees) {
      if (Reaches(calls, callee, caller)) found += caller + " -> " + callee + ": " + symbol + "\n";
    }
  }
  return found;
}

Symbols SymbolsOfTable() {
  Symbols symbols;
  std::ifstream lines("cc/table/symbols.txt");
  for (std::string line; std::getline(lines, line);) AddLine(line, &symbols);
  return symbols;
}

TEST(CallsTest, CallsBetweenFilesHaveNoCycle) {
  const Calls calls = CallsOf(SymbolsOfTable());
  EXPECT_GE(calls.size(), 15u);  // of more than twenty files
  EXPECT_TRUE(Reaches(calls, "creation", "shard_rows"));
  EXPECT_EQ(CallsInCycles(calls), "");
}

TEST(CallsTest, EverySourceIsRead) {
  const Symbols symbols = SymbolsOfTable();
  int sources = 0;
  for (const auto& entry : std::filesystem::directory_iterator("cc/table")) {
    if (entry.path().extension() != ".cc") continue;
    ++sources;
    EXPECT_EQ(symbols.used_by.count(entry.path().stem()), 1u) << entry.path() << ": add its target to `symbols` in BUILD";
  }
  EXPECT_GT(sources, 20);
}

TEST(CallsTest, ACycleIsFound) {
  Symbols symbols;
  for (const char* line : {"l.a[a.o]: f T 0 1", "l.a[a.o]: g U", "l.a[b.pic.o]: g T 0 1", "l.a[b.pic.o]: h U",
                           "m.a[c.o]: h T 0 1", "m.a[c.o]: f U", "m.a[d.o]: f U", "m.a[d.o]: weak W 0 1"}) {
    AddLine(line, &symbols);
  }
  EXPECT_EQ(CallsInCycles(CallsOf(symbols)), "a -> b: g\nb -> c: h\nc -> a: f\n");
}

}  // namespace
}  // namespace multitier
