// Handles of a Device: opaque values that only the Device that created them can use.

#ifndef CC_DEVICE_STREAM_H_
#define CC_DEVICE_STREAM_H_

namespace multitier::device {

// Work on one stream runs in the order in which it was enqueued. A cudaStream_t, or a stream of the emulated device.
struct Stream {
  void* native = nullptr;
  int gpu = 0;  // the number of its GPU
};

// A point of a stream that other streams and the host can wait for.
struct Event {
  void* native = nullptr;
};

}  // namespace multitier::device

#endif  // CC_DEVICE_STREAM_H_
