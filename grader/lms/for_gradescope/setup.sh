#!/usr/bin/env bash
# Runs once, as root, when Gradescope makes the image: an environment with the pinned versions, then a trial.
set -euo pipefail
root="${AUTOGRADER_ROOT:-/autograder}"
cd "$root/source"

enough() { command -v "$1" >/dev/null && "$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
find_python() {
  for name in python3 python3.13 python3.12 python3.11; do
    if enough "$name"; then echo "$name"; return; fi
  done
  return 1
}

seccomp() { compgen -G '/usr/lib*/libseccomp.so.2' >/dev/null || compgen -G '/usr/lib/*/libseccomp.so.2' >/dev/null; }
if ! seccomp || ! find_python >/dev/null; then
  export DEBIAN_FRONTEND=noninteractive
  apt-get -qq update
  seccomp || apt-get -qq install -y --no-install-recommends libseccomp2
  find_python >/dev/null || apt-get -qq install -y --no-install-recommends python3-venv
  for name in 3.13 3.12 3.11; do
    find_python >/dev/null || apt-get -qq install -y --no-install-recommends "python$name" "python$name-venv" || true
  done
fi
# C++ files of a lesson are compiled when its notebooks are graded. Without g++, checks that need them are skipped.
if compgen -G 'course/solutions/*/*.cc' >/dev/null && ! command -v g++ >/dev/null; then
  export DEBIAN_FRONTEND=noninteractive
  apt-get -qq update && apt-get -qq install -y --no-install-recommends g++ || echo "g++ cannot be installed." >&2
fi
if ! python="$(find_python)"; then
  echo "This image has no Python 3.11 or newer and cannot install one. Choose a newer base image." >&2
  exit 1
fi

"$python" -m venv "$root/venv"
"$root/venv/bin/python" -m pip install --quiet -c requirements.lock ./package
# A learner's processes get to the interpreter, and are kept from the course.
chmod -R go= course
if [ -d below ]; then chmod -R go= below; fi
"$root/venv/bin/python" -m grader.lms.gradescope --rehearse "$root"
