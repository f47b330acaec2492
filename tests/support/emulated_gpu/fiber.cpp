#include "tests/support/emulated_gpu/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

// Saves the registers a call must keep, stores the stack pointer at *from, and goes on where `to` was stored. x86-64,
// System V convention: arguments in rdi and rsi; rbx, rbp and r12 to r15 are the callee's to keep.
extern "C" void sherd_emulated_switch(void** from, void* to);
asm(R"(
.text
.globl sherd_emulated_switch
.hidden sherd_emulated_switch
.type sherd_emulated_switch, @function
sherd_emulated_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size sherd_emulated_switch, .-sherd_emulated_switch
)");

namespace sherd::cuda::emulated {

namespace {
constexpr std::size_t kStackBytes = 192 * 1024;
constexpr std::size_t kGuardBytes = 4096;
constexpr int kSavedRegisters = 6;
}  // namespace

// Stacks of one alignment would share a few sets of every cache and push each other out at each switch.
Fiber::Fiber(std::size_t index) : colour_(index % 61 * 1088 / 64 * 64) {
  void* mapped = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<std::byte*>(mapped);
  mprotect(memory_, kGuardBytes, PROT_NONE);
}

Fiber::~Fiber() { munmap(memory_, kStackBytes); }

void Fiber::restart(void (*entry)()) {
  // From the top, which is aligned: a null return address for entry, which never returns, and leaves the stack aligned
  // as at any function's start; entry itself; the registers to pop.
  auto** top = reinterpret_cast<void**>(memory_ + kStackBytes - colour_);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
  stack_pointer_ = top;
}

void Fiber::resume(void** home) { sherd_emulated_switch(home, stack_pointer_); }
void Fiber::leave(void* home) { sherd_emulated_switch(&stack_pointer_, home); }

bool Fiber::owns(const void* address) const { return address >= memory_ && address < memory_ + kStackBytes; }

}  // namespace sherd::cuda::emulated
