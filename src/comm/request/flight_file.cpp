// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>
#include <new>
#include <optional>

#include <fmt/format.h>
#include <unistd.h>

#include "base/log.hpp"
#include "base/write_file.hpp"
#include "comm/request/flight_recorder.hpp"

/// Writes the file of a flight recorder: one JSON object, which `oriel-info --merge` reads.
namespace oriel::comm {
namespace {

/// Returns `text` as a JSON string. Bytes beyond ASCII become "?", since they may be invalid UTF-8.
std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') out += '\\';
    if (byte < 0x20) {
      out += fmt::format("\\u{:04x}", byte);
    } else {
      out += byte < 0x7f ? c : '?';
    }
  }
  return out + "\"";
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

/// Converts the ticks of records to nanoseconds since 1970. The rate is the ratio of both clocks'
/// progress since the recorder's start.
class TickClock {
 public:
  TickClock(TimePoint started, std::uint64_t started_ticks)
      : now_ticks_(FlightRecorder::ticks()),
        now_ns_(std::chrono::duration_cast<std::chrono::nanoseconds>(
                    std::chrono::system_clock::now().time_since_epoch())
                    .count()) {
    const auto passed = static_cast<double>((SteadyClock::instance().now() - started).count());
    ns_per_tick_ = passed / static_cast<double>(std::max<std::uint64_t>(
                                1, now_ticks_ - std::min(now_ticks_, started_ticks)));
  }
  std::int64_t since_1970(std::uint64_t ticks) const {
    const auto ago = static_cast<double>(static_cast<std::int64_t>(now_ticks_ - ticks));
    return now_ns_ - static_cast<std::int64_t>(ago * ns_per_tick_);
  }

 private:
  std::uint64_t now_ticks_;
  std::int64_t now_ns_;
  double ns_per_tick_ = 1;
};

/// `ended_marks` is empty for CPU ranks.
void append(fmt::memory_buffer& out, const FlightRecord& record, const TickClock& clock,
            std::optional<std::uint64_t> ended_marks) {
  const auto put = [&]<typename... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(fmt::appender(out), format, std::forward<Args>(args)...);
  };
  const kernels::CollectiveCall& call = record.call;
  if (record.kind == FlightKind::collective) {
    put(R"({{"kind": "{}")", name_of(call.collective));
    if (kernels::reduces(call.collective)) put(R"(, "op": "{}")", name_of(call.op));
    if (kernels::has_root(call.collective)) put(R"(, "root": {})", call.root);
  } else {
    put(R"({{"kind": "{}", "peer": {})", record.kind == FlightKind::send ? "send" : "receive",
        call.root);
  }
  put(R"(, "number": {}, "count": {}, "type": "{}", "group": {}, "stream": "{:#x}")", record.number,
      call.count, name_of(call.type), record.group, record.stream);
  put(R"(, "enqueued_ns": {})", clock.since_1970(record.enqueued));
  if (record.ended != 0) {
    put(R"(, "ended_ns": {})", clock.since_1970(std::max(record.ended, record.enqueued)));
  } else if (!ended_marks) {
    put(R"(, "ended_ns": null)");
  } else if (record.mark != 0) {
    put(R"(, "ended": {})", record.mark <= *ended_marks);
  }
  put("}}");
}

}  // namespace

std::string FlightRecorder::file_name() const {
  return fmt::format("{}/flight-{:016x}-rank{}-{}.json", facts_.folder, facts_.communicator,
                     facts_.rank, ::getpid());
}

std::string FlightRecorder::file_text(std::string_view reason) const {
  fmt::memory_buffer out;
  fmt::format_to(fmt::appender(out),
                 "{{\"oriel_flight\": 1,\n\"communicator\": \"{:016x}\", \"name\": {},\n"
                 "\"rank\": {}, \"ranks\": {}, \"host\": {}, \"pid\": {}, \"backend\": \"{}\",\n"
                 "\"reason\": {},\n\"calls\": [",
                 facts_.communicator, quoted(facts_.name), facts_.rank, facts_.size,
                 quoted(host_name()), ::getpid(), facts_.on_host ? "host" : "cuda", quoted(reason));
  const TickClock clock(started_, started_ticks_);
  std::optional<std::uint64_t> ended_marks;
  if (!facts_.on_host) ended_marks = ended_marks_.load(std::memory_order_relaxed);
  const char* before = "\n";
  for (const FlightRecord& record : records()) {
    fmt::format_to(fmt::appender(out), "{}", before);
    append(out, record, clock, ended_marks);
    before = ",\n";
  }
  fmt::format_to(fmt::appender(out), "\n]}}\n");
  return {out.data(), out.size()};
}

void FlightRecorder::write(std::string_view reason, bool final) {
  if (!is_wanted()) return;
  const std::lock_guard lock(file_mutex_);
  if (is_final_) return;
  is_final_ = final;
  try {
    const Status written = replace_file(file_name(), file_text(reason));
    if (written.ok() || is_refused_) return;
    is_refused_ = true;
    Log(facts_.rank)
        .alert(
            "the last calls are not written to ORIEL_DUMP_DIR ({}); hint: make it a folder in "
            "which this process may write",
            written.error().to_string());
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the failure itself is reported
  }
}

}  // namespace oriel::comm
