package seccomp

var native = &x86_64
