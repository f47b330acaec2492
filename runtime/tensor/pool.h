#pragma once
// Fixed-size blocks for the small objects every op makes (tensor headers, storages, tape nodes). A thread keeps
// what it frees, so making one is a pop. Under AddressSanitizer blocks go straight to the system, or it would
// not see a use after free.
#include <cstddef>
#include <new>
#include <vector>

namespace sherd {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kPoolBlocks = false;
#else
inline constexpr bool kPoolBlocks = true;
#endif

template <class T>
class Pool {
 public:
  template <class... Args>
  static T* make(Args&&... args) {
    return new (take()) T(static_cast<Args&&>(args)...);
  }
  static void destroy(T* object) {
    object->~T();
    give(object);
  }

 private:
  struct Cache {
    std::vector<void*> blocks;
    bool* closed;
    explicit Cache(bool* flag) : closed(flag) { blocks.reserve(kKeep); }
    ~Cache() {
      *closed = true;  // objects that outlive the thread's cache are freed directly
      for (void* block : blocks) ::operator delete(block, std::align_val_t{alignof(T)});
    }
  };
  static constexpr std::size_t kKeep = 4096;
  static Cache* cache() {
    static thread_local bool closed = false;
    if (closed) return nullptr;
    static thread_local Cache instance(&closed);
    return &instance;
  }
  static void* take() {
    if (Cache* c = kPoolBlocks ? cache() : nullptr; c && !c->blocks.empty()) {
      void* block = c->blocks.back();
      c->blocks.pop_back();
      return block;
    }
    return ::operator new(sizeof(T), std::align_val_t{alignof(T)});
  }
  static void give(void* block) {
    if (Cache* c = kPoolBlocks ? cache() : nullptr; c && c->blocks.size() < kKeep) c->blocks.push_back(block);
    else ::operator delete(block, std::align_val_t{alignof(T)});
  }
};

}  // namespace sherd
