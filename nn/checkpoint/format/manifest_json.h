#pragma once
// The manifest as JSON:
//
//   {"checksum": "0123456789abcdef", "format": "sherd checkpoint", "version": 4, "manifest": {
//    "blocks": {
//     "rank-00000.safetensors": {"bytes": 2345678, "sums": "0123456789abcdef0123456789abcdef0123456789abcdef"},
//     ...
//    },
//    "config": "...",
//    "pieces": [
//     {"bytes": 24, ...},
//     ...
//    ], ...}}
//
// The checksum is over the text of the inner object without the white space between its tokens, and over the version:
// it is compared by a scan, before anything is parsed. Reading takes memory for the result and nothing else. Later
// versions keep what is around the inner object, so that a program can tell a newer file from a damaged one.
#include <deque>
#include <span>
#include <string>
#include <string_view>

#include "nn/checkpoint/format/input_file.h"
#include "nn/checkpoint/format/manifest.h"

namespace sherd::ckpt {

/// Throws Error if a text in it is not UTF-8.
std::string manifest_to_json(const Manifest& manifest);
/// Throws Error, which the caller completes with the file's name, if the file is no manifest, changed since it was
/// written, or lacks something; NewerVersion if it is whole and of a later version.
Manifest manifest_from_json(const InputFile& file);
/// What a file of `version` has as its checksum; `inner` is its inner object without white space.
std::uint64_t manifest_checksum(std::string_view inner, std::int64_t version);

/// Entries as text, for handing them from rank to rank.
std::string pieces_to_json(std::span<const PieceEntry> pieces);
std::deque<PieceEntry> pieces_from_json(std::string_view text);
/// The same of what a rank has written; rank_file_into() adds it to the manifest that rank 0 makes.
std::string rank_file_to_json(const RankFile& file);
void rank_file_into(Manifest& manifest, std::string_view text);

}  // namespace sherd::ckpt
