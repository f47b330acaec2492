#include "tests/support/page_store.h"

#include <sys/mman.h>

#include <array>
#include <cstring>
#include <new>
#include <thread>

#include "runtime/tensor/error.h"

namespace sherd::testing {

namespace {

class SpinLock {
 public:
  explicit SpinLock(std::atomic<std::uint32_t>& word) : word_(word) {
    while (word_.exchange(1) != 0) std::this_thread::yield();
  }
  ~SpinLock() { word_ = 0; }
  SpinLock(const SpinLock&) = delete;
  SpinLock& operator=(const SpinLock&) = delete;

 private:
  std::atomic<std::uint32_t>& word_;
};

}  // namespace

struct PageStore::Page {
  struct Entry {
    std::array<char, 64> key{};
    std::array<char, 256> value{};
    std::uint32_t value_size = 0;
    std::int64_t counter = 0;
    bool is_set = false;
  };

  std::atomic<std::uint32_t> lock{0};
  std::array<Entry, 64> entries{};

  Entry& entry(std::string_view key) {
    check(key.size() < 64, "key {} is too long for the page store", key);
    for (Entry& each : entries) {
      if (each.key[0] == '\0') std::memcpy(each.key.data(), key.data(), key.size());
      if (each.key.data() == key) return each;
    }
    fail("the page store is full");
  }
};

PageStore::PageStore() {
  void* start = ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  check(start != MAP_FAILED, "no memory for the page store");
  page_ = ::new (start) Page();
}

PageStore::~PageStore() { ::munmap(page_, sizeof(Page)); }

void PageStore::set(std::string_view key, std::string_view value) {
  const SpinLock lock(page_->lock);
  Page::Entry& entry = page_->entry(key);
  check(value.size() <= entry.value.size(), "value of {} bytes is too long for the page store", value.size());
  std::memcpy(entry.value.data(), value.data(), value.size());
  entry.value_size = static_cast<std::uint32_t>(value.size());
  entry.is_set = true;
}

std::string PageStore::get(std::string_view key, std::chrono::milliseconds deadline) {
  const auto until = std::chrono::steady_clock::now() + deadline;
  for (;;) {
    {
      const SpinLock lock(page_->lock);
      const Page::Entry& entry = page_->entry(key);
      if (entry.is_set) return {entry.value.data(), entry.value_size};
    }
    if (std::chrono::steady_clock::now() >= until)
      throw KeyNotSet(fmt::format("store: no key {} in {} ms", key, deadline.count()));
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

std::int64_t PageStore::add(std::string_view key, std::int64_t amount) {
  const SpinLock lock(page_->lock);
  Page::Entry& entry = page_->entry(key);
  return entry.counter += amount;
}

}  // namespace sherd::testing
