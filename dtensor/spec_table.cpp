#include "dtensor/spec_table.h"

namespace sherd {

SpecTable::~SpecTable() {
  for (auto& [key, entry] : layouts_) former_->push_back(std::move(entry.layout));
  while (former_->size() > kMostFormer) former_->pop_front();
}

const Spec* SpecTable::add(Key key, const Spec* made) {
  if (key.lists_rows() && ++num_listed_ >= 2 * num_kept_ + kFewest) drop_unused();
  return layouts_.emplace(std::move(key), Entry{made, num_asked_}).first->second.layout;
}

// As many were added as were held at the last look, so that looks cost each layout the same.
void SpecTable::drop_unused() {
  std::erase_if(layouts_, [&](const auto& known) {
    const auto& [key, entry] = known;
    return key.lists_rows() && entry.layout->use_count() == 1 && num_asked_ - entry.asked > Spec::kYoung;
  });
  num_kept_ = 0;
  for (const auto& [key, entry] : layouts_) num_kept_ += key.lists_rows();
  num_listed_ = num_kept_ + 1;  // the one that is being added
}

std::vector<LayoutRef> SpecTable::called(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  std::vector<LayoutRef> found;
  for (const auto& [key, entry] : layouts_)
    if (entry.layout->name() == name) found.emplace_back(entry.layout.get());
  return found;
}

std::size_t SpecTable::size() const {
  const std::lock_guard lock(mutex_);
  return layouts_.size();
}

}  // namespace sherd
