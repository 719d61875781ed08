package seccomp

var native = &aarch64
