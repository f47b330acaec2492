#pragma once
// Which machine this is, and which build of the library runs on it: for what is measured once and kept.
#include <string>

namespace sherd {

/// The CPU as the system calls it; "unknown" if it does not.
std::string cpu_model();
/// The note that the linker has made of libsherd.so's contents (--build-id), in hex; empty where it has made none.
std::string build_id();

}  // namespace sherd
