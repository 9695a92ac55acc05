// LaunchTimes: how long launches take on a device, by its events.

#ifndef CC_HBM_CHECK_LAUNCH_TIMES_H_
#define CC_HBM_CHECK_LAUNCH_TIMES_H_

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/device/device.h"

namespace multitier::hbm {

inline double MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

// The members of a JSON object.
class JsonMembers {
 public:
  void Add(const std::string& name, const std::string& value) {
    text_ += StrCat(text_.empty() ? "" : ", ", "\"", name, "\": ", value);
  }
  std::string text() const { return StrCat("{", text_, "}"); }

 private:
  std::string text_;
};

// seconds: of one launch. n: the keys or entries that it handles; bytes: that each of them moves, or 0: not known.
inline std::string TimesOf(double seconds, double n, double bytes = 0) {
  JsonMembers members;
  members.Add("seconds", StrCat(seconds));
  members.Add("keys_per_second", StrCat(n / seconds));
  if (bytes > 0) members.Add("bytes_per_key", StrCat(bytes));
  if (bytes > 0) members.Add("bytes_per_second", StrCat(bytes * n / seconds));
  return members.text();
}

class LaunchTimes {
 public:
  LaunchTimes(std::shared_ptr<device::Device> device, device::Stream stream) : device_(std::move(device)), stream_(stream) {}
  ~LaunchTimes() {
    for (const device::Event event : events_) device_->Delete(event);
  }
  LaunchTimes(const LaunchTimes&) = delete;
  LaunchTimes& operator=(const LaunchTimes&) = delete;

  // The median of the seconds of `times` calls of call(i), each enqueued behind prepare(i), which is not counted.
  template <typename Prepare, typename Call>
  Result<double> Measure(int times, Prepare prepare, Call call) {
    while (events_.size() < 2 * static_cast<size_t>(times)) {
      MT_ASSIGN_OR_RETURN(const device::Event event, device_->NewTimedEvent());
      events_.push_back(event);
    }
    for (int i = 0; i < times; ++i) {
      MT_RETURN_IF_ERROR(prepare(i));
      MT_RETURN_IF_ERROR(device_->Record(stream_, events_[2 * static_cast<size_t>(i)]));
      MT_RETURN_IF_ERROR(call(i));
      MT_RETURN_IF_ERROR(device_->Record(stream_, events_[2 * static_cast<size_t>(i) + 1]));
    }
    MT_RETURN_IF_ERROR(device_->Synchronize(stream_));
    std::vector<double> found;
    for (int i = 0; i < times; ++i) {
      found.emplace_back();
      MT_ASSIGN_OR_RETURN(found.back(),
                          device_->Seconds(events_[2 * static_cast<size_t>(i)], events_[2 * static_cast<size_t>(i) + 1]));
    }
    return MedianOf(std::move(found));
  }

 private:
  const std::shared_ptr<device::Device> device_;
  const device::Stream stream_;
  std::vector<device::Event> events_;
};

}  // namespace multitier::hbm

#endif  // CC_HBM_CHECK_LAUNCH_TIMES_H_
