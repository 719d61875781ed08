package bpf

// The objects are committed and reproduced in CI: `make generate` needs clang 19
// and llvm-strip 19, and a difference afterwards is an error.
//
//go:generate go tool -modfile=../.ci/tools.mod bpf2go -go-package bpf -cc clang-19 -strip llvm-strip-19 -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3" -target amd64,arm64 -no-global-types egress c/egress.c
//go:generate go tool -modfile=../.ci/tools.mod bpf2go -go-package bpf -cc clang-19 -strip llvm-strip-19 -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3" -target amd64,arm64 -no-global-types sensor c/sensor.c
//go:generate go tool -modfile=../.ci/tools.mod bpf2go -go-package bpf -cc clang-19 -strip llvm-strip-19 -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3" -target amd64,arm64 -no-global-types unixsock c/unixsock.c
//go:generate go tool -modfile=../.ci/tools.mod bpf2go -go-package bpf -cc clang-19 -strip llvm-strip-19 -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3" -target amd64,arm64 -no-global-types lookup c/lookup.c
//go:generate go tool -modfile=../.ci/tools.mod bpf2go -go-package bpf -cc clang-19 -strip llvm-strip-19 -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3" -target amd64,arm64 -no-global-types resolve c/resolve.c
//go:generate go tool -modfile=../.ci/tools.mod bpf2go -go-package bpf -cc clang-19 -strip llvm-strip-19 -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3" -target amd64,arm64 -no-global-types refuse c/refuse.c
//go:generate go run gen_digest.go
