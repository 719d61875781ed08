package outer

import "golang.org/x/sys/unix"

// memory is what the process outside has said, for when it says nothing more. A file keeps its owner
// until root gives it to somebody else, and who asks twice in one run takes the answer of the first time for as
// long as the run lasts anyway.
type memory map[file][2]uint32

// file is one for good: a number is given to another file only with another time of birth.
type file struct {
	dev   [2]uint32
	ino   uint64
	birth unix.StatxTimestamp
}

// maxMemory bounds the files that are remembered: a run asks about the directories that lead to its own first.
const maxMemory = 512

func fileOf(fd int) (file, bool) {
	const mask = unix.STATX_INO | unix.STATX_BTIME
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, mask, &st); err != nil || st.Mask&mask != mask { // file systems without births
		return file{}, false
	}
	return file{[2]uint32{st.Dev_major, st.Dev_minor}, st.Ino, st.Btime}, true
}

func (m *memory) keep(fd int, uid, gid uint32) {
	f, ok := fileOf(fd)
	if !ok {
		return
	}
	if *m == nil {
		*m = memory{}
	}
	if _, known := (*m)[f]; known || len(*m) < maxMemory {
		(*m)[f] = [2]uint32{uid, gid}
	}
}

func (m memory) of(fd int) (uid, gid uint32, ok bool) {
	f, ok := fileOf(fd)
	if !ok {
		return 0, 0, false
	}
	ids, ok := m[f]
	return ids[0], ids[1], ok
}
