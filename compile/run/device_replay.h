#pragma once
// A replay of a graph as one launch on a device (a CUDA graph): the interpreter runs once while the device records the
// queued work, and each further replay launches the recording in one call.
//
//   record   slots' bytes -> |                                   | -> copies of the step's results
//   launch   arguments    -> | kernels of all nodes, recorded    | -> new values of slots, copied over the old ones
//                 copied in    addresses never change
#include <string>
#include <vector>

#include "compile/ir/graph.h"
#include "compile/run/replay.h"
#include "runtime/exec/backend.h"

namespace sherd {

/// The device a program's values are on; the host if none is elsewhere.
Device device_of(const ir::Program& program);
/// Why a graph, whose program is verified, cannot be replayed by a device in one call: "argument 0 is on the host; move
/// it with to() before the step". Empty if it can.
std::string device_obstacle(const ir::Graph& graph);

/// One graph on one device. The recording has fixed addresses: if a slot's bytes have moved, a unit no longer keeps the
/// memory that it kept (Storage::set_keeps_memory), or another handle shares a tensor that the recording would
/// overwrite, it is recorded again. Same bits as the interpreter's: the same kernels in the same order.
class DeviceReplay {
 public:
  /// `graph` has no obstacle; both stay where they are.
  DeviceReplay(const ir::Graph& graph, Interpreter& interpreter);

  /// As Interpreter::run, but queued only: nothing waits for the device. Errors come from recording, before any work of
  /// this call has started.
  std::vector<Tensor> run(std::span<const Tensor> arguments);
  /// Whether all units are released, as the recording requires. With one gathered, the interpreter must run.
  bool fits_units() const;
  int num_recordings() const { return num_recordings_; }
  std::int64_t num_nodes() const { return recorded_->num_nodes(); }
  Device device() const { return device_; }

 private:
  /// A slot or its gradient whose new value is not copied over the old one.
  struct LateUpdate {
    const ir::SlotUpdate* update;
    Tensor value;  // in memory of the recording, or an older tensor
  };
  struct Place {  // of a binding; holds nothing, so that a slot stays the only owner of its bytes
    std::uint64_t storage_id;
    const std::byte* address;
  };
  void hold_arguments(std::span<const Tensor> arguments);
  void record();
  void note_kept_memory();
  void keep_what_remains();
  bool is_updated_in_place(const ir::SlotUpdate& update) const;
  bool is_current() const;

  const ir::Graph& graph_;
  const ir::Program& program_;
  const ir::Live& live_;
  Interpreter& interpreter_;
  Device device_;
  std::vector<Tensor> arguments_;  // the recording's own, copied into before a launch
  std::vector<Tensor> results_;
  std::vector<LateUpdate> late_updates_;
  std::vector<int> slots_in_place_;        // slots whose bytes the recording overwrites with their new value
  std::vector<Place> places_;              // by binding
  std::vector<const std::byte*> kept_;     // by unit: memory that it kept, which the recording uses; or null
  std::vector<std::size_t> written_;       // bindings whose bytes nodes write in place
  std::unique_ptr<DeviceGraph> recorded_;  // declared after the tensors in its memory, so that it is destroyed first
  int num_recordings_ = 0;
};

}  // namespace sherd
