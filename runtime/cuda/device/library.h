#pragma once
// A library that is opened by name when something first wants it, and used through a table of its functions: a host
// without it loses what it is for and nothing else.
#include <string>
#include <vector>

namespace sherd::cuda {

/// One function of a library and the pointer that receives its address.
struct Binding {
  template <class F>
  Binding(const char* function, F** to) : name(function), address(reinterpret_cast<void**>(to)) {}
  const char* name;
  void** address;
};

/// Where a library may be, beyond where every one is looked for.
struct LibraryPlaces {
  const char* variable = "";  ///< of the environment, by which a user names the file
  std::string asked{};        ///< what it says; no other file is opened then
  const char* wheel = "";     ///< the file within Python's packages (python_wheels.h); the last place
};

class Library {
 public:
  /// Opens `file` ("libcudnn.so.9"): the one beside this backend, else the one the loader finds (LD_LIBRARY_PATH, its
  /// cache). Local to this backend and never closed. Does not throw.
  explicit Library(std::string file, const LibraryPlaces& places = {});

  /// False: not found, or refused; the reason says which.
  bool usable() const { return handle_ != nullptr; }
  /// Where it was found; the name that was looked for if it was not.
  const std::string& path() const { return path_; }
  const std::string& reason() const { return reason_; }

  /// Fills the pointers. A function that is missing makes the library unusable, with a reason that names it.
  void bind(const std::vector<Binding>& bindings);
  /// Fills the pointer, with null if the library is unusable or has no such function; false then.
  bool bind_optional(const Binding& binding) const;
  /// Makes it unusable, saying why: a version that is too old.
  void refuse(const std::string& why);
  /// A line of `sherd info`: "9.19.0, /usr/lib/libcudnn.so.9", or why there is none.
  std::string describe(const std::string& version) const;

 private:
  bool open(const std::string& file);
  void* handle_ = nullptr;
  std::string path_, reason_;
};

}  // namespace sherd::cuda
