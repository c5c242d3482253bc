// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/process/nic_process_message.hpp"

#include <chrono>
#include <random>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/process/nic_process_socket.hpp"

// Messages between a rank and the process that copies for its software NIC (3.9, 3.23).
using namespace oriel;
using namespace oriel::net;

namespace {

std::vector<NicRequest> all_requests() {
  nic_request::Hello hello;
  hello.gpu.fill(std::byte{7});
  hello.cpus[0] = 9;
  hello.cpus[15] = std::uint64_t{1} << 63;
  nic_request::Add fabric{5, 4096, true, {}};
  fabric.fabric.fill(std::byte{9});
  return {hello,
          nic_request::Open{1, 48, 128 << 10},
          nic_request::Close{1},
          nic_request::Add{4, 2 << 20, false, {}},
          fabric,
          nic_request::Remove{4}};
}

const NicRegion* find(std::uint32_t number) {
  static const NicRegion local{0x10000, 1000, true}, remote{0x20000, 2000, false};
  return number == 1 ? &local : number == 2 ? &remote : nullptr;
}

bool is_sound(const NicCommand& command) {
  return check_command(command, 4096, find).ok();
}

NicCommand command_of(NicCommand::Kind kind, std::uint32_t region, std::uint64_t offset,
                      std::uint64_t bytes) {
  NicCommand command;
  command.kind = kind;
  command.region = region;
  command.offset = offset;
  command.bytes = bytes;
  return command;
}

}  // namespace

TEST_CASE("requests and answers arrive as they were sent", "[req:3.9]") {
  for (const NicRequest& request : all_requests()) {
    const Bytes message = encode(request);
    CHECK(message.size() <= kNicMessageBytesMost);
    const auto decoded = decode_nic_request(message);
    REQUIRE(decoded.ok());
    CHECK(encode(decoded.value()) == message);
    CHECK(descriptors_of(decoded.value()) == descriptors_of(request));
  }
  NicAnswer answer;
  answer.failed = true;
  answer.native = {NativeDomain::cuda_driver, 2};
  answer.text = std::string(5000, 'x');
  const auto decoded = decode_nic_answer(encode(answer));
  REQUIRE(decoded.ok());
  CHECK(decoded->failed);
  CHECK(decoded->native.value == 2);
  CHECK(decoded->text.size() == 2048);
}

TEST_CASE("messages that were cut, grew or were spoilt are errors or say something else",
          "[req:3.23]") {
  const std::uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (const NicRequest& request : all_requests()) {
    const Bytes message = encode(request);
    for (std::size_t count = 0; count < message.size(); ++count) {
      CHECK_FALSE(decode_nic_request(ByteView(message).first(count)).ok());
    }
    Bytes longer = message;
    longer.push_back(std::byte{0});
    CHECK_FALSE(decode_nic_request(longer).ok());
    CHECK_FALSE(decode_nic_answer(message).ok());
    for (int i = 0; i < 200; ++i) {
      Bytes spoilt = message;
      spoilt[random() % spoilt.size()] = static_cast<std::byte>(random());
      const auto decoded = decode_nic_request(spoilt);
      if (decoded.ok()) CHECK(encode(decoded.value()) == spoilt);
    }
  }
  const auto refused = [](const NicRequest& request) {
    return !decode_nic_request(encode(request)).ok();
  };
  CHECK(refused(nic_request::Open{1, 0, 4096}));
  CHECK(refused(nic_request::Open{1, kNicSlotsMost + 1, 4096}));
  CHECK(refused(nic_request::Open{1, 1, 100}));
  CHECK(refused(nic_request::Open{1, 1, kNicSlotBytesMost + 64}));
  CHECK(refused(nic_request::Add{0, 4096, false, {}}));
  CHECK(refused(nic_request::Add{1, 0, false, {}}));
  CHECK(refused(nic_request::Add{1, ~std::uint64_t{0}, false, {}}));
}

