"""`tools/setup --python` on a small requirements.txt whose packages lie in a folder: nothing is fetched.

And where packages are missing: apt-get, replaced by a script, is asked for them.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"


def write_wheel(folder, version):
    info = f"toy-{version}.dist-info"
    with zipfile.ZipFile(folder / f"toy-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("toy.py", "")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: toy\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"toy.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


class SetupPython(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        (self.folder / "tools").mkdir()
        for name in ("setup", "packages.txt"):
            shutil.copy(TOOLS / name, self.folder / "tools" / name)
        self.venv = self.folder / "build" / "venv"
        self.environment = {**os.environ, "PYTHON": sys.executable, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": scratch.name}
        for name in ("SHERD_VENV", "PIP_CONFIG_FILE"):
            self.environment.pop(name, None)

    def require(self, *pins):
        (self.folder / "tools" / "requirements.txt").write_text("# what for\n" + "".join(f"{pin}\n" for pin in pins))

    def script(self, name, text):
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def setup(self, *words):
        run = subprocess.run([self.folder / "tools" / "setup", *words], env=self.environment, capture_output=True, text=True,
                             check=False)
        return run.returncode, run.stdout + run.stderr

    def setup_python(self, *words):
        return self.setup("--python", *words)

    def without_packages(self, **scripts):
        """As on a Debian system that has none; what apt-get is asked for is in the file `asked`."""
        for name, text in {"dpkg-query": "exit 1", "sudo": 'shift; exec "$@"',
                           "apt-get": f'echo "$@" >> {self.folder}/asked', **scripts}.items():
            path = self.script(name, text)
        self.environment["PATH"] = f"{path.parent}:{os.environ['PATH']}"
        return path.parent

    def test_makes_updates_and_leaves_alone(self):
        write_wheel(self.folder, "1.0")
        self.require("toy==1.0  # a toy")
        status, said = self.setup_python("--check")
        self.assertEqual((status, self.venv.exists()), (1, False))
        self.assertIn(f"no Python environment in {self.venv}", said)
        self.assertIn("tools/setup --python", said)

        self.assertEqual(self.setup_python()[0], 0)
        pip = self.venv / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages" / "pip"
        pip.rename(pip.with_name("no_pip"))  # what is there needs none
        for words in ((), ("--check",)):
            status, said = self.setup_python(*words)
            self.assertEqual(status, 0, said)
            self.assertIn("has all 1 packages", said)
        pip.with_name("no_pip").rename(pip)

        self.require("toy==2.0", "other==3")
        status, said = self.setup_python("--check")
        self.assertEqual(status, 1)
        self.assertIn("lacks toy 2.0 (it has 1.0), other 3", said)
        status, said = self.setup_python()
        self.assertEqual((status, self.venv.exists()), (1, True), "an environment that was there stays")
        self.assertIn("pip could not install", said)
        self.require("toy==2.0")
        write_wheel(self.folder, "2.0")
        self.assertEqual(self.setup_python()[0], 0)

    def test_what_cannot_be_filled_is_not_left_behind(self):
        self.require("toy==9")
        self.environment["PYTHON"] = str(self.script("python", f'''
            if [ "$2" = venv ]; then exec {sys.executable} -m venv --without-pip "$4"; fi
            exec {sys.executable} "$@"'''))
        status, said = self.setup_python()
        self.assertEqual((status, self.venv.exists()), (1, False), said)

    def test_nothing_of_a_user_is_overwritten(self):
        mine = self.folder / "mine"
        mine.mkdir()
        (mine / "thesis.txt").write_text("")
        self.require("toy==1.0")
        self.environment["SHERD_VENV"] = str(mine)
        status, said = self.setup_python()
        self.assertEqual((status, [path.name for path in mine.iterdir()]), (1, ["thesis.txt"]))
        self.assertIn("SHERD_VENV", said)

    def test_a_section_is_installed_with_what_all_need(self):
        self.without_packages()
        status, said = self.setup("--mpi")
        self.assertEqual(status, 0, said)
        asked = (self.folder / "asked").read_text().split()
        self.assertIn("g++", asked)
        self.assertEqual(asked[-1], "mpich")

    def test_a_python_without_venv_is_a_missing_package(self):
        self.environment["PYTHON"] = str(self.without_packages(python="exit 1") / "python")
        self.require("toy==1.0")
        status, said = self.setup_python()
        self.assertEqual(status, 1)
        self.assertIn("install -y -q --no-install-recommends python3-venv python3-dev",
                      (self.folder / "asked").read_text())
        self.assertIn("cannot make environments", said)


unittest.main()
