#pragma once
// Fixed-size blocks for the small objects every op makes (tensor headers, storages, tape nodes). A thread keeps
// what it frees, so making one is a pop. Under AddressSanitizer blocks go straight to the system, or it would
// not see a use after free.
#include <cstddef>
#include <new>

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
    void* const block = take();
    try {
      return new (block) T(static_cast<Args&&>(args)...);
    } catch (...) {
      give(block);
      throw;
    }
  }
  static void destroy(T* object) {
    object->~T();
    give(object);
  }

 private:
  // Free blocks are chained through their first word. Plain data, so that the thread's hot path is two loads; what
  // frees the chain when the thread ends is registered when the first block comes back.
  struct Link {
    Link* next;
  };
  struct FreeList {
    Link* head = nullptr;
    std::size_t room = 0;  // for how many blocks more
    bool registered = false;
  };
  struct Closer {
    ~Closer() {
      free_.room = 0;  // objects that outlive the thread's list are freed directly
      while (Link* link = free_.head) {
        free_.head = link->next;
        ::operator delete(link, std::align_val_t{alignof(T)});
      }
    }
  };
  static constexpr std::size_t kKeep = 4096;
  static_assert(sizeof(T) >= sizeof(Link) && alignof(T) >= alignof(Link));
  static inline thread_local constinit FreeList free_ __attribute__((tls_model("initial-exec")));

  static void* take() {
    if (Link* link = free_.head) {
      free_.head = link->next;
      ++free_.room;
      return link;
    }
    return ::operator new(sizeof(T), std::align_val_t{alignof(T)});
  }
  static void give(void* block) {
    if (!kPoolBlocks || (free_.room == 0 && !open())) [[unlikely]]
      return ::operator delete(block, std::align_val_t{alignof(T)});
    free_.head = new (block) Link{free_.head};
    --free_.room;
  }
  // Makes room for the thread's first block. False: the list is full, or closed for good.
  static bool open() {
    if (free_.registered) return false;
    [[maybe_unused]] static thread_local Closer closer;
    free_.registered = true;
    free_.room = kKeep;
    return true;
  }
};

}  // namespace sherd
