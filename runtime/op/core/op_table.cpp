#include "runtime/op/core/op.h"

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/exec/backend.h"
#include "runtime/op/copy/offload.h"
#include "runtime/tensor/indices.h"
#include "runtime/tensor/nearest.h"

namespace sherd {

OpTable::Entry* OpTable::find(const Op& row) const {
  const auto found = by_name_.find(row.name);
  return found != by_name_.end() && found->second->row == &row ? found->second : nullptr;
}

void OpTable::add(std::initializer_list<const Op*> rows) {
  const std::lock_guard lock(mutex_);
  for (const Op* row : rows) {
    check(!by_name_.contains(row->name), "op \"{}\" is registered twice", row->name);
    entries_.push_back({.row = row});
    by_name_[row->name] = &entries_.back();
  }
}

void OpTable::kernel(const Op& row, Device::Kind backend, Kernel function, Scratch scratch_bytes) {
  const std::lock_guard lock(mutex_);
  Entry* const entry = find(row);
  check(entry != nullptr, "a {} kernel is for op \"{}\", which is not in the table", to_string(Device{backend, 0}),
        row.name);
  entry->kernels.kernel[static_cast<std::size_t>(backend)] = function;
  if (scratch_bytes) entry->kernels.scratch[static_cast<std::size_t>(backend)] = scratch_bytes;
}

void OpTable::kernel(const Op& row, Kernel function) {
  for (const int backend : up_to(kNumBackends)) kernel(row, static_cast<Device::Kind>(backend), function);
}

void OpTable::scratch(const Op& row, Device::Kind backend, Scratch function) {
  const std::lock_guard lock(mutex_);
  Entry* const entry = find(row);
  check(entry != nullptr, "scratch is for op \"{}\", which is not in the table", row.name);
  entry->kernels.scratch[static_cast<std::size_t>(backend)] = function;
}

const Op& OpTable::at(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  if (const auto found = by_name_.find(name); found != by_name_.end()) return *found->second->row;
  std::vector<std::string> names;
  for (const Entry& entry : entries_) names.emplace_back(entry.row->name);
  fail("no op \"{}\"{}", name, did_you_mean(name, names));
}

const RowKernels& OpTable::kernels(const Op& row) const {
  const std::lock_guard lock(mutex_);
  const Entry* const entry = find(row);
  check(entry != nullptr, "op \"{}\" is not in the table; whoever defines a row adds it, by add_rows()", row.name);
  return entry->kernels;
}

std::vector<const Op*> OpTable::rows() const {
  const std::lock_guard lock(mutex_);
  std::vector<const Op*> rows;
  for (const Entry& entry : entries_) rows.push_back(entry.row);
  return rows;
}

void register_families(OpTable& table) {
  register_pointwise(table);
  register_reduce(table);
  register_matmul(table);
  register_view(table);
  register_index(table);
  register_norm(table);
  register_attention(table);
  register_loss(table);
  register_random(table);
  register_create(table);
  register_optimizer(table);
  register_exact_sum(table);
  register_collective(table);
  register_unit(table);
  register_transfer(table);
  register_wait(table);
}

namespace {

using Fill = void (*)(OpTable&);

// The table whose entries rows point into.
class ProcessTable {
 public:
  ProcessTable() {
    register_families(table_);
    register_offload(table_);
    register_cpu(table_);
    publish();
  }
  OpTable& table() { return table_; }
  void add(Fill fill) {
    const std::lock_guard lock(mutex_);
    if (std::find(added_.begin(), added_.end(), fill) != added_.end()) return;
    fill(table_);
    publish();
    added_.push_back(fill);
  }

 private:
  // Rows get their pointers only when all rows added with them have their kernels.
  void publish() const {
    for (const Op* row : table_.rows())
      if (!row->kernels.load(std::memory_order_relaxed))
        row->kernels.store(&table_.kernels(*row), std::memory_order_release);
  }

  OpTable table_;
  std::mutex mutex_;
  std::vector<Fill> added_;
};

ProcessTable& process_table() {
  static ProcessTable& process = *new ProcessTable;  // never destroyed: rows point into it
  return process;
}
}  // namespace

const OpTable& op_table() { return process_table().table(); }

void add_rows(void (*fill)(OpTable& table)) { process_table().add(fill); }

void add_kernels(const Backend& backend) { backend.register_kernels(process_table().table()); }

}  // namespace sherd
