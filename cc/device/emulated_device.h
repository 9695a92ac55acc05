// EmulatedDevice: a Device on the CPU. It implements streams, events and copies itself and runs kernels with simt. For tests on
// machines without a GPU.
//
// Enqueued work runs later: when a thread waits for it, or at a random time. Streams advance in random order, one operation at
// a time, under one lock. Options::seed determines the order if only one host thread uses the device. Under ThreadSanitizer
// each stream is a fiber. TSan then reports host code that reads memory before it has waited for the event, and a stream that
// uses what another stream writes without a Wait.
//
// Faults: FailCall(n) makes the n-th call from now on fail, with the Status of a failed allocation, launch, copy or event.
// SetMemory and FailTwoAllocationsOf let its memory run out. Options::late_copies delays copies.

#ifndef CC_DEVICE_EMULATED_DEVICE_H_
#define CC_DEVICE_EMULATED_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cc/device/device.h"
#include "cc/device/simt/simt.h"

namespace multitier::device {

class EmulatedDevice : public Device {
 public:
  struct Options {
    simt::Options simt;
    size_t memory_bytes = size_t{1} << 30;
    // 0: none. Otherwise one of this number of copies, drawn by the seed, runs only once no other stream has work that may run.
    int late_copies = 0;
    int new_memory = 0xa5;  // the byte that new device memory is filled with
  };
  // kernels: null if a test launches only its own kernels.
  EmulatedDevice(const Options& options, const DeviceKernels* kernels);
  ~EmulatedDevice() override;

  const char* name() const override { return "emulated"; }
  const DeviceKernels& kernels() const override { return *kernels_; }
  Result<void*> Allocate(size_t bytes) override;
  void Free(void* memory) override;
  Result<void*> AllocatePinned(size_t bytes) override;
  void FreePinned(void* memory) override;
  Result<Stream> NewStream() override;
  void Delete(Stream stream) override;
  Stream Wrap(void* native) override { return Stream{native}; }
  Status Copy(Stream stream, void* to, const void* from, size_t bytes) override;
  Status Fill(Stream stream, void* memory, int byte, size_t bytes) override;
  size_t SortScratchBytes(uint32_t n) override { return n * sizeof(uint64_t); }
  Status SortByUpper(Stream stream, const uint64_t* from, uint64_t* to, uint32_t n, int bits, void* scratch) override;
  Result<Event> NewEvent() override;
  Result<Event> NewTimedEvent() override { return NewEvent(); }
  Result<double> Seconds(Event from, Event to) override;
  void Delete(Event event) override;
  Status Record(Stream stream, Event event) override;
  Status Wait(Stream stream, Event event) override;
  Result<bool> Happened(Event event) override;
  Status Synchronize(Stream stream) override;

  // Call number n from now on fails; 0 is the next call. Calls that return a Status or a Result and launches are counted.
  void FailCall(int64_t n);
  // From now on. A device may hold more than its new size: then it has nothing free.
  void SetMemory(size_t bytes);
  // Of every n allocations of device memory from now on the last two find none; 0: no more.
  void FailTwoAllocationsOf(int64_t n);
  int64_t calls() const;             // so far
  int64_t synchronizations() const;  // of them, calls of Synchronize
  int64_t launches() const;          // of them, kernels and sorts
  int64_t overtaken_copies() const;  // late copies that an operation of another stream has overtaken
  size_t used_bytes() const;         // of device memory
  // A digest of all bytes that were copied from device memory to the host, whatever the order of the copies. Devices that
  // differ in Options::new_memory have the same digest if no work depends on memory that was never written.
  uint64_t copied_down() const;
  simt::Stats stats() const;

  struct State;  // of emulated_device.cc

 private:
  std::unique_ptr<State> state_;
  const DeviceKernels* const kernels_;
};

// For MT_LAUNCH: enqueues kernel(args) with a copy of the args.
Status EnqueueKernel(Stream stream, const char* name, simt::Dim3 grid, simt::Dim3 block, void (*kernel)(const void* args),
                     const void* args, size_t args_bytes);

}  // namespace multitier::device

#endif  // CC_DEVICE_EMULATED_DEVICE_H_
