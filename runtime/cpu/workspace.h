#pragma once
// Buffers of the thread that runs a chunk: packed panels, tiles, one converted row, the packed keys of one head, a
// library's scratchpad. They grow to the largest piece of work a thread has had and stay. What grows with the whole
// problem is asked for in the row's scratch column instead, where it is accounted.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace sherd::cpu {

/// Use of a buffer: uses that can be nested in one chunk have buffers of their own.
enum class WorkspaceUse : std::uint8_t { gemm_library, gemm_shared, gemm_sums, gemm_panels, tiles, row };

/// `bytes` of this thread's memory, aligned to 64, contents undefined; valid until the next call with the same use on
/// this thread.
std::byte* thread_workspace(WorkspaceUse use, std::int64_t bytes);

/// What this thread's buffers take of the system, pages included. No rank accounts it: it depends on which chunks a
/// thread has happened to run.
std::int64_t thread_workspace_bytes();

template <class T>
T* thread_workspace(WorkspaceUse use, std::int64_t count) {
  return reinterpret_cast<T*>(thread_workspace(use, count * static_cast<std::int64_t>(sizeof(T))));
}

}  // namespace sherd::cpu
