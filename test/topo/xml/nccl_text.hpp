// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <catch2/catch.hpp>

#include "topo/xml/nccl_xml.hpp"

namespace oriel::topo {

/// Returns "ok", or the reason why the reader of NCCL's format refuses a text.
inline std::string parse_result(const std::string& text) {
  const auto machine = read_nccl_xml(text);
  return machine.ok() ? "ok" : machine.error().to_string();
}

/// Reads the machine of a text that must be valid.
inline Machine nccl_machine(const std::string& text) {
  const auto machine = read_nccl_xml(text);
  INFO(text.substr(0, 2000));
  REQUIRE((machine.ok() ? "ok" : machine.error().to_string()) == "ok");
  return *machine;
}

inline void refused(const std::string& text, const std::string& words) {
  const std::string said = parse_result(text);
  INFO(text.substr(0, 300) << "\n" << said);
  CHECK(said.find(words) != std::string::npos);
}

}  // namespace oriel::topo
