"""What is known of a card: steps, facts and logs in a folder, and all of it in one archive.

The folder is lost with the machine it is on, and what comes back from there may be few files: the archive is written anew
after every step, and a call on another machine begins from it.
"""

import io
import json
import lzma
import pathlib
import shutil
import tarfile

ARCHIVE, STATE, COMPILED = "results.tar.xz", "state.json", "inductor"
LONGEST_LOG = 1 << 20       # bytes of a log that the archive keeps, its end
LARGEST_ARCHIVE = 8 << 20  # bytes; beyond them what torch has compiled is left out


class State:
    def __init__(self, folder):
        self.folder, self.compiled, self.is_of = folder, b"", []
        self.steps, self.facts, self.card, self.calls = {}, {}, None, []

    @staticmethod
    def begin(folder):
        """A fresh one. Replaces what an earlier check left there, and nothing else."""
        if folder.exists() and any(folder.iterdir()):
            if not (folder / STATE).exists():
                raise OSError(f"{folder} holds other files than a check's; name an empty folder by --state")
            shutil.rmtree(folder)
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        return State(folder)

    @staticmethod
    def load(folder):
        state = State(folder)
        read = json.loads((folder / STATE).read_text())
        state.steps, state.facts, state.card, state.calls = (read[key] for key in ("steps", "facts", "card", "calls"))
        (folder / "logs").mkdir(exist_ok=True)
        return state

    def status(self, name):
        return self.steps.get(name, {}).get("status", "not reached")

    def known(self):
        """All facts, with how steps ended: "step.graph"."""
        return {**self.facts, **{f"step.{name}": {"value": step["status"]} for name, step in self.steps.items()
                                 if step["status"] in ("ok", "failed")}}

    def record(self, name, facts=(), **outcome):
        """One more step is over; what it found is of the card at hand."""
        self.steps[name] = outcome
        for fact, entry in dict(facts).items():
            self.facts[fact] = {"device": self.card, **entry}

    def keep_compiled(self):
        """Takes what torch has compiled into the archives to come: anew only if it changed, for it takes seconds to compress."""
        folder = self.folder / COMPILED
        found = files_of(folder) if folder.exists() else []
        sizes = [(path, path.stat().st_size) for path in found]
        if sizes != self.is_of:
            self.compiled, self.is_of = stream(self.folder, found, is_last=False), sizes

    def save(self, out):
        """Writes the folder's state.json, and the archive in the folder `out`: two streams of xz, which are one when read."""
        text = json.dumps({"steps": self.steps, "facts": self.facts, "card": self.card, "calls": self.calls}, indent=1)
        replace(self.folder / STATE, (text + "\n").encode())
        others = [path for path in files_of(self.folder) if self.folder / COMPILED not in path.parents]
        rest = stream(self.folder, others, is_last=True)
        replace(out / ARCHIVE, (self.compiled if len(self.compiled) + len(rest) <= LARGEST_ARCHIVE else b"") + rest)


def replace(path, data):
    """Writes a file that is never half of one."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    part.replace(path)


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def stream(folder, files, is_last):
    """The files as entries of a tar file, compressed; only the last stream of an archive has the mark of its end."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for path in files:
            try:
                content = path.read_bytes()
            except FileNotFoundError:  # a program's temporary file
                continue
            if path.suffix == ".log":
                content = content[-LONGEST_LOG:]
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
        end = archive.offset
    return lzma.compress(data.getvalue() if is_last else data.getvalue()[:end], preset=1)


def unpack(archive, folder):
    """Makes it the folder's content; one that cannot be read leaves the folder as it is. Raises OSError naming the archive."""
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        extract(archive, part)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        raise
    State.begin(folder)
    shutil.rmtree(folder)
    part.rename(folder)


def extract(archive, folder):
    try:
        content = io.BytesIO(lzma.decompress(archive.read_bytes()))  # to its end: tarfile would not miss that
        with tarfile.open(fileobj=content) as file:
            for entry in file:
                to = folder / entry.name
                if not entry.isreg() or folder.resolve() not in to.resolve().parents:
                    raise OSError(f"{archive} is no archive of a check: it holds {entry.name!r}")
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_bytes(file.extractfile(entry).read())
        if not (folder / STATE).exists():
            raise OSError(f"{archive} is no archive of a check: it has no {STATE}")
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise OSError(f"{archive} cannot be read: {error}") from None
