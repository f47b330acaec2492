#pragma once
// The manifest as JSON:
//
//   {"checksum": "0123456789abcdef", "format": "sherd checkpoint", "version": 3, "manifest": {
//    "config": "...",
//    "pieces": [
//     {"bytes": 24, ...},
//     ...
//    ], ...}}
//
// The checksum is over the text of the inner object without the white space between its tokens: it is compared by a
// scan, before anything is parsed. Reading takes memory for the result and nothing else.
#include <deque>
#include <span>
#include <string>
#include <string_view>

#include "nn/checkpoint/input_file.h"
#include "nn/checkpoint/manifest.h"

namespace sherd {

/// Throws Error if a text in it is not UTF-8.
std::string manifest_to_json(const Manifest& manifest);
/// Throws Error, which the caller completes with the file's name, if the file is no manifest, of another version,
/// changed since it was written, or lacks something.
Manifest manifest_from_json(const InputFile& file);

/// Entries as text, for handing them from rank to rank.
std::string pieces_to_json(std::span<const PieceEntry> pieces);
std::deque<PieceEntry> pieces_from_json(std::string_view text);

}  // namespace sherd
