#include "nn/data/text_files.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "nn/checkpoint/checksum.h"
#include "runtime/os/descriptor.h"
#include "runtime/tensor/error.h"

namespace sherd {

namespace {

namespace fs = std::filesystem;

void list_folder(const fs::path& folder, std::vector<TextFiles::File>& files) {
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->symlink_status(error).type() != fs::file_type::regular || error) continue;
    const auto size = static_cast<std::int64_t>(it->file_size(error));
    if (error) break;
    files.push_back({it->path().string(), it->path().lexically_relative(folder).string(), 0, size});
  }
  check(!error, "cannot read the data folder \"{}\": {}", folder.string(), error.message());
  std::sort(files.begin(), files.end(),
            [](const TextFiles::File& a, const TextFiles::File& b) { return a.name < b.name; });
}

}  // namespace

TextFiles TextFiles::open(const std::string& path) {
  TextFiles result;
  result.path_ = path;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  check(fs::exists(status), "there is no data at \"{}\": {}", path, error ? error.message() : "no such file or folder");
  if (fs::is_directory(status)) {
    list_folder(path, result.files_);
    check(!result.files_.empty(), "the data folder \"{}\" holds no regular files (links are not followed)", path);
  } else {
    check(fs::is_regular_file(status), "the data \"{}\" is neither a regular file nor a folder", path);
    const auto size = fs::file_size(path, error);
    check(!error, "cannot read the data file \"{}\": {}", path, error.message());
    result.files_.push_back({path, fs::path(path).filename().string(), 0, static_cast<std::int64_t>(size)});
  }
  std::erase_if(result.files_, [](const File& file) { return file.size == 0; });
  check(!result.files_.empty(), "the data \"{}\" is empty", path);
  std::int64_t begin = 0;
  for (File& file : result.files_) {
    file.begin = begin;
    begin += file.size;
  }
  return result;
}

const TextFiles::File& TextFiles::file_at(std::int64_t offset) const {
  const auto after = std::upper_bound(files_.begin(), files_.end(), offset,
                                      [](std::int64_t value, const File& file) { return value < file.begin; });
  return *(after - 1);
}

void TextFiles::read(std::int64_t offset, std::span<char> out) const {
  check(offset >= 0 && offset + static_cast<std::int64_t>(out.size()) <= bytes(),
        "bytes {} to {} of the data \"{}\" asked for, which has {}", offset,
        offset + static_cast<std::int64_t>(out.size()), path_, bytes());
  while (!out.empty()) {
    const File& file = file_at(offset);
    const auto here =
        static_cast<std::size_t>(std::min(static_cast<std::int64_t>(out.size()), file.begin + file.size - offset));
    const Descriptor descriptor(::open(file.path.c_str(), O_RDONLY | O_CLOEXEC));
    check(descriptor.is_open(), "cannot open the data file \"{}\": {}", file.path, std::strerror(errno));
    const std::int64_t got = read_at(descriptor.get(), offset - file.begin, std::as_writable_bytes(out.first(here)));
    check(got >= 0, "cannot read the data file \"{}\": {}", file.path, std::strerror(errno));
    check(got == static_cast<std::int64_t>(here), "the data file \"{}\" shrank: it had {} bytes, now it ends at {}",
          file.path, file.size, offset - file.begin + got);
    out = out.subspan(here);
    offset += static_cast<std::int64_t>(here);
  }
}

std::uint64_t TextFiles::fingerprint() const {
  std::string text;
  for (const File& file : files_) text += fmt::format("{} {}\n", file.size, file.name);
  return checksum(text);
}

}  // namespace sherd
