// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/model/printable.hpp"

#include <random>

#include <catch2/catch.hpp>

#include "topo/xml/xml_reader.hpp"

namespace oriel::topo {

TEST_CASE("names are shown as UTF-8 without control characters", "[req:2.8]") {
  CHECK(printable("plain, <&>") == "plain, <&>");
  CHECK(printable("a\x1b[31m\tb\r\n\x7f") == "a?[31m?b???");
  CHECK(printable("\xc3\xbc \xe4\xb8\xad \xf0\x9f\x96\xa5") ==
        "\xc3\xbc \xe4\xb8\xad \xf0\x9f\x96\xa5");
  CHECK(printable("\xc2\x9b") == "?");  // a control character of two bytes
  for (const char* turn : {"\u202a", "\u202e", "\u2066", "\u2069", "\u200e", "\u200f", "\u061c"}) {
    CHECK(printable(std::string("a") + turn + "b") == "a?b");  // text direction controls
  }
  CHECK(printable("\u2028") == "?");  // line separator
  CHECK(printable("\u200b\u2030\u206a\u2065") == "\u200b\u2030\u206a\u2065");
  CHECK(printable("\xc0\xaf") == "??");            // overlong encoding
  CHECK(printable("\xed\xa0\x80") == "???");       // half of a surrogate pair
  CHECK(printable("\xef\xbf\xbf") == "???");       // a noncharacter
  CHECK(printable("\xf4\x90\x80\x80") == "????");  // beyond Unicode
  CHECK(printable("\xe4\xb8") == "??");            // truncated
  CHECK(printable(std::string("\0", 1)) == "?");
  CHECK(letters_of("\xc3\xbc\xe4\xb8\xad!") == 3);
  CHECK(fitted("abc", 3) == "abc");
  CHECK(fitted("abcd", 3) == "ab\u2026");
  CHECK(fitted("\xc3\xbc\xc3\xbc\xc3\xbc", 2) == "\xc3\xbc\u2026");
  CHECK(xml_escaped("<\"&\">\x01") == "&lt;&quot;&amp;&quot;&gt;?");
}

TEST_CASE("whatever bytes a name has, XML holds it", "[req:2.8]") {
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 5000; ++round) {
    std::string name;
    for (auto left = random() % 12; left > 0; --left) {
      name += static_cast<char>(random() % 3 == 0 ? random() % 128 : 0x80 + random() % 128);
    }
    const auto parsed = parse_xml("<a b=\"" + xml_escaped(name) + "\"/>");
    REQUIRE((parsed.ok() ? "ok" : parsed.error().to_string()) == "ok");
    REQUIRE(*parsed->find("b") == printable(name));
    REQUIRE(printable(printable(name)) == printable(name));
  }
}

}  // namespace oriel::topo
