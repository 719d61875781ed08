//go:build linux

package initproc

import _ "embed"

// program is the init program for this architecture, built by build.sh.
//
//go:embed init_amd64.elf
var program []byte
