#pragma once
// Whether calls are put on the tape: a mode of the rank's thread.

namespace sherd {

/// Turns recording off (or on) for a scope on this thread.
class GradMode {
 public:
  explicit GradMode(bool enabled);
  ~GradMode();
  GradMode(const GradMode&) = delete;
  GradMode& operator=(const GradMode&) = delete;

 private:
  bool outer_;
};

}  // namespace sherd