TEST_CASE("a command is refused unless all it names is inside its memory", "[req:3.23]") {
  for (const auto kind : {NicCommand::load, NicCommand::store}) {
    NicCommand command = command_of(kind, 1, 900, 100);
    command.staging = 3996;
    CHECK(is_sound(command));
    CHECK(check_command(command, 4096, find)->at == 0x10000 + 900);
    for (std::uint64_t NicCommand::*field :
         {&NicCommand::offset, &NicCommand::bytes, &NicCommand::staging}) {
      NicCommand wrong = command;
      ++(wrong.*field);
      CHECK_FALSE(is_sound(wrong));
      wrong.*field = ~std::uint64_t{0};
      CHECK_FALSE(is_sound(wrong));
    }
    command.region = 3;
    CHECK_FALSE(is_sound(command));
  }
  NicCommand rows = command_of(NicCommand::rows, 1, 0, 500);
  rows.stride = 2048;
  rows.staging = 4096 - 2548;
  CHECK(is_sound(rows));
  for (const int wrong : {0, 1, 2, 3}) {
    NicCommand spoilt = rows;
    if (wrong == 0) ++spoilt.staging;
    if (wrong == 1) ++spoilt.offset;
    if (wrong == 2) spoilt.stride = 499;
    if (wrong == 3) spoilt.stride = ~0u;
    CHECK_FALSE(is_sound(spoilt));
  }
  CHECK(is_sound(command_of(NicCommand::write, 1, 992, 8)));
  CHECK_FALSE(is_sound(command_of(NicCommand::write, 1, 996, 8)));
  CHECK_FALSE(is_sound(command_of(NicCommand::write, 1, 4, 8)));
  CHECK_FALSE(is_sound(command_of(NicCommand::write, 1, 0, 2)));
  NicCommand copy = command_of(NicCommand::copy, 1, 0, 1000);
  copy.from = 2;
  copy.from_offset = 1000;
  CHECK(is_sound(copy));
  CHECK_FALSE(check_command(copy, 4096, find)->within_gpu);
  ++copy.from_offset;
  CHECK_FALSE(is_sound(copy));
  copy.from = 1;
  copy.from_offset = 0;
  CHECK(check_command(copy, 4096, find)->within_gpu);
  copy.from = 0;
  CHECK_FALSE(is_sound(copy));
  CHECK(is_sound(command_of(NicCommand::signal, 0, 0, 0)));
  CHECK_FALSE(is_sound(command_of(static_cast<NicCommand::Kind>(0), 1, 0, 8)));
  CHECK_FALSE(is_sound(command_of(static_cast<NicCommand::Kind>(7), 1, 0, 8)));
}

TEST_CASE("a descriptor lost at the limit of this process is distinguished from a cut message",
          "[req:1.15]") {
  int ends[2] = {-1, -1};
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  const OwnedFd own(ends[0]);
  const OwnedFd other(ends[1]);
  REQUIRE(show_senders(own).ok());
  const Bytes bytes(5, std::byte{7});
  const Deadline soon = Deadline::after(std::chrono::seconds(5));
  REQUIRE(send_nic_message(other, bytes, &other, soon).ok());
  REQUIRE(send_nic_message(other, bytes, &other, soon).ok());
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit none = before;
  none.rlim_cur = 0;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  const auto without_free_descriptor = receive_nic_message(own);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  const auto with_free_descriptor = receive_nic_message(own);
  REQUIRE(without_free_descriptor.ok());
  CHECK(without_free_descriptor->lost_descriptor);
  CHECK(without_free_descriptor->bytes == bytes);
  CHECK(without_free_descriptor->sender == ::getpid());
  REQUIRE(with_free_descriptor.ok());
  CHECK_FALSE(with_free_descriptor->lost_descriptor);
  CHECK_FALSE(with_free_descriptor->cut);
  CHECK(with_free_descriptor->descriptor.valid());
}
