package tally

import (
	"bufio"
	"os"
	"strings"
)

// sharedOfNone is what is mapped as shared memory of no file at all (MAP_SHARED with MAP_ANONYMOUS), each page once: what neither the
// size of a memfd nor the System V objects have. All else of a process's shared memory may be in these, too.
func (t *Tally) sharedOfNone() (sum int64, err error) {
	err = t.once(func(dir string) error {
		n, err := sharedOfNoneIn(dir)
		if err != nil { // in full, then
			_, n, err = memoryIn(dir)
		}
		sum += n
		return err
	})
	return sum, err
}

// sharedOfNoneIn reads proc_pid_smaps(5), in which such a mapping has a name of the kernel's (shmem_zero_setup() in mm/shmem.c), or
// one that the process has given it (PR_SET_VMA_ANON_NAME).
func sharedOfNoneIn(dir string) (sum int64, err error) {
	f, err := os.Open(dir + "smaps")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	counts := false
	in := bufio.NewScanner(f)
	for in.Scan() {
		key, rest, _ := strings.Cut(in.Text(), " ")
		switch {
		case !strings.HasSuffix(key, ":"): // the head of a mapping: addresses, rights, offset, device, inode, name
			counts = strings.HasSuffix(rest, " /dev/zero (deleted)") || strings.Contains(rest, " [anon_shmem:")
		case counts && key == "Pss:":
			sum += kilobytes(in.Bytes(), "Pss")
		}
	}
	return sum, in.Err()
}
