#!/bin/bash
# Builds the init program for amd64 and arm64 with the pinned clang and lld
# (the same major version as the BPF objects). Called by `make generate`.
set -eu
cd "$(dirname "$0")/.."
CLANG=${CLANG:-clang-19} LLD=${LLD:-ld.lld-19}
flags=(-std=c11 -Os -Wall -Wextra -Werror -ffreestanding -fno-builtin -fno-stack-protector
	-fno-pic -fno-pie -fno-asynchronous-unwind-tables -fno-ident)
for pair in amd64:x86_64-linux-gnu arm64:aarch64-linux-gnu; do
	out=init_${pair%:*}
	"$CLANG" --target="${pair#*:}" "${flags[@]}" -c -o "$out.o" c/init.c
	"$LLD" -static -nostdlib --build-id=none -z noexecstack -z noseparate-code -s -o "$out.elf" "$out.o"
	rm "$out.o"
done
