#include "compile/compile.h"

#include <algorithm>

#include "compile/capture.h"
#include "compile/guard.h"
#include "compile/replay.h"
#include "compile/same_program.h"
#include "compile/verify.h"

namespace sherd {

namespace {

// A replay's results have no history, so no call's have.
void drop_history(std::vector<Tensor>& tensors) {
  for (Tensor& tensor : tensors)
    if (tensor.defined()) tensor = tensor.detach();
}

}  // namespace

struct CompiledStep::Entry {
  explicit Entry(Graph recorded) : graph(std::move(recorded)), interpreter(graph) {}
  const Graph graph;
  Interpreter interpreter;
  bool compared = false;
};

CompiledStep::CompiledStep(Function function, CompileOptions options)
    : function_(std::move(function)), options_(std::move(options)) {
  check(options_.max_graphs > 0, "compile() needs room for at least one graph, got max_graphs = 0");
}
CompiledStep::~CompiledStep() = default;
CompiledStep::CompiledStep(CompiledStep&&) noexcept = default;
CompiledStep& CompiledStep::operator=(CompiledStep&&) noexcept = default;

const Graph* CompiledStep::graph() const { return entries_.empty() ? nullptr : &entries_.front()->graph; }

std::string CompiledStep::why() const {
  switch (mode_) {
    case Mode::none: return "not called yet";
    case Mode::eager: return "ran eagerly: " + reason_;
    case Mode::record: return "recorded: " + reason_;
    case Mode::replay: return "replayed";
  }
  fail("unknown mode {}", static_cast<int>(mode_));
}

std::vector<Tensor> CompiledStep::operator()(std::span<const Tensor> arguments) {
  if (RankContext::current().capture) {
    reason_ = "it is part of another captured step";
    return run_eagerly(arguments);
  }
  if (mode_ == Mode::none) {
    reason_ = "lazy state settles in the first call";
    return run_eagerly(arguments);
  }
  if (Entry* entry = find(arguments)) return replay(*entry, arguments);
  return record(arguments);
}

std::vector<Tensor> CompiledStep::run_eagerly(std::span<const Tensor> arguments) {
  std::vector<Tensor> results = function_(arguments);
  mode_ = Mode::eager;
  drop_history(results);
  return results;
}

std::vector<Tensor> CompiledStep::record(std::span<const Tensor> arguments) {
  mode_ = Mode::record;
  Recorder recorder(arguments);
  std::vector<Tensor> results = function_(arguments);
  Graph graph = recorder.finish(results);
  verify(graph);
  if (entries_.size() == options_.max_graphs) entries_.pop_back();
  entries_.insert(entries_.begin(), std::make_unique<Entry>(std::move(graph)));
  drop_history(results);
  return results;
}

std::vector<Tensor> CompiledStep::replay(Entry& entry, std::span<const Tensor> arguments) {
  mode_ = Mode::replay;
  if (options_.group && !entry.compared) check_same_program(entry.graph, *options_.group);
  entry.compared = true;
  return entry.interpreter.run(arguments);
}

CompiledStep::Entry* CompiledStep::find(std::span<const Tensor> arguments) {
  reason_.clear();
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    std::string mismatch = argument_mismatch(entries_[i]->graph, arguments);
    if (mismatch.empty()) mismatch = slot_mismatch(entries_[i]->graph);
    if (mismatch.empty()) {
      std::rotate(entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(i),
                  entries_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      return entries_.front().get();
    }
    if (i == 0) reason_ = std::move(mismatch);  // compared with the graph used last
  }
  if (entries_.empty()) reason_ = "there is no graph yet";
  return nullptr;
}

}  // namespace sherd
