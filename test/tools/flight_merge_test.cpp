// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "program.hpp"

/// Tests oriel-info --merge on hand-written files: of the form that ranks write, and damaged ones.
namespace {

namespace fs = std::filesystem;

std::string collective(std::uint64_t number, std::uint64_t count, const char* ended = "1") {
  return fmt::format(R"({{"kind": "all-reduce", "op": "sum", "number": {}, "count": {},)"
                     R"( "type": "f32", "ended_ns": {}}})",
                     number, count, ended);
}

std::string message(const char* kind, int peer, std::uint64_t number, std::uint64_t count) {
  return fmt::format(R"({{"kind": "{}", "peer": {}, "number": {}, "count": {}, "type": "u8"}})",
                     kind, peer, number, count);
}

class Folder {
 public:
  Folder() { fs::create_directory(folder_); }
  ~Folder() { fs::remove_all(folder_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  void plant(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / ("flight-" + name + ".json")) << text;
  }
  void plant(int rank, int ranks, const std::vector<std::string>& calls,
             const std::string& communicator = "c0") const {
    plant(fmt::format("{}-rank{}", communicator, rank),
          fmt::format(R"({{"oriel_flight": 1, "communicator": "{}", "name": "", "rank": {},)"
                      R"( "ranks": {}, "reason": "a test", "calls": [{}]}})",
                      communicator, rank, ranks, fmt::join(calls, ",")));
  }
  ProgramResult merge() const {
    return run_program({ORIEL_INFO_PATH, "--merge", folder_.string()});
  }

 private:
  const fs::path folder_ = fmt::format("/tmp/oriel-merge-{}", ::getpid());
};

bool has(const std::string& text, const std::string& part) {
  INFO(text);
  INFO(part);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("files of ranks that differ in one call, merged, name the first such call and its ranks",
          "[req:5.7]") {
  const Folder folder;
  folder.plant(0, 4, {collective(8, 5), collective(9, 6, "null"), collective(10, 1)});
  folder.plant(1, 4, {collective(9, 6, "null"), collective(10, 2)});
  folder.plant(2, 4, {collective(7, 99), collective(8, 5), collective(9, 7, "null")});
  folder.plant(0, 1, {collective(1, 5)}, "c1");
  const auto done = folder.merge();
  CHECK(done.status == 0);
  CHECK(done.err.empty());
  CHECK(done.out ==
        "communicator c0: 4 ranks\n"
        "  ranks 0-2: a test\n"
        "  rank 3: no file\n"
        "  call 9 is the first that is not the same on all ranks:\n"
        "    ranks 0-1: an all-reduce (sum) of 6 x f32, not ended\n"
        "    rank 2: an all-reduce (sum) of 7 x f32, not ended\n"
        "communicator c1: 1 ranks\n"
        "  rank 0: a test\n"
        "  all of these ranks have made the same calls, up to call 1:\n"
        "    rank 0: an all-reduce (sum) of 5 x f32, ended\n");
}

TEST_CASE("a rank that has not come to the last call, merged, is named", "[req:5.7]") {
  const Folder folder;
  folder.plant(0, 3, {collective(1, 5), collective(2, 6, "null")});
  folder.plant(1, 3, {collective(1, 5)});
  folder.plant(2, 3, {});
  CHECK(has(folder.merge().out,
            "  call 1 is the first that is not the same on all ranks:\n"
            "    ranks 0-1: an all-reduce (sum) of 5 x f32, ended\n"
            "    rank 2: not made; it has made none\n"));
  folder.plant(2, 3, {collective(1, 5), collective(2, 6, "null")});
  CHECK(has(folder.merge().out,
            "  call 2 is the first that is not the same on all ranks:\n"
            "    ranks 0, 2: an all-reduce (sum) of 6 x f32, not ended\n"
            "    rank 1: not made; its last call is 1\n"));
}

TEST_CASE("files of GPU ranks, merged, say which rank's call has ended if the files do",
          "[req:5.7]") {
  const auto call = [](const char* end) {
    return fmt::format(R"({{"kind": "all-gather", "number": 1, "count": 2, "type": "f32"{}}})",
                       end);
  };
  const Folder folder;
  folder.plant(0, 3, {call(R"(, "ended": true)")});
  folder.plant(1, 3, {call(R"(, "ended": false)")});
  folder.plant(2, 3, {call("")});
  CHECK(has(folder.merge().out,
            "    rank 0: an all-gather of 2 x f32, ended\n"
            "    rank 1: an all-gather of 2 x f32, not ended\n"
            "    rank 2: an all-gather of 2 x f32, enqueued\n"));
}

TEST_CASE("sends and receives of two ranks, merged, are paired by their numbers", "[req:5.7]") {
  const Folder folder;
  folder.plant(0, 3, {message("send", 1, 4, 7), message("send", 1, 5, 8)});
  folder.plant(1, 3,
               {message("receive", 0, 3, 6), message("receive", 0, 4, 7),
                message("receive", 0, 5, 8), message("send", 2, 1, 1)});
  CHECK(has(folder.merge().out, "  no send or receive without its other end\n"));
  folder.plant(0, 3, {message("send", 1, 4, 7), message("send", 1, 5, 9)});
  folder.plant(2, 3, {message("receive", 0, 1, 2)});
  const auto done = folder.merge();
  CHECK(has(done.out,
            "  send 5 from rank 0 to rank 1 (9 x u8, enqueued) differs from its receive"
            " (8 x u8, enqueued)\n"));
  CHECK(has(done.out, "  receive 1 of rank 2 from rank 0 (2 x u8, enqueued) has no send\n"));
  CHECK(has(done.out, "  send 1 from rank 1 to rank 2 (1 x u8, enqueued) has no receive\n"));
}

TEST_CASE("a damaged file, merged, is named with status 1, and the others are compared",
          "[req:5.7]") {
  const Folder folder;
  CHECK(folder.merge().status == 1);
  folder.plant(0, 2, {collective(1, 5)});
  const std::string head =
      R"({"oriel_flight": 1, "communicator": "c0", "name": "", "reason": "x", "ranks": 2, )";
  const std::string many(2 << 20, ' ');
  const struct {
    std::string text, complaint;
  } cases[] = {
      {"", "no JSON object"},
      {head + R"("rank": 1, "calls": [)", "cut off"},
      {std::string(100'000, '['), "cut off"},
      {many, "flight-damaged.json"},
      {R"({"oriel_flight": 2})", "\"oriel_flight\" is 2"},
      {head + R"("rank": 2, "calls": []})", "\"rank\" is 2, not 0 to 1"},
      {head + R"("rank": -1, "calls": []})", "no whole number"},
      {head + R"("rank": 1, "calls": [{"kind": "\u001b[2Jx"}]})", "\"?[2Jx\", which is unknown"},
      {head + R"("rank": 1, "calls": [)" + message("send", 7, 1, 1) + "]}", "\"peer\" is 7"},
      {head + R"("rank": 0, "calls": []})", "are both of rank 0"},
  };
  for (const auto& damage : cases) {
    folder.plant("damaged", damage.text);
    const auto done = folder.merge();
    CAPTURE(damage.complaint, done.err);
    CHECK(done.status == 1);
    CHECK(has(done.err, damage.complaint));
    CHECK(has(done.err, "oriel-info: "));
    if (damage.complaint != "are both of rank 0") CHECK(has(done.out, "up to call 1"));
  }
}
