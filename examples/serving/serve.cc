// Serves a SavedModel with embedding variables from C++, through TensorFlow's C API. Needs neither Python nor a Bazel build.
//
//   serve OP_LIBRARY INPUT_TENSOR OUTPUT_TENSOR SAVED_MODEL
//
// OP_LIBRARY is what tf_multitier.get_library_path() returns. INPUT_TENSOR is a string tensor [n], OUTPUT_TENSOR a float
// tensor, as `saved_model_cli show --all` prints them. Each line of the standard input is a request: words, separated by
// spaces. The answer is a line of numbers. The line "!reload PATH" loads the next version and then answers from it. PATH is the
// directory of a SavedModel, or the prefix of a checkpoint, whose variables the graph of the current SavedModel then gets. The
// checkpoint may be a delta.
//
// A version is a TensorFlow session. Requests hold a shared pointer to the version that was current when they began. So a
// request sees one version, and the old one is deleted when its last request has ended. Read-only variables of versions that
// continue the same base share its rows, so a delta is loaded in a time that is proportional to what it changes.

#include <tensorflow/c/c_api.h>
#include <tensorflow/c/tf_tstring.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

struct Deleter {
  void operator()(TF_Status* s) const { TF_DeleteStatus(s); }
  void operator()(TF_Graph* g) const { TF_DeleteGraph(g); }
  void operator()(TF_Tensor* t) const { TF_DeleteTensor(t); }
  void operator()(TF_Buffer* b) const { TF_DeleteBuffer(b); }
  void operator()(TF_SessionOptions* o) const { TF_DeleteSessionOptions(o); }
};
template <typename T>
using Owned = std::unique_ptr<T, Deleter>;

void Check(const TF_Status* status) {
  if (TF_GetCode(status) != TF_OK) throw std::runtime_error(TF_Message(status));
}

// A string tensor [n].
Owned<TF_Tensor> Strings(const std::vector<std::string>& values) {
  const int64_t n = static_cast<int64_t>(values.size());
  Owned<TF_Tensor> tensor(TF_AllocateTensor(TF_STRING, &n, 1, values.size() * sizeof(TF_TString)));
  auto* strings = static_cast<TF_TString*>(TF_TensorData(tensor.get()));
  for (const std::string& value : values) {
    TF_TString_Init(strings);
    TF_TString_Copy(strings++, value.data(), value.size());
  }
  return tensor;
}

// A string scalar.
Owned<TF_Tensor> Text(const std::string& value) {
  Owned<TF_Tensor> tensor(TF_AllocateTensor(TF_STRING, nullptr, 0, sizeof(TF_TString)));
  auto* text = static_cast<TF_TString*>(TF_TensorData(tensor.get()));
  TF_TString_Init(text);
  TF_TString_Copy(text, value.data(), value.size());
  return tensor;
}

class Version {
 public:
  // directory: of a SavedModel. prefix: of the checkpoint whose variables it gets, or empty: its own. input, output: names of
  // tensors.
  Version(const std::string& directory, const std::string& prefix, const std::string& input, const std::string& output)
      : graph_(TF_NewGraph()) {
    Owned<TF_Status> status(TF_NewStatus());
    Owned<TF_SessionOptions> options(TF_NewSessionOptions());
    const char* tag = "serve";
    session_ =
        TF_LoadSessionFromSavedModel(options.get(), nullptr, directory.c_str(), &tag, 1, graph_.get(), nullptr, status.get());
    Check(status.get());
    input_ = Find(input);
    output_ = Find(output);
    if (!prefix.empty()) Restore(prefix);
  }
  ~Version() {
    Owned<TF_Status> status(TF_NewStatus());
    TF_CloseSession(session_, status.get());
    TF_DeleteSession(session_, status.get());
  }
  Version(const Version&) = delete;
  Version& operator=(const Version&) = delete;

  // Thread-safe.
  std::vector<float> Run(const std::vector<std::string>& words) const {
    Owned<TF_Status> status(TF_NewStatus());
    const Owned<TF_Tensor> fed = Strings(words);
    TF_Tensor* const inputs[] = {fed.get()};
    TF_Tensor* outputs[] = {nullptr};
    TF_SessionRun(session_, nullptr, &input_, inputs, 1, &output_, outputs, 1, nullptr, 0, nullptr, status.get());
    Check(status.get());
    const Owned<TF_Tensor> answer(outputs[0]);
    const auto* values = static_cast<const float*>(TF_TensorData(answer.get()));
    return std::vector<float>(values, values + TF_TensorElementCount(answer.get()));
  }

 private:
  TF_Output Find(const std::string& tensor) const {
    const size_t colon = tensor.find(':');
    TF_Operation* const op = TF_GraphOperationByName(graph_.get(), tensor.substr(0, colon).c_str());
    if (op == nullptr) throw std::runtime_error("the graph has no tensor " + tensor);
    return {op, colon == std::string::npos ? 0 : std::atoi(tensor.c_str() + colon + 1)};
  }

  // Runs the restore of the SavedModel's own Saver, which is the last one of the graph.
  void Restore(const std::string& prefix) {
    TF_Operation* restore = nullptr;
    std::string scope;
    size_t position = 0;
    while (TF_Operation* const op = TF_GraphNextOperation(graph_.get(), &position)) {
      const std::string name = TF_OperationName(op), end = "/restore_all";
      if (name.size() <= end.size() || name.compare(name.size() - end.size(), end.size(), end) != 0) continue;
      restore = op;
      scope = name.substr(0, name.size() - end.size());
    }
    if (restore == nullptr) throw std::runtime_error("the graph has no Saver");
    Owned<TF_Status> status(TF_NewStatus());
    const TF_Output file = Find(scope + "/Const:0");
    const Owned<TF_Tensor> fed = Text(prefix);
    TF_Tensor* const inputs[] = {fed.get()};
    TF_SessionRun(session_, nullptr, &file, inputs, 1, nullptr, nullptr, 0, &restore, 1, nullptr, status.get());
    Check(status.get());
  }

  const Owned<TF_Graph> graph_;
  TF_Session* session_ = nullptr;
  TF_Output input_, output_;
};

bool IsSavedModel(const std::string& path) { return std::ifstream(path + "/saved_model.pb").good(); }

int Serve(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: serve OP_LIBRARY INPUT_TENSOR OUTPUT_TENSOR SAVED_MODEL\n");
    return 2;
  }
  Owned<TF_Status> status(TF_NewStatus());
  TF_LoadLibrary(argv[1], status.get());  // registers the ops; it stays loaded
  Check(status.get());
  const std::string reload = "!reload ";
  std::string model = argv[4], line;
  auto current = std::make_shared<const Version>(model, "", argv[2], argv[3]);
  while (std::getline(std::cin, line)) {
    if (line.compare(0, reload.size(), reload) == 0) {
      const std::string path = line.substr(reload.size());
      const bool is_model = IsSavedModel(path);
      if (is_model) model = path;
      current =
          std::make_shared<const Version>(model, is_model ? "" : path, argv[2], argv[3]);  // in a server: std::atomic_store
      continue;
    }
    std::istringstream in(line);
    std::vector<std::string> words;
    for (std::string word; in >> word;) words.push_back(word);
    const std::shared_ptr<const Version> version = current;
    const std::vector<float> values = version->Run(words);
    for (size_t i = 0; i < values.size(); ++i) std::printf(i == 0 ? "%.9g" : " %.9g", values[i]);
    std::printf("\n");
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Serve(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "serve: %s\n", error.what());
    return 1;
  }
}
