// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/process/nic_process_message.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "oriel/version.hpp"

#include "base/try.hpp"

namespace oriel::net {
namespace {

constexpr std::uint32_t kMagic = 0x434e524f;  // "ORNC"
constexpr std::uint16_t kProtocol = 1;
constexpr std::size_t kTextMost = 2048;

enum class Form : std::uint16_t { hello = 1, open, close, add, remove, answer };

Error bad(std::string why) {
  return Error(ErrorCode::remote,
               "a message between a rank and its software NIC's process: " + std::move(why));
}

ByteWriter begin(Form form) {
  ByteWriter to;
  to.put(kMagic).put(kProtocol).put(static_cast<std::uint16_t>(form));
  return to;
}

Result<Form> read_form(ByteReader& from) {
  const auto magic = from.get<std::uint32_t>();
  const auto protocol = from.get<std::uint16_t>();
  const auto form = from.get<std::uint16_t>();
  if (!from.good() || magic != kMagic) return bad("it is none of ours");
  if (protocol != kProtocol) {
    return Error(bad(fmt::format("it is of protocol {}, and this is {}", protocol, kProtocol)))
        .with_hint("ORIEL_NIC_PROGRAM must be of the library's own version");
  }
  return static_cast<Form>(form);
}

template <std::size_t kBytes>
void take(ByteReader& from, std::array<std::byte, kBytes>& to) {
  const ByteView raw = from.get_raw(kBytes);
  std::copy(raw.begin(), raw.end(), to.begin());
}

struct Writer {
  Bytes operator()(const nic_request::Hello& hello) const {
    ByteWriter to = begin(Form::hello);
    to.put_string(version()).put_raw(hello.gpu);
    for (const std::uint64_t word : hello.cpus) to.put(word);
    return to.take();
  }
  Bytes operator()(const nic_request::Open& open) const {
    return begin(Form::open).put(open.channel).put(open.slots).put(open.slot_bytes).take();
  }
  Bytes operator()(const nic_request::Close& close) const {
    return begin(Form::close).put(close.channel).take();
  }
  Bytes operator()(const nic_request::Add& add) const {
    ByteWriter to = begin(Form::add);
    to.put(add.region).put(add.bytes).put(static_cast<std::uint8_t>(add.by_fabric ? 1 : 0));
    return to.put_raw(add.fabric).take();
  }
  Bytes operator()(const nic_request::Remove& remove) const {
    return begin(Form::remove).put(remove.region).take();
  }
};

Result<NicRequest> read_hello(ByteReader& from) {
  nic_request::Hello hello;
  const std::string theirs = from.get_string();
  take(from, hello.gpu);
  for (std::uint64_t& word : hello.cpus) word = from.get<std::uint64_t>();
  ORIEL_CHECK(from.finish("a hello to a software NIC's process"));
  if (theirs != version()) {
    return Error(bad("the library is another version than the program, " + std::string(version())))
        .with_hint("ORIEL_NIC_PROGRAM must be of the library's own version");
  }
  return NicRequest(hello);
}

Result<NicRequest> read_open(ByteReader& from) {
  nic_request::Open open;
  open.channel = from.get<std::uint32_t>();
  open.slots = from.get<std::uint32_t>();
  open.slot_bytes = from.get<std::uint32_t>();
  ORIEL_CHECK(from.finish("the opening of a stream"));
  const bool sound = open.slots > 0 && open.slots <= kNicSlotsMost && open.slot_bytes >= 64 &&
                     open.slot_bytes <= kNicSlotBytesMost && open.slot_bytes % 64 == 0;
  if (!sound) return bad(fmt::format("{} slots of {} bytes", open.slots, open.slot_bytes));
  return NicRequest(open);
}

Result<NicRequest> read_add(ByteReader& from) {
  nic_request::Add add;
  add.region = from.get<std::uint32_t>();
  add.bytes = from.get<std::uint64_t>();
  const auto by_fabric = from.get<std::uint8_t>();
  take(from, add.fabric);
  ORIEL_CHECK(from.finish("an allocation"));
  if (add.region == 0 || add.bytes == 0 || add.bytes > std::uint64_t{1} << 46 || by_fabric > 1) {
    return bad(
        fmt::format("region {} of {} bytes, by handle {}", add.region, add.bytes, by_fabric));
  }
  add.by_fabric = by_fabric == 1;
  return NicRequest(add);
}

}  // namespace

Bytes encode(const NicRequest& request) {
  return std::visit(Writer(), request);
}

Bytes encode(const NicAnswer& answer) {
  ByteWriter to = begin(Form::answer);
  to.put(static_cast<std::uint8_t>(answer.failed ? 1 : 0));
  to.put(static_cast<std::uint8_t>(answer.native.domain)).put(std::int32_t{answer.native.value});
  return to.put_string(std::string_view(answer.text).substr(0, kTextMost)).take();
}

Result<NicRequest> decode_nic_request(ByteView message) {
  ByteReader from(message);
  ORIEL_TRY(const Form form, read_form(from));
  switch (form) {
    case Form::hello:
      return read_hello(from);
    case Form::open:
      return read_open(from);
    case Form::close: {
      const nic_request::Close close{from.get<std::uint32_t>()};
      ORIEL_CHECK(from.finish("the end of a stream"));
      return NicRequest(close);
    }
    case Form::add:
      return read_add(from);
    case Form::remove: {
      const nic_request::Remove remove{from.get<std::uint32_t>()};
      ORIEL_CHECK(from.finish("the end of a region"));
      return NicRequest(remove);
    }
    default:
      return bad(fmt::format("form {} is no request", static_cast<int>(form)));
  }
}

Result<NicAnswer> decode_nic_answer(ByteView message) {
  ByteReader from(message);
  ORIEL_TRY(const Form form, read_form(from));
  if (form != Form::answer) return bad(fmt::format("form {} is no answer", static_cast<int>(form)));
  NicAnswer answer;
  const auto failed = from.get<std::uint8_t>();
  const auto domain = from.get<std::uint8_t>();
  answer.native.value = from.get<std::int32_t>();
  answer.text = from.get_string();
  ORIEL_CHECK(from.finish("an answer"));
  if (failed > 1 || domain > static_cast<std::uint8_t>(NativeDomain::cuda_runtime) ||
      answer.text.size() > kTextMost) {
    return bad(
        fmt::format("an answer that says {} {}, of {} bytes", failed, domain, answer.text.size()));
  }
  answer.failed = failed == 1;
  answer.native.domain = static_cast<NativeDomain>(domain);
  return answer;
}

std::size_t descriptors_of(const NicRequest& request) {
  if (std::holds_alternative<nic_request::Hello>(request)) return 1;
  if (std::holds_alternative<nic_request::Open>(request)) return 1;
  const auto* const add = std::get_if<nic_request::Add>(&request);
  return add != nullptr && !add->by_fabric ? 1 : 0;
}

namespace detail {

Error bad_command(const NicCommand& command, const char* why) {
  return Error(ErrorCode::remote,
               fmt::format("a command of kind {} to region {} in a software NIC's ring: {}",
                           command.kind, command.region, why));
}

Status check_command_range(const char* what, std::uint64_t offset, std::uint64_t bytes,
                           std::uint64_t limit) {
  if (offset <= limit && bytes <= limit - offset) return {};
  return Error(ErrorCode::remote,
               fmt::format("a command in a software NIC's ring names {} bytes at {} of {}, which "
                           "has {}",
                           bytes, offset, what, limit));
}

/// Checks everything that needs no regions.
Status check_command_form(const NicCommand& command, std::uint64_t staging_bytes) {
  constexpr std::uint64_t kBytesMost = std::uint64_t{1} << 40;
  if (command.kind < NicCommand::load || command.kind > NicCommand::signal) {
    return bad_command(command, "no such kind");
  }
  if (command.kind == NicCommand::signal) return {};
  if (command.bytes == 0 || command.bytes > kBytesMost) {
    return bad_command(command, "a length that cannot be");
  }
  if (command.kind == NicCommand::write && command.bytes != 4 && command.bytes != 8) {
    return bad_command(command, "a word of neither 4 nor 8 bytes");
  }
  if (command.kind == NicCommand::load || command.kind == NicCommand::store) {
    return check_command_range("the slots", command.staging, command.bytes, staging_bytes);
  }
  if (command.kind != NicCommand::rows) return {};
  if (command.stride < command.bytes) return bad_command(command, "rows that overlap");
  return check_command_range("the slots", command.staging, command.stride + command.bytes,
                             staging_bytes);
}

}  // namespace detail

}  // namespace oriel::net
