// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/xml/xml_reader.hpp"

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include <expat.h>
#include <fmt/format.h>

#include "base/read_file.hpp"

namespace oriel::topo {
namespace {

constexpr const char* kSpace = " \t\r\n";

Error refused(std::size_t line, const std::string& why) {
  return Error(ErrorCode::invalid_argument, fmt::format("line {}: {}", line, why))
      .with_hint("correct the description at this line, or name another file");
}

/// Builds the tree while expat parses. Stops parsing at the first refusal.
class Builder {
 public:
  Builder(XML_Parser parser, const XmlLimits& limits) : parser_(parser), limits_(limits) {
    XML_SetUserData(parser, this);
    XML_SetElementHandler(
        parser,
        [](void* self, const char* name, const char** attributes) {
          static_cast<Builder*>(self)->guarded([&](Builder& b) { b.begin(name, attributes); });
        },
        [](void* self, const char*) {
          static_cast<Builder*>(self)->guarded([](Builder& b) { b.end(); });
        });
    XML_SetCharacterDataHandler(parser, [](void* self, const char* letters, int count) {
      static_cast<Builder*>(self)->guarded([&](Builder& b) {
        b.add_text({letters, static_cast<std::size_t>(count)});
      });
    });
    XML_SetEntityDeclHandler(parser, [](void* self, const char*, int, const char*, int, const char*,
                                        const char*, const char*, const char*) {
      static_cast<Builder*>(self)->stop("it declares an entity");
    });
    // Refuses defaults: expat adds them to every element that lacks the attribute, so that a short
    // file can become a huge document.
    XML_SetAttlistDeclHandler(
        parser, [](void* self, const char*, const char*, const char*, const char*, int) {
          static_cast<Builder*>(self)->stop("it declares attributes");
        });
  }

  /// Returns the root, or the error.
  Result<XmlElement> finish(XML_Status status) {
    if (lacks_memory_) return Error(ErrorCode::system, "out of memory while reading XML");
    if (!why_.empty()) return refused(line_, why_);
    if (status != XML_STATUS_OK) {
      return refused(XML_GetCurrentLineNumber(parser_), XML_ErrorString(XML_GetErrorCode(parser_)));
    }
    return std::move(root_);
  }

 private:
  // Exceptions must not pass through expat.
  template <typename Action>
  void guarded(const Action& action) {
    if (lacks_memory_) return;
    try {
      action(*this);
    } catch (const std::bad_alloc&) {
      lacks_memory_ = true;
      XML_StopParser(parser_, XML_FALSE);
    }
  }

  void stop(std::string why) {
    if (!why_.empty()) return;
    why_ = std::move(why);
    line_ = XML_GetCurrentLineNumber(parser_);
    XML_StopParser(parser_, XML_FALSE);
  }

  void begin(const char* name, const char** attributes) {
    if (!why_.empty()) return;
    if (++elements_ > limits_.elements) {
      return stop(fmt::format("there are more than {} elements", limits_.elements));
    }
    if (open_.size() >= limits_.depth) {
      return stop(fmt::format("elements are nested more than {} deep", limits_.depth));
    }
    XmlElement element;
    element.name = name;
    element.line = XML_GetCurrentLineNumber(parser_);
    for (; *attributes != nullptr; attributes += 2) {
      if (element.attributes.size() >= limits_.attributes_of_one) {
        return stop(fmt::format("<{}> has more than {} attributes", element.name.substr(0, 32),
                                limits_.attributes_of_one));
      }
      if (++attributes_ > limits_.attributes) {
        return stop(fmt::format("there are more than {} attributes", limits_.attributes));
      }
      element.attributes.emplace_back(attributes[0], attributes[1]);
    }
    // Open elements are the last children of their parents, so they do not move until they are
    // closed.
    XmlElement& placed = open_.empty() ? root_ : open_.back()->children.emplace_back();
    placed = std::move(element);
    open_.push_back(&placed);
  }

  void add_text(std::string_view letters) {
    if (!why_.empty() || open_.empty()) return;
    XmlElement& element = *open_.back();
    if (element.text_line == 0 && letters.find_first_not_of(kSpace) != std::string_view::npos) {
      element.text_line = XML_GetCurrentLineNumber(parser_);
    }
    element.text.append(letters);
  }

  void end() {
    if (!why_.empty()) return;
    std::string& text = open_.back()->text;
    const std::size_t last = text.find_last_not_of(kSpace);
    text.erase(last == std::string::npos ? 0 : last + 1);
    text.erase(0, std::min(text.find_first_not_of(kSpace), text.size()));
    open_.pop_back();
  }

  XML_Parser parser_;
  const XmlLimits& limits_;
  XmlElement root_;
  std::vector<XmlElement*> open_;
  std::size_t elements_ = 0;
  std::size_t attributes_ = 0;
  std::string why_;
  bool lacks_memory_ = false;
  std::size_t line_ = 0;
};

}  // namespace

const std::string* XmlElement::find(std::string_view attribute) const {
  const auto found = std::find_if(attributes.begin(), attributes.end(),
                                  [&](const auto& one) { return one.first == attribute; });
  return found == attributes.end() ? nullptr : &found->second;
}

Result<XmlElement> parse_xml(std::string_view text, const XmlLimits& limits) {
  if (text.size() > limits.bytes) {
    const auto end = text.begin() + static_cast<std::ptrdiff_t>(limits.bytes);
    return refused(static_cast<std::size_t>(std::count(text.begin(), end, '\n')) + 1,
                   fmt::format("{} bytes, at most {}", text.size(), limits.bytes));
  }
  const std::unique_ptr<XML_ParserStruct, void (*)(XML_Parser)> parser(XML_ParserCreate(nullptr),
                                                                       XML_ParserFree);
  if (parser == nullptr) return Error(ErrorCode::system, "out of memory");
  Builder builder(parser.get(), limits);
  return builder.finish(
      XML_Parse(parser.get(), text.data(), static_cast<int>(text.size()), XML_TRUE));
}

Result<std::string> read_xml_file(const std::string& path, const XmlLimits& limits) {
  const auto no_writer = limits.await_writer ? NoWriter::is_awaited : NoWriter::is_refused;
  return read_file(path,
                   {.bytes = limits.bytes, .timeout = limits.timeout, .no_writer = no_writer});
}

}  // namespace oriel::topo
