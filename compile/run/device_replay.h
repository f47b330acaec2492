#pragma once
// A replay of a graph as one piece of work of a device (a CUDA graph): the interpreter runs once while the device
// records what it queues, and each further replay starts the recording in one call.
//
//   record   slots' bytes -> |                                   | -> copies of what the step hands back
//   launch   arguments    -> | kernels of all nodes, recorded    | -> new values of slots, copied over the old ones
//                 copied in    addresses never change
#include <string>
#include <vector>

#include "compile/ir/graph.h"
#include "compile/run/replay.h"
#include "runtime/exec/backend.h"

namespace sherd {

/// The device a graph's values are on; the host if none is elsewhere.
Device device_of(const Graph& graph);
/// Why a verified graph cannot be replayed by a device in one call: "argument 0 is on the host; move it with to()
/// before the step". Empty if it can.
std::string device_obstacle(const Graph& graph);

/// One graph on one device; recorded anew too if somebody else holds a tensor that the recording would write over.
/// Bytes that the graph reads or writes stay where they were recorded; if a slot's have moved, it is recorded anew.
/// Same bits as the interpreter's: the same kernels in the same order.
class DeviceReplay {
 public:
  /// `graph` has no obstacle; both stay where they are.
  DeviceReplay(const Graph& graph, Interpreter& interpreter);

  /// As Interpreter::run, but queued only: nothing waits for the device. Errors come from recording, before any work of
  /// this call has started.
  std::vector<Tensor> run(std::span<const Tensor> arguments);
  /// Whether units are as the recording finds them: released. One that is gathered now is for the interpreter.
  bool fits_units() const;
  int num_recordings() const { return num_recordings_; }
  std::int64_t num_nodes() const { return recorded_->num_nodes(); }
  Device device() const { return device_; }

 private:
  /// A slot or its gradient whose new value the step leaves elsewhere.
  struct LateUpdate {
    const SlotUpdate* update;
    Tensor value;  // in memory of the recording, or an older tensor
  };
  struct Place {  // of a binding; holds nothing, so that a slot stays the only owner of its bytes
    std::uint64_t storage_id;
    const std::byte* address;
  };
  void hold_arguments(std::span<const Tensor> arguments);
  void record();
  void keep_what_remains();
  bool is_updated_in_place(const SlotUpdate& update) const;
  bool is_current() const;
  Tensor room_for(const Tensor& tensor, ValueId value) const;

  const Graph& graph_;
  Interpreter& interpreter_;
  Device device_;
  std::vector<Tensor> arguments_;  // what the recording reads
  std::vector<Tensor> results_;
  std::vector<LateUpdate> late_updates_;
  std::vector<int> slots_in_place_;        // slots whose bytes the recording overwrites with their new value
  std::vector<Place> places_;              // by binding
  std::vector<std::size_t> written_;       // bindings whose bytes nodes write in place
  std::unique_ptr<DeviceGraph> recorded_;  // after what lies in its memory, so that it goes first
  int num_recordings_ = 0;
};

}  // namespace sherd
