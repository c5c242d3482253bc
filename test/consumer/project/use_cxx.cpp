// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Calls the C++ interface of an installed Oriel.
#include <cstdio>
#include <cstring>
#include <string>

#include <oriel/error.hpp>
#include <oriel/version.hpp>

int main() {
  const oriel::Error error =
      oriel::Error(oriel::ErrorCode::remote, "gone").with_origin(3).with_hint("look there");
  if (error.to_string() != "rank 3: gone; hint: look there") return 1;
  if (std::strlen(oriel::version()) == 0) return 2;
  std::printf("oriel %s through C++\n", oriel::version());
  return 0;
}
