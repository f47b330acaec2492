#pragma once
// A Store in one anonymous shared page, for ranks forked from the process that made it. Small: 64 entries.
#include <atomic>
#include <memory>

#include "runtime/comm/store/store.h"

namespace sherd::testing {

class PageStore final : public Store {
 public:
  PageStore();
  ~PageStore() override;
  PageStore(const PageStore&) = delete;
  PageStore& operator=(const PageStore&) = delete;

  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, std::chrono::milliseconds deadline) override;
  std::int64_t add(std::string_view key, std::int64_t amount) override;

 private:
  struct Page;
  Page* page_;
};

}  // namespace sherd::testing
