// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Tests descriptions of machines as files: large files, pipes, and endless input.
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/system_table.hpp"
#include "support/fair_timer.hpp"
#include "support/words.hpp"
#include "topo/machine/machine_file.hpp"
#include "topo/sources/temporary_tree.hpp"
#include "topo/xml/xml_reader.hpp"

namespace oriel::topo {
namespace {

using namespace std::chrono_literals;
using test::has;

constexpr const char* kText = "<system>\n<cpu numaid=\"0\"/>\n</system>\n";

std::string outcome(const std::string& path, const XmlLimits& limits = {}) {
  const auto text = read_xml_file(path, limits);
  return text.ok() ? "ok: " + *text : text.error().to_string();
}

}  // namespace

TEST_CASE("a file is read up to the limit, and a gigabyte is refused unread", "[req:2.7]") {
  const TemporaryTree files;
  const std::string path = files.root() + "/machine.xml";
  CHECK(has(outcome(path), "opening " + path));
  files.file("/machine.xml", kText);
  CHECK(outcome(path) == std::string("ok: ") + kText);

  REQUIRE(::truncate(path.c_str(), 1L << 30) == 0);  // holes use no disk space
  const test::FairTimer timer;
  CHECK(has(outcome(path), "line 4: " + path + " has 1073741824 bytes, at most 16777216 are read"));
  CHECK(timer.spent() < 1s);
  XmlLimits small;
  small.bytes = 100;
  std::ofstream(path) << std::string(49, '\n') + std::string(150, 'x');
  CHECK(has(outcome(path, small), "line 50: " + path + " has 199 bytes, at most 100 are read"));
  CHECK_FALSE(read_xml_file(files.root()).ok());  // a folder
  CHECK(has(outcome("/dev/zero"), "line 1: /dev/zero has more than 16777216 bytes"));
  CHECK(has(read_machine_file(path).error().to_string(), "reading the description of a machine"));
}

TEST_CASE("a pipe that nobody writes to or closes does not hold the reader up", "[req:2.7]") {
  const TemporaryTree files;
  const std::string path = files.root() + "/fifo";
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  XmlLimits hasty;
  hasty.timeout = 50ms;
  const test::FairTimer timer;
  CHECK(has(outcome(path, hasty), "has not ended within 50 ms; 0 bytes came"));  // no writer

  const int writer = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(writer >= 0);
  CHECK(has(outcome(path, hasty), "has not ended within 50 ms; 0 bytes came"));
  REQUIRE(::write(writer, "<system>", 8) == 8);
  CHECK(has(outcome(path, hasty), "has not ended within 50 ms; 8 bytes came"));
  CHECK(timer.spent() < 2s);
  ::close(writer);
}

TEST_CASE("a reader that cannot wait refuses a pipe that nobody has open to write",
          "[req:1.41][req:2.7]") {
  const TemporaryTree files;
  const std::string path = files.root() + "/fifo";
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  XmlLimits hasty;
  hasty.await_writer = false;
  const test::FairTimer timer;
  CHECK(has(outcome(path, hasty), "/fifo is a pipe that nobody has open to write"));
  CHECK(timer.spent() < 1s);

  const int writer = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(writer >= 0);
  REQUIRE(::write(writer, kText, std::strlen(kText)) > 0);
  std::jthread later([&] {
    std::this_thread::sleep_for(20ms);
    ::close(writer);
  });
  CHECK(outcome(path, hasty) == std::string("ok: ") + kText);
}

namespace {

std::string fifo_path;
const char* fifo_words = nullptr;
int fifo_polls = 0;

}  // namespace

TEST_CASE("a pipe with a name may get its writer late, who may come and say nothing", "[req:2.7]") {
  const TemporaryTree files;
  fifo_path = files.root() + "/fifo";
  REQUIRE(::mkfifo(fifo_path.c_str(), 0600) == 0);
  SystemTable table = sys();
  table.poll = [](pollfd* fds, nfds_t count, int timeout_ms) {
    // The reader has found no writer. During its second poll a writer comes, writes, and closes.
    if (++fifo_polls == 2) {
      const int end = ::open(fifo_path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
      static_cast<void>(!::write(end, fifo_words, std::strlen(fifo_words)));
      ::close(end);
    }
    return ::poll(fds, count, timeout_ms);
  };
  const ScopedSystemTable scoped(table);
  XmlLimits long_timeout;
  long_timeout.timeout = 60s;
  for (const char* words : {kText, ""}) {
    fifo_words = words;
    fifo_polls = 0;
    CHECK(outcome(fifo_path, long_timeout) == std::string("ok: ") + words);
    CHECK(fifo_polls >= 2);
  }
}

}  // namespace oriel::topo
