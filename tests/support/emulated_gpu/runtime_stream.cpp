// The runtime API of the emulated device: streams and events.
#include <algorithm>

#include "tests/support/emulated_gpu/gpu.h"

using namespace sherd::cuda::emulated;

namespace {

cudaError_t break_capture(Stream& stream, cudaError_t status) {
  stream.capture->broken = true;
  return status;
}

}  // namespace

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return call("cudaDeviceGetStreamPriorityRange", [&](Gpu&) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
  });
}

// Streams that synchronise with the legacy default stream are refused: nothing here runs on that one.
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags, int priority) {
  return call("cudaStreamCreateWithPriority", [&](Gpu& g) {
    if (flags != cudaStreamNonBlocking) return cudaErrorInvalidValue;
    auto stream = std::make_unique<Stream>();
    stream->device = current_device();
    stream->number = ++g.num_streams;
    stream->priority = std::clamp(priority, -5, 0);
    Stream* made = stream.get();
    g.streams[made] = std::move(stream);
    *handle = reinterpret_cast<cudaStream_t>(made);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
  return cudaStreamCreateWithPriority(handle, flags, 0);
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  return call("cudaStreamGetPriority", [&](Gpu& g) {
    const Stream* stream = g.find(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    *priority = stream->priority;
    return cudaSuccess;
  });
}

// Work that is queued still runs.
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return call("cudaStreamDestroy", [&](Gpu& g) {
    Stream* stream = g.find(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (stream->capture) return break_capture(*stream, cudaErrorStreamCaptureUnsupported);
    stream->destroyed = true;
    if (stream->queue.empty()) g.streams.erase(stream);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return call("cudaStreamSynchronize", [&](Gpu& g) {
    Stream* stream = g.find(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (stream->capture) return break_capture(*stream, cudaErrorStreamCaptureUnsupported);
    g.count_sync();
    g.complete(*stream);
    return g.broken;
  });
}

// A loop of queries ends: each may run something.
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return call("cudaStreamQuery", [&](Gpu& g) {
    Stream* stream = g.find(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (stream->capture) return break_capture(*stream, cudaErrorStreamCaptureUnsupported);
    if (!stream->queue.empty() && g.random.once_in(2)) g.run_something();
    if (g.broken != cudaSuccess) return g.broken;
    return stream->queue.empty() ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
  return call("cudaEventCreateWithFlags", [&](Gpu& g) {
    auto event = std::make_unique<Event>();
    event->device = current_device();
    event->timed = (flags & cudaEventDisableTiming) == 0;
    Event* made = event.get();
    g.events[made] = std::move(event);
    *handle = reinterpret_cast<cudaEvent_t>(made);
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* handle) { return cudaEventCreateWithFlags(handle, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  return call("cudaEventDestroy", [&](Gpu& g) {
    Event* event = g.find(handle);
    if (!event) return cudaErrorInvalidResourceHandle;
    g.events.erase(event);
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
  return call("cudaEventRecord", [&](Gpu& g) {
    Event* event = g.find(handle);
    Stream* stream = g.find(stream_handle);
    if (!event || !stream || event->device != stream->device) return cudaErrorInvalidResourceHandle;
    event->capture = stream->capture;
    if (stream->capture) {
      event->nodes = stream->tail;
      return cudaSuccess;
    }
    event->record = g.enqueue(*stream, nullptr);
    return g.broken;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream_handle, cudaEvent_t handle, unsigned) {
  return call("cudaStreamWaitEvent", [&](Gpu& g) {
    const Event* event = g.find(handle);
    Stream* stream = g.find(stream_handle);
    if (!event || !stream) return cudaErrorInvalidResourceHandle;
    if (event->capture) {
      if (event->capture->ended) return cudaErrorCapturedEvent;
      if (!stream->capture) stream->capture = event->capture;  // the stream joins
      if (stream->capture != event->capture) return break_capture(*stream, cudaErrorStreamCaptureIsolation);
      for (const std::size_t node : event->nodes)
        if (std::find(stream->tail.begin(), stream->tail.end(), node) == stream->tail.end())
          stream->tail.push_back(node);
      return cudaSuccess;
    }
    if (stream->capture) return break_capture(*stream, cudaErrorStreamCaptureIsolation);
    if (!event->record || event->record->done) return cudaSuccess;
    g.enqueue(*stream, nullptr, {event->record});
    return g.broken;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return call("cudaEventQuery", [&](Gpu& g) {
    const Event* event = g.find(handle);
    if (!event) return cudaErrorInvalidResourceHandle;
    if (event->capture) return cudaErrorCapturedEvent;
    if (!event->record) return cudaSuccess;
    if (!event->record->done && g.random.once_in(2)) g.run_something();
    if (g.broken != cudaSuccess) return g.broken;
    return event->record->done ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return call("cudaEventSynchronize", [&](Gpu& g) {
    const Event* event = g.find(handle);
    if (!event) return cudaErrorInvalidResourceHandle;
    if (event->capture) return cudaErrorCapturedEvent;
    g.count_sync();
    if (event->record) g.complete(event->record);
    return g.broken;
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start_handle, cudaEvent_t end_handle) {
  return call("cudaEventElapsedTime", [&](Gpu& g) {
    const Event* start = g.find(start_handle);
    const Event* end = g.find(end_handle);
    if (!start || !end || !start->timed || !end->timed || !start->record || !end->record)
      return cudaErrorInvalidResourceHandle;
    if (!start->record->done || !end->record->done) return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(end->record->when - start->record->when).count();
    return cudaSuccess;
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* argument) {
  return call("cudaLaunchHostFunc", [&](Gpu& g) {
    Stream* stream = g.find(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    g.enqueue(*stream, [function, argument] {
      in_host_function() = true;
      function(argument);
      in_host_function() = false;
    });
    return g.broken;
  });
}
