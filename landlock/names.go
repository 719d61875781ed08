package landlock

import (
	"slices"
	"strconv"
	"strings"

	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
)

// names are what the kernel's audit records call the rights, by bit
// (security/landlock/audit.c).
var names = map[string][]string{
	"fs": {
		"execute", "write_file", "read_file", "read_dir", "remove_dir", "remove_file", "make_char", "make_dir",
		"make_reg", "make_sock", "make_fifo", "make_block", "make_sym", "refer", "truncate", "ioctl_dev", "resolve_unix",
	},
	"net": {"bind_tcp", "connect_tcp", "bind_udp", "connect_send_udp"},
}

// Names lists rights as the kernel's audit records do: "fs.read_file,fs.execute"
// for kind "fs". A right that is newer than this table is "fs.bit_N".
func Names(kind string, rights uint32) string {
	var out []string
	for bit := range 32 {
		if rights>>bit&1 == 0 {
			continue
		}
		name := "bit_" + strconv.Itoa(bit)
		if list := names[kind]; bit < len(list) {
			name = list[bit]
		}
		out = append(out, kind+"."+name)
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}

// ofDirectory are the rights to change what is in a directory.
const ofDirectory = ll.AccessFSRemoveDir | ll.AccessFSRemoveFile | ll.AccessFSMakeChar | ll.AccessFSMakeDir |
	ll.AccessFSMakeReg | ll.AccessFSMakeSock | ll.AccessFSMakeFifo | ll.AccessFSMakeBlock | ll.AccessFSMakeSym | ll.AccessFSRefer

// OfDirectory reports whether what was refused with these rights is the
// directory of a name, and not the file itself.
func OfDirectory(rights uint32) bool { return rights&ofDirectory != 0 }
