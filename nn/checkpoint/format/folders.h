#pragma once
// Folders and files by name: made durable, and looked for, with errors that name them.
#include <string>

namespace sherd::ckpt {

/// Makes the folder and those above it that are missing, and their names durable: without that a crash of the host
/// could take a folder with all that was synced in it. Blocks on the disk. Throws Error naming it.
void make_folders(const std::string& path);

/// Throws Error naming the path where the system cannot tell: a loop of links, a name that is too long, a folder above
/// it that may not be searched.
bool is_file_there(const std::string& path);

}  // namespace sherd::ckpt
