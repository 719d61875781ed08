#!/bin/sh
# Makes the repository of the incident in DIR.
#   make.sh DIR
set -eu
mkdir -p "$1"
cp -r "$(dirname "$0")/repo/." "$1/"
cd "$1"
git init -q -b main
git add -A
git -c user.name=dev -c user.email=dev@example.com commit -q -m 'price list, with tests'
